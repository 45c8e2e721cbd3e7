"""Lines that drivers, frameworks and container tools print of GPUs: who can mend each of them."""

from __future__ import annotations

import re

import pytest

from dlapp.diagnosis.rules import load_rules
from dlapp.diagnosis.search import LogTail, diagnose
from dlapp.gpuid.health.xids import XidClass, XidTable
from dlapp.values.messages import Diagnosis, Fault

RULES = load_rules("/none")
BUSY = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
BUSY_OLD = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
BUSY_DRIVER = "pycuda._driver.LogicError: cuCtxCreate failed: CUDA_ERROR_DEVICE_UNAVAILABLE"


def cause_of(line: str, *, message: str = "", has_gpus: bool = True, is_exclusive: bool = False) -> Diagnosis | None:
    logs = [LogTail("stderr", 0, f"epoch 1, loss 0.3\n{line}\n".encode()), LogTail("stdout", 0, b"")]
    return diagnose(
        RULES, message=message, exit_code=1, signal=None, logs=logs, has_gpus=has_gpus, is_exclusive=is_exclusive
    )


# Each with the name of its cause, whose fault it is, and whether another node is tried.
LINES = {
    "Failed to initialize NVML: Driver/library version mismatch": ("gpu_driver_mismatch", Fault.NODE, True),
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda "
    "driver combination": ("gpu_driver_mismatch", Fault.NODE, True),
    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
    "variable CUDA_VISIBLE_DEVICES after program start.": ("gpu_setup", Fault.NODE, True),
    "RuntimeError: No CUDA GPUs are available": ("gpu_hidden", Fault.NODE, True),
    "RuntimeError: CUDA error: no CUDA-capable device is detected": ("gpu_hidden", Fault.NODE, True),
    BUSY: ("gpu_lost", Fault.NODE, True),
    BUSY_OLD: ("gpu_lost", Fault.NODE, True),
    BUSY_DRIVER: ("gpu_lost", Fault.NODE, True),
    "RuntimeError: CUDA error: the MPS client failed to connect to the MPS control daemon or the MPS server": (
        "gpu_mps",
        Fault.NODE,
        True,
    ),
    "cuInit failed: CUDA_ERROR_MPS_SERVER_NOT_READY": ("gpu_mps", Fault.NODE, True),
    "node1:1:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 "
    "opcode=0 len=0 vendor err 129": ("gpu_network", Fault.NODE, False),
    "node1:12:34 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found": ("gpu_setup", Fault.NODE, True),
    "ValueError: invalid literal for int() with base 10: 'GPU-8932f937-d72c-4106-c12f-20bd9faed9f6'": (
        "gpu_uuid",
        Fault.USER,
        False,
    ),
    "ValueError: invalid literal for int() with base 10: 'MIG-8932f937-d72c-4106-c12f-20bd9faed9f6'": (
        "gpu_uuid",
        Fault.USER,
        False,
    ),
    "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000": (
        "gpu_too_few",
        Fault.USER,
        False,
    ),
    "RuntimeError: CUDA error: invalid device ordinal": ("gpu_too_few", Fault.USER, False),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB": (
        "gpu_memory",
        Fault.USER,
        False,
    ),
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 "
    "bytes.": ("gpu_memory", Fault.USER, False),
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized": (
        "gpu_lost",
        Fault.NODE,
        True,
    ),
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": ("gpu_memory_error", Fault.NODE, True),
    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution": (
        "gpu_lost",
        Fault.NODE,
        True,
    ),
    "RuntimeError: CUDA error: an illegal memory access was encountered": ("gpu_program_error", Fault.USER, False),
    "RuntimeError: CUDA error: device-side assert triggered": ("gpu_program_error", Fault.USER, False),
    "CUDA error: CUDA driver version is insufficient for CUDA runtime version": (
        "gpu_driver_too_old",
        Fault.NODE,
        True,
    ),
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).": (
        "gpu_driver_too_old",
        Fault.NODE,
        True,
    ),
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": (
        "gpu_not_supported",
        Fault.USER,
        False,
    ),
}


@pytest.mark.parametrize("line", LINES, ids=[f"{n}-{one[0]}" for n, one in enumerate(LINES.values())])
def test_a_gpu_error_in_a_container_with_gpus_is_assigned_to_user_or_node(line: str) -> None:
    found = cause_of(line)
    assert found is not None
    assert (found.rule, found.fault, found.avoid_node) == LINES[line]


MESSAGES = (
    "Docker refused the container: nvidia-container-cli: initialization error: nvml error: driver/library version "
    "mismatch: unknown",
    "Docker refused the container: CDI device injection failed: failed to stat CDI host device "
    '"/dev/dri/renderD128": no such file or directory',
    "Docker refused the container: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=9",
    'Docker refused the container: could not select device driver "nvidia" with capabilities: [[gpu]]',
)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_docker_gpu_error_is_a_node_fault(message: str) -> None:
    found = diagnose(RULES, message=message, exit_code=None, signal=None, logs=[], has_gpus=True)
    assert found is not None
    assert (found.rule, found.fault, found.avoid_node) == ("container_gpus", Fault.NODE, True)


@pytest.mark.parametrize("line", [BUSY, BUSY_OLD, BUSY_DRIVER])
def test_a_second_process_on_an_exclusive_gpu_is_the_users_and_is_not_tried_again(line: str) -> None:
    found = cause_of(line, is_exclusive=True)
    assert found is not None
    assert (found.rule, found.fault, found.retry) == ("gpu_exclusive", Fault.USER, False)


def test_the_compute_mode_changes_no_other_cause() -> None:
    for line, (rule, fault, avoid_node) in LINES.items():
        if line not in (BUSY, BUSY_OLD, BUSY_DRIVER):
            found = cause_of(line, is_exclusive=True)
            assert found is not None
            assert (found.rule, found.fault, found.avoid_node) == (rule, fault, avoid_node)


def test_a_gpu_program_without_gpus_is_advised_to_request_them() -> None:
    found = cause_of("RuntimeError: No CUDA GPUs are available", has_gpus=False)
    assert found is not None
    assert (found.rule, found.fault, found.retry) == ("gpu_missing", Fault.USER, None)
    assert "gcores" in found.next_step


def test_a_program_that_cannot_parse_uuids_is_advised_to_use_indexes() -> None:
    found = cause_of("ValueError: invalid literal for int() with base 10: 'GPU-8932f937'")
    assert found is not None
    assert "cuda_visible_devices=index" in found.next_step


def test_kernel_lines_on_xid_errors_are_classified_by_the_xid_table() -> None:
    codes = {}
    for rule in load_rules():
        match = None if rule.line is None else re.search(r"Xid .*?: \(([\d|]+)\)", rule.line.pattern)
        if match is not None:
            codes[rule.name] = {int(item) for item in match[1].split("|")}
    table = XidTable()
    ending = {code for code in range(1, 200) if table[code].kind in (XidClass.RESET, XidClass.NODE)}
    assert codes["gpu_lost"] == ending - codes["gpu_memory_error"]
    own = (XidClass.PROGRAM, XidClass.IGNORE)
    assert {code for code in codes["gpu_program_error"] if table[code].kind not in own} == set()
    assert {code for code in codes["gpu_memory_error"] if table[code].kind in own} == set()
