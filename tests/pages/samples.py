"""Applications to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Diagnosis, Evidence, Fault, Phase
from dlapp.values.report import (
    ApplicationView,
    Cause,
    ContainerDiagnosis,
    ContainerView,
    FinalStatus,
    OutputView,
    State,
)
from dlapp.values.usage import GpuHours, MemoryReceipt, Receipt

if TYPE_CHECKING:
    from dlapp.pages.page import Extras

APP = ApplicationId(1474893803111, 42)
START_MS = 1474899851575
SECONDS = {"starting": 1.0, "fetching": 9.0, "running": 80.0, "storing": 10.0}


def container(index: int, **more: Any) -> ContainerView:
    """A container that started a second after the application and ran for 100 s."""
    values: dict[str, Any] = {
        "container_id": ContainerId(APP, 1, index + 2),
        "role": "worker",
        "role_index": index,
        "index": index,
        "host": "node7",
        "phase": Phase.ENDED,
        "started_ms": START_MS + 1000,
        "finished_ms": START_MS + 101_000,
        "exit_code": 0,
        "receipt": Receipt(seconds=SECONDS),
    }
    return ContainerView(**values | more)


def application(*containers: ContainerView, **more: Any) -> ApplicationView:
    """An application that failed."""
    values: dict[str, Any] = {
        "application_id": APP,
        "attempt": 1,
        "state": State.FINISHED,
        "final_status": FinalStatus.FAILED,
        "cause": Cause.FAILED,
        "diagnostics": "container 1 (worker 1) failed: exit code 1",
        "username": "tony",
        "appname": "resnet",
        "submitted_ms": START_MS,
        "finished_ms": START_MS + 102_000,
        "total_containers": len(containers),
        "gcores": 2,
        "memory_mib": 2048,
        "vcores": 2,
        "containers": containers,
        "outputs": (OutputView(name="", target="hdfs:///out", partial="hdfs:///out.partial"),),
        "diagnosis": ContainerDiagnosis(
            index=1,
            diagnosis=Diagnosis(
                rule="cuda_oom",
                cause="CUDA is out of memory",
                fault=Fault.USER,
                next_step="use a smaller batch",
                evidence=Evidence(file="stderr", offset=1234, line="OutOfMemoryError: tried to allocate 2 GiB"),
            ),
        ),
        "receipt": Receipt(
            gpu_hours=GpuHours(granted=8, busy=5, idle=2, unknown=1),
            cpu_hours=1.5,
            memory=MemoryReceipt(asked_mib=16384, peak_mib=9120),
            suggestion="memory 16 GiB, peak 9",
            seconds={"running": 80.0},
        ),
    }
    return ApplicationView(**values | more)


def everything() -> Extras:
    """All that a report may have besides."""
    from dlapp.pages.curves import Curve, CurvePoint
    from dlapp.pages.page import Extras, LogEnd

    points = [CurvePoint(10.0 * n, None if n == 3 else float(n), n - 0.5, n + 0.5) for n in range(10)]
    return Extras(
        curves={"": [Curve("CPU", "cores", points)], "container 1": [Curve("Memory", "GiB", points, 16.0)]},
        length_s=100.0,
        facts=[("dlapp", "0.1")],
        properties="[application]\nappname=resnet\n",
        logs=[LogEnd(1, "stdout", "the last line\n")],
        notes=["stdout of container 0 cannot be read"],
    )
