"""A CUDA program of the standard library alone, which starts in a second: the payloads of `make test-gpu`.

    python cuda_program.py burn SECONDS [--mib N] [--one-thread]   kernels without a pause, on the whole GPU
    python cuda_program.py hold SECONDS [--mib N]                  a context and memory, without a kernel
    python cuda_program.py matmul SECONDS                          torch: bf16 matrices of 8192 x 8192, multiplied
    python cuda_program.py memory                                  allocate until there is no more
    python cuda_program.py store                                   a store to address 16, which is nobody's
    python cuda_program.py devices                                 how many GPUs CUDA shows
    python cuda_program.py rank                                    one rank of torch.distributed with NCCL: a sum

It calls libcuda.so.1 by ctypes, with a module of PTX that the driver compiles. Each line of its output is an object of
JSON with ``event`` and ``at`` (seconds since 1970): ``context`` (with ``pid`` and ``uuids``), ``memory`` (what was
allocated is there), ``busy`` (the first kernel has ended), ``end``. A call that CUDA refuses is a line of text with the
names that other programs print (CUDA_ERROR_OUT_OF_MEMORY), and exit code 1.

Source: CUDA Driver API; PTX ISA.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from typing import Any

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE, of cuInit where no GPU is visible."""
OUT_OF_MEMORY = 2
CHUNK_BYTES = 1 << 30
BAD_ADDRESS = 16
KERNEL_NS = 20_000_000
"""What one kernel takes: short beside the second over which NVML's utilisation is the mean, long beside a launch."""
BLOCKS_PER_SM, THREADS = 4, 256
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
"""Attributes of a device (CUdevice_attribute)."""

PTX = """
.version 6.3
.target {target}
.address_size 64

.visible .entry burn(.param .u64 nanoseconds, .param .u64 result)
{{
    .reg .pred %goes_on, %never;
    .reg .f32 %a, %b;
    .reg .u64 %limit, %began, %now, %passed, %out;
    ld.param.u64 %limit, [nanoseconds];
    ld.param.u64 %out, [result];
    mov.f32 %a, 0f3F800001;
    mov.f32 %b, 0f3F7FFFFE;
    mov.u64 %began, %globaltimer;
AGAIN:
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    mov.u64 %now, %globaltimer;
    sub.u64 %passed, %now, %began;
    setp.lt.u64 %goes_on, %passed, %limit;
    @%goes_on bra AGAIN;
    setp.lt.f32 %never, %a, 0f00000000;
    @%never st.global.f32 [%out], %a;
    ret;
}}

.visible .entry store(.param .u64 address)
{{
    .reg .u32 %value;
    .reg .u64 %where;
    ld.param.u64 %where, [address];
    mov.u32 %value, 1;
    st.global.u32 [%where], %value;
    ret;
}}
"""
"""Two kernels. ``result`` is written in no case, but the compiler does not know that and keeps the arithmetic."""


class CudaError(Exception):
    """A call that CUDA refused."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name}: {text}")
        self.code = code


class Cuda:
    """The driver API, with a context on the first visible GPU after `open`."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(LIBRARY)
        self._device = ctypes.c_int()
        self._module = ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver. Raises CudaError."""
        code = getattr(self._library, name)(*arguments)
        if code == 0:
            return
        texts = []
        for ask in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            getattr(self._library, ask)(code, ctypes.byref(text))
            texts.append((text.value or b"unknown").decode(errors="replace"))
        raise CudaError(name, code, *texts)

    def count(self) -> int:
        """Return the number of visible GPUs."""
        try:
            self.call("cuInit", 0)
        except CudaError as error:
            if error.code == NO_DEVICE:
                return 0
            raise
        found = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def uuids(self, count: int) -> list[str]:
        """Return the uuids of the visible GPUs, in CUDA's order, as NVML writes them."""
        found = []
        for place in range(count):
            device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGet", ctypes.byref(device), place)
            self.call("cuDeviceGetUuid", ctypes.byref(raw), device)
            digits = bytes(raw).hex()
            found.append(f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")
        return found

    def open(self) -> None:
        """Create the context, and load the kernels into it."""
        context = ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self._device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        capability = self._attribute(MAJOR) * 10 + self._attribute(MINOR)
        # A driver compiles PTX of an older target for a newer GPU, and PTX 6.3 knows no newer one than sm_75.
        text = PTX.format(target=f"sm_{min(capability, 75)}")
        self.call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(text.encode()))

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes."""
        found = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(size))
        return found.value

    def launch(self, kernel: str, *arguments: int, blocks: int = 1, threads: int = 1) -> None:
        """Run a kernel to its end; its arguments have 64 bits."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
        values = [ctypes.c_uint64(argument) for argument in arguments]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(item) for item in values))
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, places, None)
        self.call("cuCtxSynchronize")

    @property
    def blocks(self) -> int:
        """Return the number of blocks that fill the GPU."""
        return BLOCKS_PER_SM * self._attribute(MULTIPROCESSORS)

    def _attribute(self, which: int) -> int:
        found = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(found), which, self._device)
        return found.value


def tell(event: str, **values: Any) -> None:
    """Print one event."""
    print(json.dumps({"event": event, "at": time.time(), **values}), flush=True)


def main(argv: list[str]) -> int:
    """Run one mode; 1: CUDA refused a call."""
    parser = argparse.ArgumentParser(description="A CUDA program of the standard library alone.")
    parser.add_argument("mode", choices=("burn", "hold", "matmul", "memory", "store", "devices", "rank"))
    parser.add_argument("seconds", type=float, nargs="?", default=1.0)
    parser.add_argument("--mib", type=int, default=0, help="memory that it allocates first")
    parser.add_argument("--one-thread", action="store_true", help="kernels of one thread")
    asked = parser.parse_args(argv)
    try:
        if asked.mode == "matmul":
            return matmul(asked.seconds)
        if asked.mode == "rank":
            return rank()
        return run(Cuda(), asked)
    except CudaError as error:
        print(f"CUDA error: {error}", file=sys.stderr, flush=True)
        return 1


def run(cuda: Cuda, asked: argparse.Namespace) -> int:
    """Run a mode that needs no torch."""
    count = cuda.count()
    if asked.mode == "devices":
        tell("devices", count=count, uuids=cuda.uuids(count))
        return 0
    if not count:
        print("CUDA error: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", file=sys.stderr)
        return 1
    cuda.open()
    tell("context", pid=os.getpid(), uuids=cuda.uuids(count))
    if asked.mode == "memory":
        while True:
            cuda.allocate(CHUNK_BYTES)
    if asked.mode == "store":
        cuda.launch("store", BAD_ADDRESS)
        return 0
    if asked.mib:
        cuda.allocate(asked.mib << 20)
        tell("memory", mib=asked.mib)
    until = time.monotonic() + asked.seconds
    if asked.mode == "hold":
        time.sleep(asked.seconds)
    else:
        result, reported = cuda.allocate(4), False
        shape = (1, 1) if asked.one_thread else (cuda.blocks, THREADS)
        while time.monotonic() < until:
            cuda.launch("burn", KERNEL_NS, result, blocks=shape[0], threads=shape[1])
            if not reported:
                reported = True
                tell("busy")
    tell("end")
    return 0


def matmul(seconds: float) -> int:
    """Multiply matrices with torch."""
    torch: Any = importlib.import_module("torch")
    one, other = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    tell("context", pid=os.getpid(), count=torch.cuda.device_count())
    until, products = time.monotonic() + seconds, 0
    began = time.monotonic()
    while time.monotonic() < until:
        for _ in range(20):
            torch.matmul(one, other)
        torch.cuda.synchronize()
        if not products:
            tell("busy")
        products += 20
    tflops = products * 2 * 8192**3 / (time.monotonic() - began) / 1e12
    tell("end", tflops=round(tflops, 1))
    return 0


def rank() -> int:
    """Sum the ones of all ranks, and train a layer for three steps in DistributedDataParallel."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl")
    ones = torch.ones(1, device="cuda")
    distributed.all_reduce(ones)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(16, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    tell("end", sum=float(ones.item()), ranks=distributed.get_world_size())
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
