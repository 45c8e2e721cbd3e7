"""Logs of healthy runs: recorded ones, and generated ones that look like what frameworks print.

The files in ``healthy`` are what real programs printed in runs that ended well; their README says which programs.
``recorded.json`` there has some 200 more, which `record_healthy` has run, with the versions of the programs.

The generator mixes the lines of a training run, in one of several styles, with lines of `HARMLESS`: what frameworks and
tools print in runs that are well, with words such as "error", "out of memory" or "failed" in them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

RECORDED = Path(__file__).with_name("healthy")

HARMLESS = (
    # TensorFlow on a node without a GPU.
    "2025-09-03 10:12:33.640302: E external/local_xla/xla/stream_executor/cuda/cuda_platform.cc:51] failed call to "
    "cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
    "2025-09-03 10:12:33.640302: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:266] failed call to "
    "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "2025-09-03 10:12:31.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see slightly "
    "different numerical results due to floating-point round-off errors from different computation orders.",
    "E0000 00:00:1756894351.640302    4242 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register "
    "factory for plugin cuDNN when one has already been registered",
    "W0000 00:00:1756894351.640302    4242 computation_placer.cc:177] computation placer already registered. Please "
    "check linkage and avoid linking the same target more than once.",
    # TensorFlow's allocators.
    "2025-09-03 10:12:33.640302: W external/local_xla/xla/tsl/framework/bfc_allocator.cc:310] Allocator "
    "(GPU_0_bfc) ran "
    "out of memory trying to allocate 2.25GiB with freed_by_count=0. The caller indicates that this is not a failure, "
    "but this may mean that there could be performance gains if more memory were available.",
    "2025-09-03 10:12:33.640302: W external/local_xla/xla/tsl/framework/cpu_allocator_impl.cc:83] Allocation of "
    "1073741824 exceeds 10% of free system memory.",
    "2025-09-03 10:12:33.640302: W tensorflow/core/kernels/data/cache_dataset_ops.cc:917] The calling iterator did not "
    "fully read the dataset being cached. In order to avoid unexpected truncation of the dataset, the partially cached "
    "contents of the dataset  will be discarded.",
    "2025-09-03 10:12:33.640302: I tensorflow/core/common_runtime/executor.cc:1197] [/device:CPU:0] (DEBUG INFO) "
    "Executor start aborting (this does not indicate an error and you can ignore this message): INVALID_ARGUMENT: You "
    "must feed a value for placeholder tensor 'Placeholder/_0' with dtype float and shape [4]",
    "2025-09-03 10:13:00.640302: I tensorflow/core/framework/local_rendezvous.cc:407] Local rendezvous is "
    "aborting with "
    "status: OUT_OF_RANGE: End of sequence",
    # PyTorch.
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign "
    "requested address).",
    "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
    "already in use).",
    "[rank0]:[W903 10:12:33.000000000 ProcessGroupNCCL.cpp:4843] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform "
    "barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to "
    "GPU mapping is incorrect.",
    "[rank0]:[W903 10:59:59.000000000 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not "
    "called before program exit, which can leak resources.",
    "W0903 10:12:30.000000 4242 torch/distributed/run.py:774] Setting OMP_NUM_THREADS environment variable for each "
    "process to be 1 in default, to avoid your system being overloaded",
    "/usr/lib/python3/dist-packages/torch/cuda/__init__.py:182: UserWarning: CUDA initialization: The NVIDIA driver on "
    "your system is too old (found version 11040). Please update your GPU driver.",
    "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py:624: UserWarning: This DataLoader will create 16 "
    "worker processes in total. Our suggested max number of worker in current system is 4, which is smaller than what "
    "this DataLoader is going to create. Please be aware that excessive worker creation might get DataLoader running "
    "slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary.",
    "[W ParallelNative.cpp:229] Warning: Cannot set number of intraop threads after parallel work has started",
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f12>\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py", line 1479, in __del__\n'
    "    self._shutdown_workers()\nAssertionError: can only test a child process",
    # NCCL.
    "n1:4242:4250 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation",
    "n1:4242:4250 [0] NCCL INFO cudaDriverVersion 12040",
    "n1:4242:4250 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 busId 3b000 - Abort COMPLETE",
    "n1:4242:4250 [0] NCCL INFO misc/socket.cc:477 -> 6, Connection reset by peer",
    # Libraries that try again, or do without.
    "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after "
    "connection broken by "
    "'ConnectionResetError(104, 'Connection reset by peer')': /simple/torch/",
    "WARNING:urllib3.connectionpool:Retrying (Retry(total=2, connect=None, read=None)) after connection broken by "
    "'NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f12>: Failed to establish a new connection: "
    "[Errno -3] Temporary failure in name resolution')': /model.safetensors",
    "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), "
    "'(Request ID: 1)')' thrown while requesting HEAD https://huggingface.co/gpt2/resolve/main/config.json",
    "Retrying in 1s [Retry 1/5].",
    "wandb: WARNING A graphql request initiated by the public wandb API timed out (timeout=9 sec). Create a new API "
    "with an integer timeout larger than 9",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "wandb: ERROR Error while calling W&B API: context deadline exceeded (retrying)",
    "INFO:botocore.retryhandler:Retry needed, action of: 1.2 [Errno 104] Connection reset by peer",
    "WARNING:root:libtorch_python.so: cannot open shared object file: No such file or directory, falling "
    "back to Python",
    "apex is not installed (No module named 'apex'), falling back to the native optimizer",
    "Could not load library libcudnn_cnn_infer.so.8, ignoring: error while loading shared libraries",
    'WARNING 09-03 10:12:33 [cuda.py:22] Failed to import from vllm._C with ModuleNotFoundError("No module named '
    "'vllm._C'\")",
    "flash_attn is not available: ModuleNotFoundError: No module named 'flash_attn' (ignored)",
    "WARNING:root:failed to load sample 17, skipping it\nTraceback (most recent call last):\n"
    '  File "data.py", line 12, in __getitem__\n    return read(path)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'data/17.png'",
    # Memory that is not enough at first.
    "| WARNING: ran out of memory, retrying batch",
    "2025-09-03 10:12:33 | WARNING | fairseq.trainer | OOM: Ran out of memory with exception: CUDA out of "
    "memory. Tried "
    "to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity)",
    "2025-09-03 10:12:33 | WARNING | fairseq.trainer | attempting to recover from OOM in forward/backward pass",
    "CUDA out of memory. Tried to allocate 2.00 GiB, reducing the batch size to 16",
    "Batch size 64 failed, trying batch size 32",
    "INFO autobatch: CUDA out of memory for batch size 128, trying again with 64",
    "[W 2025-09-03 10:12:33,000] Trial 3 failed with parameters: {'lr': 0.3} because of the following error: "
    "OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB').\nTraceback (most recent call last):\n"
    '  File "optuna/study/_optimize.py", line 201, in _run_trial\n    value_or_values = func(trial)\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "WARNING: disk cache is off: [Errno 28] No space left on device: '/tmp/torchinductor'",
    # Servers beside it.
    "[I 2025-09-03 10:12:33.000 ServerApp] The port 8888 is already in use, trying another port.",
    "TensorBoard could not bind to port 6006: Address already in use, trying another port",
    "W0903 10:12:33 4242 tensorboard.py:1] [Errno 98] Address already in use: port 6006",
    # Open MPI, gRPC, HDFS.
    '[n1:04242] Warning: could not find environment variable "LD_LIBRARY_PATH"',
    "WARNING: Open MPI accepted a TCP connection from what appears to be a another Open MPI process but cannot find a "
    "corresponding process entry for that peer.",
    "2025-09-03 10:12:33 WARN hdfs.DFSClient: Failed to connect to /10.0.0.2:9866 for block, add to deadNodes and "
    "continue. java.io.IOException: Connection reset by peer",
    "2025-09-03 10:12:33 WARN util.NativeCodeLoader: Unable to load native-hadoop library for your platform... using "
    "builtin-java classes where applicable",
    "2025-09-03 10:12:33 INFO retry.RetryInvocationHandler: org.apache.hadoop.ipc.RemoteException("
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException): Name node is in safe mode. Retrying after sleeping for "
    "5000ms.",
    "I0903 10:12:33.000000 4242 subchannel.cc:806] subchannel ipv4:10.0.0.2:2222: connect failed, backing off 999 ms",
    # Compilers and shells.
    'kernel.cu(12): warning #177-D: variable "error" was declared but never referenced',
    "rm: cannot remove 'output/old': No such file or directory",
    "./prepare.sh: line 3: nvidia-smi: command not found",
    # Plain words.
    "validation error: 0.0312 (top-1), 0.0051 (top-5)",
    "mean squared error 0.18, mean absolute error 0.31",
    "reconstruction failed for 0 of 1000 samples",
    "early stopping: no improvement for 3 epochs, killed 2 of 8 trials",
    "out of memory errors so far: 0; time-outs so far: 0",
    "the class 'bus error' has 12 samples, 'segmentation fault' has 7",
    "checkpoint.pt: permission denied for 0 users, timed out 0 times",
    "loss scaler: gradient overflow, skipping step, reducing loss scale to 32768.0",
)
"""Each with newlines where it has several lines."""


def recorded() -> dict[str, str]:
    """Return the recorded logs by name."""
    return {path.stem: path.read_bytes().decode() for path in sorted(RECORDED.glob("*.log"))}


def programs() -> dict[str, dict[str, str]]:
    """Return what `record_healthy` recorded, by name; each with its stderr and stdout."""
    logs = json.loads((RECORDED / "recorded.json").read_text(encoding="utf-8"))["logs"]
    return {log["name"]: log for log in logs}


def generated(seed: int) -> str:
    """Return the log of a run that is well."""
    rng = random.Random(seed)
    style = rng.choice(STYLES)
    lines = []
    for line in style(rng):
        if rng.random() < 0.15:
            lines.append(f"{rng.choice(HARMLESS)}\n")
        lines.append(line)
    lines += [f"{item}\n" for item in rng.sample(HARMLESS, rng.randrange(3))]
    return "".join(lines)


def _values(rng: random.Random) -> Iterator[tuple[int, float]]:
    loss = rng.uniform(2, 10)
    for step in range(rng.randrange(20, 300)):
        loss *= rng.uniform(0.97, 1.01)
        yield step, loss


def _prints(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        yield f"epoch {step // 50} step {step} loss {loss:.4f} error rate {loss / 10:.3f}\n"
    yield "saved checkpoint to output/model.pt\n"


def _progress_bar(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        bar = f"{step % 50 * 2:3d}%|{'#' * (step % 50)}| {step}/300 [00:{step % 60:02d}<?, loss={loss:.3f}]"
        yield f"\rEpoch {step // 50}: {bar}"
    yield "\n"


def _logging(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        time_text = f"2025-09-03 10:{step // 60:02d}:{step % 60:02d},123 - train"
        yield f"{time_text} - INFO - step={step} loss={loss:.5f}\n"
        if step % 50 == 49:
            yield f"{time_text} - WARNING - loss spike at {step}: failed check ignored\n"


def _trainer(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        yield f"{{'loss': {loss:.4f}, 'grad_norm': {loss * 3:.3f}, 'learning_rate': 5e-05, 'epoch': {step / 50:.2f}}}\n"
    yield "{'train_runtime': 123.4, 'train_samples_per_second': 81.0, 'train_loss': 1.23, 'epoch': 3.0}\n"


def _ranks(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        for rank in rng.sample(range(4), 4):
            yield f"[rank{rank}]: step {step}: loss {loss + rank / 1000:.4f}, time out of 1.0 s: {rng.random():.2f} s\n"


def _keras(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        bar = f"\x1b[32m{'━' * (step // 15)}\x1b[0m \x1b[1m0s\x1b[0m"
        yield f"\r\x1b[1m{step}/300\x1b[0m {bar} 2ms/step - loss: {loss:.4f}"
    yield "\n"


def _glog(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        time_text = f"10:{step // 60:02d}:{step % 60:02d}.123456 4242"
        yield f"I0903 {time_text} solver.cpp:239] Iteration {step}, loss = {loss:.5f}\n"


def _json(rng: random.Random) -> Iterator[str]:
    for step, loss in _values(rng):
        yield f'{{"level": "info", "step": {step}, "loss": {loss:.4f}, "errors": 0, "error": null}}\n'


STYLES: tuple[Callable[[random.Random], Iterator[str]], ...] = (
    *(_prints, _progress_bar, _logging, _trainer),
    *(_ranks, _keras, _glog, _json),
)
