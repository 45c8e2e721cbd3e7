"""Make the pictures of docs/images again: python -m tests.pages.screenshots

The application is made up, the pages and the browser are real.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from pathlib import Path

from dlapp.pages.page import Extras, LogEnd, page
from dlapp.pages.usage_curves import time_axis, usage_curves
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Diagnosis, Fault, Phase
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus, LinkView, OutputView, State, TryView
from dlapp.values.usage import ByteCounts, ContainerSeries, DeviceUsage, GpuHours, MemoryReceipt, Receipt, Usage
from tests.pages.samples import APP
from tests.services.http.browser import Browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WORKERS, HOUR_MS = 8, 3_600_000
BEGIN_MS = 1_764_060_000_000
END_MS = BEGIN_MS + 3 * HOUR_MS
FAILED_MS = BEGIN_MS + HOUR_MS
PROPERTIES = """\
[application]
appname=resnet50
user_dev_workspace_path=/home/tony/resnet50
user_shell_script=train.sh
docker_image=registry.example.org/dl/pytorch:2.5
framework=torchrun

[resources]
containers=8
vcores=4
memory=32g
gcores=1

[to_hdfs]
output_path=model
hdfs=/user/tony/resnet50
"""
STDERR = """\
epoch 11 step 13680 loss 1.942 lr 0.0213 images/s 2914
epoch 11 step 13690 loss 1.937 lr 0.0213 images/s 2921
epoch 11 step 13700 loss 1.951 lr 0.0213 images/s 2908
saved model/resnet50.pt
"""
RESTART = Diagnosis(rule="xid", cause="GPU 0 reported Xid 79: it has fallen off the bus", fault=Fault.NODE)


def main() -> None:
    """Make all of them."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    IMAGES.mkdir(exist_ok=True)
    with Browser() as browser, tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "page.html"

        def take(name: str, text: str, width: int, height: int, scheme: str = "light", scale: float = 1.0) -> None:
            place.write_text(text)
            browser.prefer(scheme)
            browser.resize(width, is_phone=width < 500, scale=scale)
            browser.open(f"file://{place}")
            (IMAGES / name).write_bytes(browser.picture(height=height))

        report, live = _report(), _live()
        take("page-live.png", live, 1100, 1000)
        take("report-light.png", report, 1100, 1150)
        take("report-dark.png", report, 1100, 1150, "dark")
        take("report-phone.png", report, 360, 1100)


def _report() -> str:
    view = _application(END_MS)
    extras = _extras(view, END_MS)._replace(
        asks=[("worker", "8 containers of 32 GiB, 4 vcores, 1 GPU: train.sh in registry.example.org/dl/pytorch:2.5")],
        facts=[
            ("dlapp", "0.9.0"),
            ("yarn", "3.4.2"),
            ("images", "registry.example.org/dl/pytorch@sha256:5f1c4a5e0a2b…"),
            ("workspace", "sha256-9b1f6a0c27d4…"),
        ],
        properties=PROPERTIES,
        logs=[LogEnd(index, "stderr", STDERR) for index in range(WORKERS)],
    )
    return page(view, END_MS, extras)


def _live() -> str:
    now_ms = BEGIN_MS + int(1.6 * HOUR_MS)
    view = replace(
        _application(now_ms),
        state=State.RUNNING,
        cause=None,
        final_status=FinalStatus.UNDEFINED,
        finished_ms=None,
        phase="running 8 of 8",
        outputs=(),
        links=(LinkView(name="tensorboard 0", url="http://10.0.4.17:31006/", container=0),),
    )
    return page(view, now_ms, _extras(view, now_ms), refreshes=True)


def _application(end_ms: int) -> ApplicationView:
    is_over = end_ms == END_MS
    busy_hours = (end_ms - BEGIN_MS) / HOUR_MS * WORKERS
    seconds = {"starting": 96.0, "pulling": 620.0, "fetching": 1900.0, "waiting": 300.0}
    return ApplicationView(
        application_id=APP,
        attempt=1,
        state=State.FINISHED,
        final_status=FinalStatus.SUCCEEDED,
        cause=Cause.SUCCEEDED,
        username="tony",
        appname="resnet50",
        queue="research",
        project="vision",
        tags=("imagenet", "baseline"),
        submitted_ms=BEGIN_MS,
        started_ms=BEGIN_MS + 9000,
        finished_ms=end_ms,
        total_containers=WORKERS,
        memory_mib=WORKERS << 15,
        vcores=4 * WORKERS,
        gcores=WORKERS,
        containers=tuple(_worker(index, end_ms, is_over=is_over) for index in range(WORKERS)),
        outputs=(OutputView(name="", target="hdfs://cluster/user/tony/resnet50", committed=True),),
        receipt=Receipt(
            gpu_hours=GpuHours(granted=busy_hours, busy=busy_hours * 0.81, idle=busy_hours * 0.19),
            cpu_hours=busy_hours * 3.1,
            memory=MemoryReceipt(asked_mib=32 << 10, peak_mib=9320, is_exact=True),
            seconds={**seconds, "running": busy_hours * 3600 - 3100, **({"storing": 64.0} if is_over else {})},
            bytes=ByteCounts(input=150 << 30, output=98 << 20 if is_over else 0, read=163 << 30, written=12 << 30),
            energy_wh=busy_hours * 246,
            suggestion="memory: asked 32 GiB, the peak is 9.1 GiB" if is_over else "",
        ),
    )


def _worker(index: int, end_ms: int, *, is_over: bool) -> ContainerView:
    start_ms = FAILED_MS + 40_000 + 900 * index
    seconds = {"starting": 6.0, "pulling": 4.0, "fetching": 20.0 + 3 * index, "waiting": 41.0 - 3 * index}
    first = {"starting": 6.0, "pulling": 74.0, "fetching": 180.0 + 14 * index, "waiting": 120.0 - 14 * index}
    failed = index == 3
    earlier = TryView(
        container_id=ContainerId(APP, 1, index + 2),
        attempt=1,
        host=f"gpu{index + 1:02d}",
        started_ms=BEGIN_MS + 9000,
        finished_ms=FAILED_MS,
        exit_code=134 if failed else None,
        message="the program was aborted" if failed else "its gang was restarted",
        diagnosis=RESTART if failed else None,
        receipt=Receipt(seconds={**first, "running": (FAILED_MS - BEGIN_MS) / 1000 - sum(first.values()) - 9}),
    )
    ran_s = (end_ms - start_ms) / 1000 - sum(seconds.values())
    return ContainerView(
        container_id=ContainerId(APP, 1, index + 10),
        role="worker",
        role_index=index,
        index=index,
        attempt=2,
        host="gpu09" if failed else f"gpu{index + 1:02d}",
        phase=Phase.ENDED if is_over else Phase.RUNNING,
        progress=None if is_over else 0.53,
        metrics={"loss": 1.951 if is_over else 2.417},
        step=13700 if is_over else 7200,
        gpus=(index % 4,),
        started_ms=start_ms,
        finished_ms=end_ms if is_over else None,
        exit_code=0 if is_over else None,
        log_url=f"http://gpu{index + 1:02d}:8042/node/containerlogs/x/tony",
        earlier=(earlier,),
        receipt=Receipt(seconds={**seconds, "running": ran_s - 8, **({"storing": 8.0} if is_over else {})}),
        usage=None
        if is_over
        else Usage(at_ms=end_ms, cpu_cores=3.1 + index / 20, memory_mib=8900 + 40 * index, devices=(_device(index),)),
    )


def _device(index: int) -> DeviceUsage:
    return DeviceUsage(index=index % 4, utilisation=0.91 + index / 200)


def _extras(view: ApplicationView, end_ms: int) -> Extras:
    begin_ms, end_ms = time_axis(view, end_ms)
    curves = usage_curves([_series(index, end_ms) for index in range(WORKERS)], begin_ms, end_ms)
    return Extras(curves=curves, length_s=(end_ms - begin_ms) / 1000)


def _series(index: int, end_ms: int) -> ContainerSeries:
    chance, step_ms = random.Random(index), 90_000
    count = (end_ms - BEGIN_MS) // step_ms

    def column(mean: float, spread: float, start: int = 3) -> dict[str, list[float | None]]:
        means: list[float | None] = []
        for place in range(count):
            at_ms = BEGIN_MS + place * step_ms
            is_idle = place < start or FAILED_MS <= at_ms < FAILED_MS + 120_000
            means.append(0.0 if is_idle else mean + spread * (chance.random() - 0.5) + spread * math.sin(place / 9) / 4)
        ranges = {name: [item and max(0.0, item + by * spread) for item in means] for name, by in _RANGE.items()}
        return {"mean": means, **ranges}

    gpu = column(0.92, 0.06)
    columns = {
        "cpu_cores": column(3.1, 0.5),
        "memory_mib": column(8900.0, 300.0),
        f"gpu{index % 4}.utilisation": {name: [v and min(1.0, v) for v in values] for name, values in gpu.items()},
    }
    return ContainerSeries(
        container_id=ContainerId(APP, 1, index + 2),
        index=index,
        attempt=1,
        start_ms=BEGIN_MS,
        step_ms=step_ms,
        columns=dict(columns),
    )


_RANGE = {"min": -0.6, "max": 0.6}

if __name__ == "__main__":
    main()
