"""Table of failures: what failed, how the test makes it or from where its text is, and what must be named.

- `MADE`: a script fails here, and what it printed is searched.
- `MADE_WITH_TORCH`: the same with Debian's PyTorch; one process imports it and forks one child for each.
- `RECORDED`: text that needs a GPU or a cluster, as the version that is named prints it.
- `ON_SERVERS`: a test with the real server has the failure, and asks for its cause.
"""

from __future__ import annotations

from typing import NamedTuple


class Failure(NamedTuple):
    """One failure.

    Args:
        rule, fault, cause: what must be named. ``cause`` may be the beginning of it.
        evidence: how the line begins that must be shown; empty: the end itself shows it.
        source: what prints the text, with its version where that is not the one of this machine.
        script: for ``sh -c``, or the body of a function in Python (`MADE_WITH_TORCH`).
        text: what was printed.
    """

    rule: str
    fault: str
    cause: str
    evidence: str
    source: str
    script: str = ""
    text: str = ""


class OnServer(NamedTuple):
    """A failure that a test with a real server has.

    Args:
        test: ``file::function`` below tests.
        server: what is real there.
    """

    rule: str
    fault: str
    test: str
    server: str


MADE = {
    "a module is not installed": Failure(
        "module_missing",
        "user",
        "the Python module nowhere is not installed",
        "ModuleNotFoundError: No module named 'nowhere'",
        "Python",
        "exec $PYTHON -c 'import nowhere'",
    ),
    "JupyterLab is not installed": Failure(
        "jupyter_missing",
        "user",
        "JupyterLab is not installed where the notebook runs",
        "dlapp-notebook: there is no JupyterLab for ",
        "Python",
        "exec $PYTHON -m dlapp.runtime.notebook_program --idle 60 --grace 60 --save saved",
    ),
    "a Unix socket has too long a path": Failure(
        "socket_path",
        "user",
        "the path of a Unix socket below TMPDIR is too long",
        "OSError: AF_UNIX path too long",
        "Python",
        'exec $PYTHON -c \'import socket; socket.socket(socket.AF_UNIX).bind("/tmp/" + "x" * 200)\'',
    ),
    "a name is not in a module": Failure(
        "import_failed",
        "user",
        "a Python module has no container_abcs; versions do not fit",
        "ImportError: cannot import name 'container_abcs'",
        "Python",
        "exec $PYTHON -c 'from os import container_abcs'",
    ),
    "a file is not there": Failure(
        "file_missing",
        "user",
        "the file data/train.csv does not exist",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        "Python",
        "exec $PYTHON -c 'open(\"data/train.csv\")'",
    ),
    "the program itself is not there": Failure(
        "file_missing",
        "user",
        "the file ",
        "",  # the line begins with the path of the interpreter
        "Python",
        "exec $PYTHON trian.py",
    ),
    "a file may not be read": Failure(
        "permission_denied",
        "user",
        "the program may not use secret",
        "PermissionError: [Errno 13] Permission denied: 'secret'",
        "Python",
        "touch secret; chmod 0 secret; chmod 777 .\n"
        "exec $PYTHON -c 'import os; os.geteuid() or os.seteuid(65534); open(\"secret\")'",
    ),
    "a syntax error": Failure(
        "syntax_error",
        "user",
        "the program has a syntax error",
        "SyntaxError: ",
        "Python",
        "exec $PYTHON -c 'for x in: pass'",
    ),
    "arguments that the program does not know": Failure(
        "arguments",
        "user",
        "the program refused its arguments",
        "-c: error: unrecognized arguments: --epoch 3",
        "argparse",
        "exec $PYTHON -c 'import argparse; argparse.ArgumentParser().parse_args()' --epoch 3",
    ),
    "a value that an argument does not take": Failure(
        "arguments",
        "user",
        "the program refused its arguments",
        "-c: error: argument --epochs: invalid int value: 'three'",
        "argparse",
        "exec $PYTHON -c 'import argparse as a; p = a.ArgumentParser()\n"
        'p.add_argument("--epochs", type=int); p.parse_args()\' --epochs three',
    ),
    "a shell runs a Python program": Failure(
        "python_run_by_shell",
        "user",
        "a shell ran a Python program",
        "train.py: ",
        "bash",
        "printf 'import os\\nprint(os.getpid())\\n' >train.py; exec bash train.py",
    ),
    "a shared library is not there": Failure(
        "library_missing",
        "user",
        "a shared library that the program needs is missing or too old",
        "OSError: libcudart.so.99: cannot open shared object file",
        "glibc, Python",
        "exec $PYTHON -c 'import ctypes; ctypes.CDLL(\"libcudart.so.99\")'",
    ),
    "the disk is full": Failure(
        "disk_full",
        "user",
        "the disk was full",
        "OSError: [Errno 28] No space left on device",
        "Linux, Python",
        'exec $PYTHON -c \'open("/dev/full", "w").write("x" * 100000)\'',
    ),
    "the disk is full for a shell": Failure(
        "disk_full",
        "user",
        "the disk was full",
        "cp: error writing '/dev/full': No space left on device",
        "Linux, coreutils",
        "export LC_ALL=C; exec cp /etc/passwd /dev/full",
    ),
    "too many open files": Failure(
        "too_many_files",
        "user",
        "the program had too many files open",
        "OSError: [Errno 24] Too many open files: '/dev/null'",
        "Linux, Python",
        "ulimit -n 32; exec $PYTHON -c 'held = [open(\"/dev/null\") for _ in range(99)]'",
    ),
    "the port is in use": Failure(
        "address_in_use",
        "node",
        "the port that the program listens on is in use on the node",
        "OSError: [Errno 98] Address already in use",
        "Linux, Python",
        "exec $PYTHON -c 'import socket; a, b = socket.socket(), socket.socket()\n"
        'a.bind(("127.0.0.1", 0)); a.listen(); b.bind(a.getsockname())\'',
    ),
    "a host that does not exist": Failure(
        "name_not_found",
        "user",
        "a host name could not be resolved",
        "socket.gaierror: [Errno -",
        "glibc, Python",
        "exec $PYTHON -c 'import socket; socket.create_connection((\"nowhere.invalid\", 80))'",
    ),
    "a server that does not answer": Failure(
        "network_unreachable",
        "user",
        "the program could not reach another host",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded",
        "requests",
        "exec $PYTHON -c 'import requests; requests.get(\"http://127.0.0.1:1/\")'",
    ),
    "memory in Python": Failure(
        "memory",
        "user",
        "the memory was used up",
        "MemoryError",
        "Python",
        "ulimit -v 4000000; exec $PYTHON -c 'held = bytearray(8 << 30)'",
    ),
    "an exception of the program": Failure(
        "python_exception",
        "user",
        "the Python program ended with Diverged",
        "Diverged: loss is nan",
        "Python",
        'printf \'class Diverged(Exception): pass\\nDiverged.__module__ = "builtins"\\n'
        'raise Diverged("loss is nan")\\n\' >train.py; exec $PYTHON train.py',
    ),
    "a module is missing, and another exception follows from that": Failure(
        "module_missing",
        "user",
        "the Python module nowhere is not installed",
        "ModuleNotFoundError: No module named 'nowhere'",
        "Python",
        "printf 'try:\\n  import nowhere\\nexcept ImportError as error:\\n  raise SystemError(3) from "
        "error\\n' >train.py\n"
        "exec $PYTHON train.py",
    ),
    "an error that the program handled, and another one that it did not": Failure(
        "python_exception",
        "user",
        "the Python program ended with ZeroDivisionError",
        "ZeroDivisionError: ",
        "Python, logging",
        "printf 'import logging\\ntry:\\n  import nowhere\\nexcept ImportError:\\n"
        '  logging.exception("apex is not there, falling back")\\n1 / 0\\n\' >train.py; exec $PYTHON train.py',
    ),
    "a segmentation fault": Failure(
        "segmentation_fault",
        "user",
        "the program crashed (segmentation fault)",
        "",
        "Linux",
        "ulimit -c 0; exec $PYTHON -c 'import ctypes; ctypes.string_at(0)'",
    ),
    "a segmentation fault below a shell": Failure(
        "segmentation_fault",
        "user",
        "the program crashed (segmentation fault)",
        "",
        "Linux, sh",
        "ulimit -c 0; $PYTHON -c 'import ctypes; ctypes.string_at(0)'; exit $?",
    ),
    "a bus error": Failure(
        "bus_error",
        "user",
        "the program crashed (bus error)",
        "",
        "Linux",
        "ulimit -c 0; exec $PYTHON -c 'import mmap, os\n"
        'file = open("data", "w+b"); file.truncate(8192); seen = mmap.mmap(file.fileno(), 8192)\n'
        'os.truncate("data", 0); seen[4096]\'',
    ),
    "the program aborts itself": Failure(
        "aborted",
        "user",
        "the program aborted itself",
        "",
        "Linux",
        "ulimit -c 0; exec $PYTHON -c 'import os; os.abort()'",
    ),
    "somebody kills it": Failure(
        "killed",
        "user",
        "the program ended as by SIGKILL; probably the node had no memory left",
        "",
        "Linux",
        "kill -KILL $$",
    ),
    "somebody ends it": Failure(
        "terminated",
        "user",
        "somebody ended the program (SIGTERM)",
        "",
        "Linux",
        "kill -TERM $$",
    ),
    "a command is not there": Failure(
        "command_missing",
        "user",
        "a command was not found",
        "",
        "sh",
        "tensorborad --logdir .",
    ),
    "a file is no program": Failure(
        "not_executable",
        "user",
        "a command is not executable",
        "",
        "sh",
        "touch train.sh; ./train.sh",
    ),
}

_RANKS = """
import datetime, os, signal, time, torch.distributed as dist
def begin(rank, seconds):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=seconds))
if os.fork() == 0:
    begin(1, 120)
    OTHER
    os._exit(0)
begin(0, 120)
"""


def _with_rank(other: str) -> str:
    """Return a body that runs as rank 0 of two, with what rank 1 does."""
    return _RANKS.replace("OTHER", other)


MADE_WITH_TORCH = {
    "PyTorch without CUDA is asked for a GPU": Failure(
        "gpu_missing",
        "user",
        "the program needs a GPU and sees none",
        "AssertionError: Torch not compiled with CUDA enabled",
        "PyTorch 1.13.1",
        "torch.zeros(1).cuda()",
    ),
    "PyTorch has no memory for a tensor": Failure(
        "memory",
        "user",
        "the memory was used up",
        "RuntimeError: [enforce fail at ",
        "PyTorch 1.13.1, c10/core/impl/alloc_cpu.cpp",
        "torch.empty(1 << 50)",
    ),
    "a checkpoint of another model": Failure(
        "checkpoint_mismatch",
        "user",
        "the checkpoint does not fit the model",
        "RuntimeError: Error(s) in loading state_dict for Linear:",
        "PyTorch 1.13.1",
        "torch.nn.Linear(2, 2).load_state_dict(torch.nn.Linear(3, 2).state_dict())",
    ),
    "a data loader's worker is killed": Failure(
        "worker_killed",
        "user",
        "a process that loads data was killed: Killed",
        "RuntimeError: DataLoader worker (pid ",
        "PyTorch 1.13.1",
        """
import os, signal
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): os.kill(os.getpid(), signal.SIGKILL)
list(torch.utils.data.DataLoader(Data(), num_workers=1))
""",
    ),
    "a rank does not reach the barrier": Failure(
        "rank_missing",
        "user",
        "rank 1 did not reach the barrier",
        "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 1000 ms",
        "PyTorch 1.13.1, ProcessGroupGloo.cpp",
        _with_rank("time.sleep(600)")
        + "dist.monitored_barrier(timeout=datetime.timedelta(seconds=1), wait_all_ranks=True)",
    ),
    "a rank does not take part in an all-reduce": Failure(
        "collective_timeout",
        "user",
        "another rank did not take part in a collective operation in time",
        "RuntimeError: ",
        "PyTorch 1.13.1, gloo unbound_buffer.cc",
        _with_rank("time.sleep(600)").replace("begin(0, 120)", "begin(0, 5)") + "dist.all_reduce(torch.zeros(1))",
    ),
    "a rank ends in the middle": Failure(
        "peer_lost",
        "user",
        "the connection to another rank was lost",
        "RuntimeError: ",
        "PyTorch 1.13.1, gloo pair.cc",
        # Not before both are connected: else nobody was there.
        _with_rank("while not os.path.exists('begun'): time.sleep(0.01)\n    os.kill(os.getpid(), signal.SIGKILL)")
        + "open('begun', 'w').close()\ndist.all_reduce(torch.zeros(1))",
    ),
    "the port of rank 0 is in use": Failure(
        "address_in_use",
        "node",
        "the port that the program listens on is in use on the node",
        "RuntimeError: The server socket has failed to listen on any local network address",
        "PyTorch 1.13.1, socket.cpp",
        """
import socket, torch.distributed as dist
held = socket.socket(socket.AF_INET6)
held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
held.bind(("::", 0))
held.listen()
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{held.getsockname()[1]}", rank=0, world_size=2)
""",
    ),
    "the other ranks do not come": Failure(
        "collective_timeout",
        "user",
        "another rank did not take part in a collective operation in time",
        "RuntimeError: ",
        "PyTorch 1.13.1, FileStore.cpp",
        """
import datetime, os, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/alone", rank=0, world_size=2,
                        timeout=datetime.timedelta(seconds=1))
""",
    ),
}

_TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 42, in <module>\n    main()\n'

RECORDED = {
    "the memory of a GPU is used up (PyTorch)": Failure(
        "gpu_memory",
        "user",
        "the memory of the GPU was used up",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "PyTorch 2.15, c10/cuda/CUDACachingAllocator.cpp",
        text="".join(f"[rank0]: {line}\n" for line in _TRACEBACK.splitlines())
        + "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
        "capacity of 79.11 GiB of which 15.06 MiB is free. Including non-PyTorch memory, this process has 79.09 "
        "GiB memory "
        "in use. Of the allocated memory 78.17 GiB is allocated by PyTorch, and 238.99 MiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-"
        "alloc-conf)\n",
    ),
    "the memory of a GPU is used up (CUDA)": Failure(
        "gpu_memory",
        "user",
        "the memory of the GPU was used up",
        "torch.AcceleratorError: CUDA error: out of memory",
        "PyTorch 2.15, c10/cuda/CUDAException.cpp",
        text=_TRACEBACK + "torch.AcceleratorError: CUDA error: out of memory\n"
        "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES"
        ".html for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so "
        "the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
        "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n",
    ),
    "the memory of a GPU is used up (TensorFlow)": Failure(
        "gpu_memory",
        "user",
        "the memory of the GPU was used up",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node",
        "TensorFlow 2.21, core/framework/op_kernel.cc",
        text="2025-09-03 10:12:33.640302: W external/local_xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator "
        "(GPU_0_bfc) ran out of memory trying to allocate 37.25GiB (rounded to 40000000000)requested by op Fill\n"
        "2025-09-03 10:12:33.640912: I external/local_xla/xla/tsl/framework/bfc_allocator.cc:1054] BFCAllocator dump "
        "for GPU_0_bfc\n" + _TRACEBACK + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: "
        "{{function_node __wrapped__Fill_device_/job:localhost/replica:0/task:0/device:GPU:0}} OOM when allocating "
        "tensor with shape[100000,100000] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator "
        "GPU_0_bfc [Op:Fill]\n",
    ),
    "the memory of the node is used up (TensorFlow)": Failure(
        "memory",
        "user",
        "the memory was used up",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node",
        "TensorFlow 2.21, core/framework/op_kernel.cc",
        text="W0000 00:00:1795637366.468332   30116 op_kernel.cc:1858] OP_REQUIRES failed at constant_op.cc:176 : "
        "RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[1000000,1000000] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu\n"
        + _TRACEBACK
        + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
        "__wrapped__Fill_device_/job:localhost/replica:0/task:0/device:CPU:0}} OOM when allocating tensor with "
        "shape[1000000,1000000] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu "
        "[Op:Fill]\n"
        "W0000 00:00:1795637368.445592   30116 local_rendezvous.cc:412] Local rendezvous is aborting with status: "
        "ABORTED: Shutdown\n",
    ),
    "the memory of the node is used up (JAX)": Failure(
        "memory",
        "user",
        "the memory was used up",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes.",
        "JAX 0.10",
        text=_TRACEBACK
        + "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes.\n"
        "--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following "
        "exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n",
    ),
    "the memory of a GPU is used up (JAX)": Failure(
        "gpu_memory",
        "user",
        "the memory of the GPU was used up",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "JAX 0.4",
        text=_TRACEBACK
        + "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        "34359738368 bytes.\n",
    ),
    "the driver is too old": Failure(
        "gpu_driver_too_old",
        "node",
        "the NVIDIA driver of the node is too old for the program",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "PyTorch 2.15, torch/csrc/cuda/utils",
        text=_TRACEBACK + "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please "
        "update your GPU driver by downloading and installing a new version from the URL: "
        "http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a PyTorch "
        "version that has been compiled with your version of the CUDA driver.\n",
    ),
    "the driver is too old (CUDA)": Failure(
        "gpu_driver_too_old",
        "node",
        "the NVIDIA driver of the node is too old for the program",
        "CUDA error at matrix.cu:42: CUDA driver version is insufficient for CUDA runtime version",
        "CUDA 12.9, cudaGetErrorString",
        text="CUDA error at matrix.cu:42: CUDA driver version is insufficient for CUDA runtime version\n",
    ),
    "a memory error of a GPU (ECC)": Failure(
        "gpu_memory_error",
        "node",
        "the GPU reported a memory error (ECC)",
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "PyTorch 2.15; CUDA 12.9, cudaGetErrorString",
        text=_TRACEBACK + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\n",
    ),
    "a memory error of a GPU (Xid 94)": Failure(
        "gpu_memory_error",
        "node",
        "the GPU reported a memory error (ECC)",
        "[123456.789012] NVRM: Xid (PCI:0000:3b:00): 94",
        "NVIDIA driver 550, kernel log",
        text="[123456.789012] NVRM: Xid (PCI:0000:3b:00): 94, pid=4242, name=python3, Contained: SM (0x1). RST: No, "
        "D-RST: No\n",
    ),
    "a GPU fell off the bus (Xid 79)": Failure(
        "gpu_lost",
        "node",
        "the GPU failed or is not available",
        "NVRM: Xid (PCI:0000:3b:00): 79",
        "NVIDIA driver 550, kernel log",
        text="NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.\n",
    ),
    "a GPU does not answer nvidia-smi": Failure(
        "gpu_lost",
        "node",
        "the GPU failed or is not available",
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
        "NVIDIA driver 550, nvidia-smi",
        text="Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n",
    ),
    "the fabric of the GPUs is not up": Failure(
        "gpu_lost",
        "node",
        "the GPU failed or is not available",
        "RuntimeError: Unexpected error from cudaGetDeviceCount()",
        "PyTorch 2.15; CUDA error 802",
        text=_TRACEBACK + "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
        "before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized\n",
    ),
    "a program accesses memory that is not its own (Xid 31)": Failure(
        "gpu_program_error",
        "user",
        "a kernel of the program failed on the GPU",
        "NVRM: Xid (PCI:0000:3b:00): 31",
        "NVIDIA driver 550, kernel log",
        text="NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE "
        "GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f12_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n",
    ),
    "an index is out of range on a GPU": Failure(
        "gpu_program_error",
        "user",
        "a kernel of the program failed on the GPU",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "PyTorch 2.15; CUDA 12.9, cudaGetErrorString",
        text="/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectSmallIndex: block: [0,0,0], thread: "
        "[0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        + _TRACEBACK
        + "torch.AcceleratorError: CUDA error: device-side assert triggered\n",
    ),
    "a kernel crashes on a GPU": Failure(
        "gpu_program_error",
        "user",
        "a kernel of the program failed on the GPU",
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "PyTorch 2.15; CUDA 12.9, cudaGetErrorString",
        text=_TRACEBACK + "torch.AcceleratorError: CUDA error: unspecified launch failure\n",
    ),
    "a GPU that the program was not built for": Failure(
        "gpu_not_supported",
        "user",
        "the program was not built for this model of GPU",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "PyTorch 2.15; CUDA 12.9, cudaGetErrorString",
        text=_TRACEBACK + "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the "
        "device\n",
    ),
    "a collective operation of NCCL does not end": Failure(
        "collective_timeout",
        "user",
        "another rank did not take part in a collective operation in time",
        "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation",
        "PyTorch 2.6, ProcessGroupNCCL.cpp",
        text="[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran "
        "for 600020 milliseconds before timing out.\n",
    ),
    "a collective operation of NCCL does not end, behind a progress bar": Failure(
        "collective_timeout",
        "user",
        "another rank did not take part in a collective operation in time",
        "Epoch 0:   6%|",
        "PyTorch 2.2, ProcessGroupNCCL.cpp; tqdm",
        text="\rEpoch 0:   5%|## | 31999/500150 [6:28:41<94:39:17,  1.37it/s]\rEpoch 0:   6%|## | 32040/500150 "
        "[6:28:43<94:39:17,  1.37it/s][E ProcessGroupNCCL.cpp:523] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800625 "
        "milliseconds before timing out.\n",
    ),
    "the other ranks do not come, with a TCPStore": Failure(
        "collective_timeout",
        "user",
        "another rank did not take part in a collective operation in time",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "PyTorch 2.15, TCPStore.cpp",
        text=_TRACEBACK
        + "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients "
        "joined.\n",
    ),
    "the port of rank 0 is in use (PyTorch of today)": Failure(
        "address_in_use",
        "node",
        "the port that the program listens on is in use on the node",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address.",
        "PyTorch 2.15, socket.cpp",
        text=_TRACEBACK + "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    ),
    "a rank of NCCL ends in the middle": Failure(
        "peer_lost",
        "user",
        "the connection to another rank was lost",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "PyTorch 2.15, NCCLUtils.cpp; NCCL 2.27",
        text=_TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
        "ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version 2.27.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketPollConnect: connect to 10.0.0.2<40000> returned Connection refused, exceeded error retry "
        "count after 35 attempts\n",
    ),
    "a rank fails before the others, with torchrun": Failure(
        "gpu_memory",
        "user",
        "the memory of the GPU was used up",
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory.",
        "PyTorch 2.15, torch.distributed.elastic",
        text="".join(f"[rank1]: {line}\n" for line in _TRACEBACK.splitlines())
        + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "[rank0]:[W903 10:12:33.000000000 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not "
        "called before program exit, which can leak resources.\n"
        "W0903 10:12:34.000000 4242 torch/distributed/elastic/multiprocessing/api.py:908] Sending process 4250 closing "
        "signal SIGTERM\n"
        "E0903 10:12:35.000000 4242 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "
        "local_rank: 1 (pid: 4251) of binary: /usr/bin/python3\n"
        + _TRACEBACK
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\ntrain.py FAILED\n",
    ),
    "a process of mpirun is killed": Failure(
        "worker_failed",
        "user",
        "one of the program's processes failed",
        "mpirun noticed that process rank 1 with PID 4251 on node n1 exited on signal 9 (Killed).",
        "Open MPI 4.1",
        text="-" * 74 + "\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per "
        "user-direction, the job has been aborted.\n"
        + "-" * 74
        + "\n"
        + "-" * 74
        + "\nmpirun noticed that process rank 1 with PID 4251 on node n1 exited on signal 9 (Killed).\n",
    ),
    "more processes than slots": Failure(
        "mpi_slots",
        "user",
        "mpirun was asked for more processes than there are slots",
        "There are not enough slots available in the system to satisfy the 8",
        "Open MPI 4.1",
        text="There are not enough slots available in the system to satisfy the 8\nslots that were requested by the "
        "application:\n\n  python3\n",
    ),
    "the shared memory of a container is used up": Failure(
        "shared_memory",
        "user",
        "the shared memory (/dev/shm) of the container was used up",
        "RuntimeError: DataLoader worker (pid 112) is killed by signal: Bus error.",
        "PyTorch 2.15, torch/utils/data",
        text="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
        "(shm).\n" + _TRACEBACK + "RuntimeError: DataLoader worker (pid 112) is killed by signal: Bus error. It is "
        "possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n",
    ),
    "a C++ program has no memory": Failure(
        "memory",
        "user",
        "the memory was used up",
        "what():  std::bad_alloc",
        "libstdc++ 12",
        text="terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
    ),
    "a user without the permission for a directory of HDFS": Failure(
        "hdfs_denied",
        "user",
        "tony has no WRITE permission for /data on HDFS",
        "put: Permission denied: user=tony, access=WRITE",
        "Hadoop 3.4, FSPermissionChecker.java",
        text='put: Permission denied: user=tony, access=WRITE, inode="/data":hdfs:supergroup:drwxr-xr-x\n',
    ),
    "HDFS is in safe mode": Failure(
        "hdfs_safe_mode",
        "service",
        "HDFS takes no changes (safe mode)",
        "mkdir: Cannot create directory /user/tony/out. Name node is in safe mode.",
        "Hadoop 3.4, FSNamesystem.java",
        text="mkdir: Cannot create directory /user/tony/out. Name node is in safe mode.\n",
    ),
    "a quota of HDFS is used up": Failure(
        "hdfs_quota",
        "user",
        "a quota on HDFS is used up",
        "put: org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /user/tony is exceeded",
        "Hadoop 3.4, DSQuotaExceededException.java",
        text="put: org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /user/tony is "
        "exceeded: quota = 1073741824 B = 1 GB but diskspace consumed = 1207959552 B = 1.13 GB\n",
    ),
    "no DataNode takes a block": Failure(
        "hdfs_no_datanode",
        "service",
        "no DataNode of HDFS takes data",
        "put: File /user/tony/x._COPYING_ could only be written to 0 of the 1 minReplication nodes.",
        "Hadoop 3.4, BlockManager.java",
        text="2025-09-03 10:12:33,000 WARN hdfs.DataStreamer: DataStreamer Exception\n"
        "org.apache.hadoop.ipc.RemoteException(java.io.IOException): File /user/tony/x._COPYING_ could only be written "
        "to 0 of the 1 minReplication nodes. There are 0 datanode(s) running and 0 node(s) are excluded in this "
        "operation.\nput: File /user/tony/x._COPYING_ could only be written to 0 of the 1 minReplication nodes. There "
        "are 0 datanode(s) running and 0 node(s) are excluded in this operation.\n",
    ),
    "the CPU is older than the build": Failure(
        "cpu_not_supported",
        "node",
        "the CPU of the node lacks instructions that the program was built for",
        "The TensorFlow library was compiled to use AVX2 instructions, but these aren't available",
        "TensorFlow 2.21, core/platform/cpu_feature_guard.cc",
        text="The TensorFlow library was compiled to use AVX2 instructions, but these aren't available on your "
        "machine.\n",
    ),
}

ON_SERVERS = {
    "more memory than asked for, in Docker": OnServer(
        "memory_limit", "user", "task/test_causes.py::test_a_payload_that_docker_ended_for_memory_is_named", "Docker"
    ),
    "the memory of the node is used up, without Docker": OnServer(
        "node_memory",
        "user",
        "task/test_causes.py::test_a_plain_payload_is_killed_when_the_kernel_kills_for_memory",
        "Linux, Docker",
    ),
    "more memory than asked for, on YARN": OnServer(
        "memory_limit",
        "user",
        "end_to_end/test_applications.py::test_a_program_over_its_memory_limit_is_ended_with_the_numbers",
        "YARN",
    ),
    "the Docker image does not exist": OnServer(
        "image_missing", "user", "task/test_causes.py::test_an_image_that_does_not_exist_is_named", "Docker, a registry"
    ),
    "a private Docker image, and wrong credentials": OnServer(
        "image_denied",
        "user",
        "end_to_end/test_registries.py::test_wrong_credentials_fail_with_the_repair_and_a_failing_helper_does_not",
        "Docker, a registry",
    ),
    "the input is not there any more": OnServer(
        "input_missing",
        "data",
        "task/data/test_input.py::test_no_gpu_is_leased_for_missing_or_unreadable_input",
        "Linux",
    ),
    "the output is not where it should be": OnServer(
        "output_missing",
        "data",
        "end_to_end/faults/test_kept_work.py::test_a_wrong_output_path_loses_no_output",
        "both engines",
    ),
    "a GPU fails while the program runs": OnServer(
        "gpu_failed",
        "node",
        "task/test_gpu_health.py::test_a_device_lost_in_mid_run_ends_the_payload_as_the_nodes_fault",
        "a stub of NVML",
    ),
    "a program causes an Xid error of its GPU": OnServer(
        "gpu_xid_program",
        "user",
        "task/test_xids.py::test_a_program_xid_does_not_end_the_payload_but_is_the_cause_if_it_fails",
        "a stub of NVML",
    ),
    "an Xid error of a GPU ends a program": OnServer(
        "gpu_xid",
        "node",
        "task/test_xids.py::test_a_contained_error_is_not_the_programs_fault_and_the_inspected_device_stays_in_use",
        "a stub of NVML",
    ),
    "the program hangs": OnServer(
        "hang",
        "user",
        "task/protocol/test_payload_files.py::test_a_payload_that_hangs_dumps_its_stacks_and_has_failed",
        "Linux",
    ),
    "a node is lost": OnServer(
        "node_lost",
        "node",
        "cluster/yarn/faults/test_lost_nodes.py::test_an_index_runs_again_whenever_its_nodemanager_is_restarted_without_recovery",
        "YARN",
    ),
    "the container is preempted": OnServer(
        "preempted",
        "node",
        "cluster/yarn/faults/test_preemption.py::test_a_preempted_program_resumes_from_the_checkpoint_of_the_notice",
        "YARN",
    ),
    "the node of the container is decommissioned": OnServer(
        "node_decommissioned",
        "node",
        "cluster/yarn/faults/test_decommission.py::test_a_graceful_decommission_lets_programs_save_and_resume_first",
        "YARN",
    ),
    "the time is up": OnServer(
        "time_limit",
        "user",
        "end_to_end/test_roles.py::test_a_rank_that_never_becomes_ready_is_named_and_max_runtime_ends_the_wait",
        "both engines",
    ),
    "the lifetime of the queue is up": OnServer(
        "lifetime_limit",
        "user",
        "cluster/yarn/faults/test_ended_by_others.py::"
        "test_output_is_kept_after_an_operators_kill_and_a_lifetime_ends_softly",
        "YARN",
    ),
    "Docker is stopped while the program runs": OnServer(
        "docker_stopped",
        "node",
        "end_to_end/faults/test_faults_docker.py::"
        "test_a_stopped_docker_ends_no_local_application_and_the_status_names_the_wait",
        "Docker",
    ),
    "two programs take rank 0": OnServer(
        "own_address_in_use",
        "user",
        "end_to_end/frameworks/test_frameworks.py::test_two_programs_with_rank_0_on_one_host_fail_at_once",
        "Linux",
    ),
    "a rank does not take part, in a gang": OnServer(
        "collective_timeout",
        "user",
        "end_to_end/test_failures.py::test_the_rank_that_does_not_take_part_is_named",
        "PyTorch with gloo",
    ),
    "the disk is full on one machine": OnServer(
        "disk_full",
        "user",
        "task/test_causes.py::test_a_full_disk_is_named",
        "a small file system",
    ),
}
