"""The cause of a failure is found in the end of a program's logs, and only what a rule means is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.diagnosis import search
from dlapp.diagnosis.rules import load_rules
from dlapp.diagnosis.search import MAX_LINE, LogTail, diagnose, read_tail
from dlapp.values.messages import Diagnosis, Evidence, Fault

RULES = load_rules(str(Path(__file__).with_name("missing.yaml")))
FRAME = '  File "train.py", line 3, in <module>\n    raise MemoryError or FileNotFoundError: x\n'


def traceback(exception: str, prefix: str = "") -> str:
    lines = ("Traceback (most recent call last):\n" + FRAME + exception + "\n").splitlines()
    return "".join(f"{prefix}{line}\n" for line in lines)


def rule_of_output(
    stderr: str = "", stdout: str = "", *, message: str = "", code: int | None = 1, signal: int | None = None
) -> str:
    one = cause(stderr, stdout, message=message, code=code, signal=signal)
    return one.rule if one is not None else ""


def cause(
    stderr: str = "",
    stdout: str = "",
    *,
    message: str = "",
    code: int | None = 1,
    signal: int | None = None,
    has_gpus: bool = False,
) -> Diagnosis | None:
    logs = [LogTail("stderr", 0, stderr.encode()), LogTail("stdout", 0, stdout.encode())]
    return diagnose(RULES, message=message, exit_code=code, signal=signal, logs=logs, has_gpus=has_gpus)


# Each with the version that prints it, where that is known.
TEXTS = {
    # PyTorch 1.13 and 2.5
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity)": "gpu_memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity": "gpu_memory",
    # TensorFlow 2.15, jaxlib 0.4
    "E0000 gpu_driver.cc:1] failed to allocate 2.0GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory": "gpu_memory",
    "ResourceExhaustedError: OOM when allocating tensor with shape[64,512,512,64]": "gpu_memory",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.": "gpu_memory",
    # PyTorch 2.3
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).": "gpu_driver_too_old",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "gpu_memory_error",
    "RuntimeError: CUDA error: unspecified launch failure": "gpu_program_error",
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable": "gpu_lost",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "gpu_not_supported",
    "RuntimeError: No CUDA GPUs are available": "gpu_missing",
    "AssertionError: Torch not compiled with CUDA enabled": "gpu_missing",
    "RuntimeError: CUDA error: device-side assert triggered": "gpu_program_error",
    # PyTorch 2.1, ProcessGroupGloo.cpp
    "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms": "rank_missing",
    # PyTorch 2.5, ProcessGroupNCCL.cpp
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds": "collective_timeout",
    # gloo of PyTorch 1.13
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
    "operation to complete": "collective_timeout",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:9": "peer_lost",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:": "worker_failed",
    # Open MPI 4.1
    "There are not enough slots available in the system to satisfy the 8": "mpi_slots",
    "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).": "worker_failed",
    # PyTorch 2.x
    "RuntimeError: DataLoader worker (pid 112) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory.": "shared_memory",
    "RuntimeError: DataLoader worker (pid(s) 112) exited unexpectedly": "worker_failed",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory": "memory",
    "terminate called after throwing an instance of 'std::bad_alloc'": "memory",
    "OSError: [Errno 28] No space left on device": "disk_full",
    "OSError: [Errno 24] Too many open files: '/data/1'": "too_many_files",
    "OSError: [Errno 98] Address already in use": "address_in_use",
    "./train.py: line 1: import: command not found\n./train.py: line 3: syntax error near unexpected token `'": (
        "python_run_by_shell"
    ),
    "ModuleNotFoundError: No module named 'torch'": "module_missing",
    "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory": "library_missing",
    "python3: /lib/libc.so.6: version `GLIBC_2.34' not found (required by python3)": "library_missing",
    "ImportError: cannot import name 'container_abcs' from 'torch._six'": "import_failed",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'": "file_missing",
    "python3: can't open file '/w/trian.py': [Errno 2] No such file or directory": "file_missing",
    "PermissionError: [Errno 13] Permission denied: '/data/out'": "permission_denied",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution": "name_not_found",
    "OSError: [Errno 101] Network is unreachable": "network_unreachable",
    "RuntimeError: Error(s) in loading state_dict for Net:": "checkpoint_mismatch",
    "train.py: error: unrecognized arguments: --epoch 3": "arguments",
    "The TensorFlow library was compiled to use AVX instructions, but these aren't available on your machine.": (
        "cpu_not_supported"
    ),
}


@pytest.mark.parametrize(("text", "rule"), TEXTS.items(), ids=[f"{n}-{rule}" for n, rule in enumerate(TEXTS.values())])
def test_framework_errors_match_their_rules(text: str, rule: str) -> None:
    assert rule_of_output(f"epoch 1, loss 0.3\n{text}\n") == rule
    assert rule_of_output(stdout=f"epoch 1, loss 0.3\n{text}\n") == rule


# Each with whether the container holds GPUs.
GPU_TEXTS = {
    ("Failed to initialize NVML: Driver/library version mismatch", False): "gpu_driver_mismatch",
    ("nvidia-smi: NVML library driver/library version mismatch", True): "gpu_driver_mismatch",
    (
        "RuntimeError: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803: system has "
        "unsupported display driver / cuda driver combination",
        True,
    ): "gpu_driver_mismatch",
    ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver", True): "gpu_driver_mismatch",
    (
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
        "variable CUDA_VISIBLE_DEVICES after program start.",
        True,
    ): "gpu_setup",
    ("pycuda._driver.LogicError: cuInit failed: CUDA_ERROR_UNKNOWN: unknown error", True): "gpu_setup",
    ("node1:12:34 [0] NCCL WARN Bootstrap : no socket interface found", True): "gpu_setup",
    ("RuntimeError: No CUDA GPUs are available", True): "gpu_hidden",
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", True): (
        "gpu_hidden"
    ),
    ("RuntimeError: No CUDA GPUs are available", False): "gpu_missing",
    ("RuntimeError: CUDA error: the MPS client failed to connect to the MPS control daemon", True): "gpu_mps",
    ("CUDA_ERROR_MPS_SERVER_NOT_READY: the MPS server is not ready", True): "gpu_mps",
    ("node1:1:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with error 12, opcode 0", True): (
        "gpu_network"
    ),
    ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", True): "gpu_too_few",
    ("RuntimeError: CUDA error: invalid device ordinal", True): "gpu_too_few",
    ("ValueError: invalid literal for int() with base 10: 'GPU-8932f937-d72c-4106-c12f-20bd9faed9f6'", True): (
        "gpu_uuid"
    ),
    ("AssertionError: Torch not compiled with CUDA enabled", True): "gpu_missing",
}


@pytest.mark.parametrize(("text", "has_gpus"), GPU_TEXTS)
def test_gpu_errors_are_assigned_to_user_or_node(text: str, has_gpus: bool) -> None:
    one = cause(f"epoch 1\n{text}\n", has_gpus=has_gpus)
    assert one is not None
    assert one.rule == GPU_TEXTS[text, has_gpus]
    assert (one.fault is Fault.NODE) == (one.rule not in ("gpu_missing", "gpu_too_few", "gpu_uuid"))


def test_tensorflows_warning_before_a_cpu_run_is_not_a_cause() -> None:
    line = "E0000 cuda_driver.cc:266] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error\n"
    assert cause(line, has_gpus=True) is None


NO_OUTPUT = "the script made no 'output' in its workspace (to_hdfs); new or changed there: log.txt; all of it is kept"


@pytest.mark.parametrize("message", [NO_OUTPUT, "the output could not be stored: it has 3 TiB"])
def test_the_cause_of_a_program_that_failed_is_its_own_and_not_its_output(message: str) -> None:
    failed = f"exit code 1; {message}"
    assert rule_of_output(traceback("RuntimeError: CUDA out of memory"), message=failed) == "gpu_memory"
    assert rule_of_output(traceback("ValueError: 3"), message=failed) == "python_exception"
    assert rule_of_output("epoch 1\n", message=failed, code=None, signal=11) == "segmentation_fault"
    assert rule_of_output("epoch 1\n", message=failed, code=127) == "command_missing"
    assert rule_of_output("epoch 1\n", message=failed) == ""
    assert rule_of_output(traceback("ValueError: 3"), message=message, code=0).startswith("output_")


MESSAGES = {
    "Docker refuses it: nvidia-container-cli: initialization error: driver/library version mismatch": "container_gpus",
    "Docker refuses it: failed to stat CDI host device /dev/nvidia3: no such file": "container_gpus",
    "exit code 137: killed for memory: it used more than its 64 MiB": "memory_limit",
    "image nowhere:1 cannot be pulled: there is no such image: manifest unknown": "image_missing",
    "image x:1 is not allowed on this node: it is docker.io/library/x, and docker.registry.allow of": (
        "image_not_allowed"
    ),
    "input data could not be fetched: hdfs://nn:8020/data is not there": "input_missing",
    "input data could not be fetched: hdfs://nn:8020/data: Permission denied: user=me": "input_denied",
    "the script made no 'output' in its workspace (to_hdfs)": "output_missing",
    "run.sh: there is no such script in the workspace": "script_missing",
    "exit code 127; the image's ENTRYPOINT /entry-env.sh was not run": "entrypoint_not_run",
    "exit code 126; /d/a/1 lies on a file system that executes nothing (noexec)": "noexec",
}


@pytest.mark.parametrize(("message", "rule"), MESSAGES.items(), ids=list(MESSAGES.values()))
def test_dlapps_message_takes_precedence_over_the_logs(message: str, rule: str) -> None:
    assert rule_of_output(traceback("ValueError: 3"), message=message, code=None) == rule


@pytest.mark.parametrize(
    ("code", "signal", "rule"),
    [
        *(
            (None, 11, "segmentation_fault"),
            (139, None, "segmentation_fault"),
            (None, 9, "killed"),
            (137, None, "killed"),
        ),
        *((127, None, "command_missing"), (126, None, "not_executable"), (1, None, ""), (3, None, "")),
    ],
)
def test_without_a_line_of_a_log_the_end_itself_is_named(code: int | None, signal: int | None, rule: str) -> None:
    assert rule_of_output("epoch 1\n", code=code, signal=signal) == rule


def test_the_evidence_is_the_line_with_its_place_in_the_file() -> None:
    before = "epoch 1\n"
    log = before + traceback("ModuleNotFoundError: No module named 'torch'")
    assert cause(log) == Diagnosis(
        rule="module_missing",
        cause="the Python module torch is not installed",
        fault=Fault.USER,
        next_step="install it for the Python that runs the program, in its image or its virtual environment",
        evidence=Evidence(
            file="stderr", offset=log.index("ModuleNotFound"), line="ModuleNotFoundError: No module named 'torch'"
        ),
        retry=False,
    )


def test_an_exception_that_no_rule_names_is_named_by_its_type() -> None:
    one = cause(traceback("pkg.errors.Diverged: loss is nan"))
    assert one is not None
    assert (one.rule, one.cause) == ("python_exception", "the Python program ended with pkg.errors.Diverged")


def test_lines_of_source_in_a_traceback_are_not_causes() -> None:
    assert rule_of_output(traceback("ValueError: 3")) == "python_exception"


def test_a_text_in_the_name_of_a_test_is_no_cause_and_the_error_of_a_failed_test_is_one() -> None:
    name = "tests/test_a.py::TestA::test_b[RuntimeError: CUDA out of memory]"
    assert rule_of_output(f"{name}\n{name} PASSED\n") == ""
    assert rule_of_output(f"FAILED {name} - OSError: [Errno 28] No space left on device\n") == "disk_full"
    assert (
        rule_of_output("FAILED tests/test_a.py::test_b - OSError: [Errno 28] No space left on device\n") == "disk_full"
    )


def test_a_trial_exception_caught_by_optuna_is_not_a_cause() -> None:
    whole, failed = traceback("OSError: [Errno 28] No space left on device"), "[W 2025-09-03 10:12:33,000] Trial 2 "
    assert (
        rule_of_output(f"{failed}failed with parameters: {{}} because of the following error: OSError(28).\n{whole}")
        == ""
    )
    for log in (whole, whole.partition("\n")[2]):
        assert rule_of_output(f"{log}{failed}failed with value None.\n") == ""
        assert rule_of_output(f"{log}{failed}was slow.\n") == "disk_full"
        assert rule_of_output(log) == "disk_full"
        assert rule_of_output(f"{log}{failed}failed with value None.\n{log}") == "disk_full"


def test_a_version_check_of_the_loader_is_not_a_cause() -> None:
    assert (
        rule_of_output("  42:\tchecking for version `GLIBC_2.3' in file /lib/libc.so.6 [0] required by file ls [0]\n")
        == ""
    )


def test_a_handled_exception_is_not_the_cause() -> None:
    assert rule_of_output(
        traceback("ModuleNotFoundError: No module named 'apex'") + "epoch 1\n" + traceback("ValueError")
    ) == ("python_exception")
    assert (
        rule_of_output(traceback("ValueError: 3") + traceback("RuntimeError: CUDA out of memory. Tried"))
        == "gpu_memory"
    )


def test_the_exception_of_a_chain_that_matches_a_rule_is_the_cause() -> None:
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert (
        rule_of_output(traceback("RuntimeError: CUDA out of memory. Tried") + link + traceback("Failed: 3"))
        == "gpu_memory"
    )


def test_a_message_of_several_lines_belongs_to_its_exception() -> None:
    text = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error\n"
    assert rule_of_output(traceback(text + "ncclSystemError: System call (e.g. socket, malloc) failed.")) == "peer_lost"


def test_the_failed_rank_precedes_its_peers() -> None:
    closed = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:4000"
    log = traceback("ValueError: 3", "[rank1]: ") + traceback(closed, "[rank0]: ")
    log += traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    one = cause(log)
    assert one is not None
    assert (one.rule, one.is_consequence) == ("python_exception", False)
    only_lost = cause(traceback(closed))
    assert only_lost is not None
    assert only_lost.is_consequence


def test_stderr_is_believed_before_stdout() -> None:
    assert rule_of_output(traceback("ValueError"), "No space left on device\n") == "python_exception"


HEALTHY = (
    "epoch 1/10 loss 0.31 acc 0.87\nsaved checkpoint to output/1\n",
    "2024-05-01 10:00:00.000000: I tensorflow/core/platform/cpu_feature_guard.cc:182] This TensorFlow binary is "
    "optimized to use available CPU instructions in performance-critical operations.\n",
    "W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT\n",
    "E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:274] failed call to cuInit: UNKNOWN ERROR (303)\n",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99)\n",
    "NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation\n",
    "UserWarning: CUDA initialization: CUDA unknown error\n",
    "retrying after timeout\nDownload failed, trying again\n",
    "early stopping after 12 epochs without improvement\n",
)


@pytest.mark.parametrize("text", HEALTHY)
def test_healthy_output_matches_no_rule(text: str) -> None:
    assert rule_of_output(text * 3) == ""


def test_a_long_line_is_cut_and_its_control_characters_are_no_more() -> None:
    one = cause("\x1b[31mModuleNotFoundError: No module named 'a'\x1b[0m\t" + "x" * 100_000)
    assert one is not None
    assert one.evidence is not None
    assert len(one.evidence.line) == MAX_LINE
    assert one.evidence.line.isprintable()


@pytest.mark.parametrize(
    "text", [b"Traceback (most recent call last):\n", b"\0", b"\xff\n"], ids=["tracebacks", "nul", "ff"]
)
def test_any_bytes_are_searched(text: bytes) -> None:
    assert diagnose(RULES, message="", exit_code=1, signal=None, logs=[LogTail("stderr", 0, text * 10_000)]) is None


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_bytes(b"first line\nsecond\nthird\n")
    assert read_tail(str(tmp_path / "stderr"), limit_bytes=10) == LogTail("stderr", 18, b"third\n")
    assert read_tail(str(tmp_path / "stderr")) == LogTail("stderr", 0, b"first line\nsecond\nthird\n")


def test_a_log_that_is_not_a_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stderr")
    with pytest.raises(OSError, match="is no file"):
        read_tail(str(tmp_path / "stderr"))


def test_a_directory_in_place_of_a_log_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="is no file"):
        read_tail(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"b" * 30, b"c" * 9000]), max_size=30), st.data())
def test_a_line_is_bounded_by_the_nearest_line_ends(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    position = data.draw(st.integers(0, len(text)))
    before = [offset + 1 for offset in range(position) if text[offset] in b"\r\n"]
    after = [offset for offset in range(position, len(text)) if text[offset] in b"\r\n"]
    assert search._line_at(text, position) == (max(before, default=0), min(after, default=len(text)))
