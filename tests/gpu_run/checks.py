"""All checks of `make test-gpu`, in their order; the last one runs whatever time is left."""

from __future__ import annotations

from tests.gpu_run import facts, failures, inventory, isolation, payloads, sharing
from tests.gpu_run.results import Check

CHECKS = (
    Check("B01", "facts", facts.facts, 2, 30),
    Check("B02", "questions to NVML", facts.questions, 2, 30),
    Check("B03", "discovery", inventory.discovery, 3, 30),
    Check("B04", "idle GPU", inventory.idle_gpu, 3, 30),
    Check("B05", "ledger", inventory.ledger, 6, 40),
    Check("B06", "NVML as another user", inventory.other_user, 2, 20),
    Check("B07", "program on a GPU", payloads.payload, 45, 120),
    Check("B08", "open device files", payloads.device_files, 12, 50, needs_cuda=True),
    Check("B09", "two applications, one GPU", payloads.queue, 20, 90),
    Check("B10", "program without a GPU", payloads.without_gpu, 6, 60),
    Check("B11", "out of memory", failures.out_of_memory, 8, 60, needs_cuda=True),
    Check("B12", "SIGKILL of everything", failures.killed, 15, 80),
    Check("B13", "Xid of a program", failures.xid, 10, 70, needs_cuda=True),
    Check("B14", "foreign process, free GPU", sharing.on_free_gpu, 12, 70),
    Check("B15", "foreign process, leased GPU", sharing.on_leased_gpu, 25, 80),
    Check("B16", "pid namespaces", sharing.pid_namespaces, 6, 40, needs_cuda=True),
    Check("B18b", "more GPUs than there are", payloads.refusal, 1, 15),
    Check("B22", "Landlock", isolation.landlock, 3, 40, needs_cuda=True),
    Check("B23", "hidden device file", isolation.closed_node, 3, 40, needs_cuda=True),
    Check("B24", "MIG", facts.mig, 1, 15),
    Check("B21", "activity by GPM", isolation.activity, 10, 50, needs_cuda=True),
    Check("B19", "MPS: limit of memory", sharing.mps_memory, 12, 60, needs_cuda=True),
    Check("B20", "MPS: fault of a client", sharing.mps_fault, 12, 60, needs_cuda=True),
    Check("B18", "torchrun and NCCL", payloads.ranks, 25, 90, needs_cuda=True),
    Check("B25", "tests with the mark gpu", isolation.own_tests, 8, 60),
    Check("B17", "idle_guard", payloads.idle_guard, 42, 90),
    Check("B26", "nothing left", facts.nothing_left, 5, 30),
)
"""What needs the most time and says the least for others is late: it is skipped where time is short."""
