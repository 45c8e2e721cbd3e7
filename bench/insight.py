"""What it costs to know what applications use: in a task, and in the memory of an ApplicationMaster.

``sampling``: processor time of a task's samples and reports, over the time between them, for a payload of ten
processes, with the processes that this machine has. ``am-memory-200``: resident memory of a process with the state of
an ApplicationMaster of 200 containers, after ten hours of reports with use, over the same without. Both reports come to
the same code as those of tasks; the processes differ in nothing else. ``report-200``: the page on 200 containers and
ten hours, from the file with their use to the bytes of the page [s]. ``report-at-end``: what an ApplicationMaster on
one machine does after an application of four containers is on record, to leave its report, with loading all for it
[s]. ``page-1000``: from a browser's request for the page of 1,000 running containers to its first contentful paint,
with making the page [s]. ``diagnose``: the cause of a failure in a log of 100 MiB [s].
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import Row

NEEDS = ("chromium",)
CONTAINERS, HOURS, SAMPLES, PROCESSES = 200, 10, 200, 10
TASKS, LOADS = 1000, 5
ENDS, END_CONTAINERS = 5, 4
REPORT_EVERY_S = 10


def rows() -> list[Row]:
    """Measure all of the above."""
    return [_sampling(), _am_memory(), _report(), _report_at_end(), _page(), _diagnose()]


def _sampling() -> Row:
    from dlapp.system.processes.resource_counters import read_tree
    from dlapp.task.usage import SAMPLE_EVERY_S, UsageMeter

    script = "; ".join(["sleep 1000 &"] * PROCESSES).replace("&;", "&") + " echo ready; wait"
    payload = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert payload.stdout is not None
        payload.stdout.readline()
        now_s = [0.0]
        meter = UsageMeter(1024, clock=lambda: now_s[0])
        meter.begin_run(lambda: read_tree(payload.pid))
        began_s = time.process_time()
        for _ in range(SAMPLES):
            now_s[0] += 1000.0  # one is due each time
            meter.sample()
            meter.measured()
        one_s = (time.process_time() - began_s) / SAMPLES
    finally:
        os.killpg(payload.pid, signal.SIGKILL)
        payload.wait()
    count = sum(one.isdigit() for one in os.listdir("/proc"))
    conditions = {"sample_ms": one_s * 1000, "every_s": SAMPLE_EVERY_S, "processes_of_the_machine": count}
    return Row(name="sampling", ratio=one_s / SAMPLE_EVERY_S, goal=0.005, better="lower", conditions=conditions)


def _am_memory() -> Row:
    without_kib, with_kib = _resident_kib(use=False), _resident_kib(use=True)
    return Row(
        name="am-memory-200",
        ratio=with_kib / without_kib,
        goal=1.15,
        better="lower",
        conditions={"containers": CONTAINERS, "hours": HOURS, "with_kib": with_kib, "without_kib": without_kib},
    )


def _report() -> Row:
    from dlapp.pages.page import Extras, page
    from dlapp.pages.usage_curves import usage_curves
    from dlapp.values.serialization import from_json
    from dlapp.values.usage import UsageHistory
    from tests.pages.samples import START_MS, application, container

    data = _usage_file(CONTAINERS)
    view = application(*map(container, range(CONTAINERS)))
    began, cpu_began_s = time.perf_counter(), time.process_time()
    end_ms = START_MS + HOURS * 3_600_000
    curves = usage_curves(from_json(UsageHistory, json.loads(data)).containers, START_MS, end_ms)
    text = page(view, end_ms, Extras(curves=curves, length_s=HOURS * 3600.0))
    seconds = time.perf_counter() - began
    cpu_s = time.process_time() - cpu_began_s
    conditions = {
        "page_bytes": len(text.encode()),
        "file_bytes": len(data),
        "cpu_s": cpu_s,
        "containers": CONTAINERS,
        "hours": HOURS,
    }
    return Row(name="report-200", ratio=seconds, goal=2.0, better="lower", conditions=conditions)


def _usage_file(containers: int) -> str:
    """Return a file with the use of so many containers over time."""
    from tests.pages.samples import START_MS, container

    chance, buckets = random.Random(1), 120
    columns = ("cpu_cores", "memory_mib", "gpu0.utilisation", "gpu0.memory_mib", "gpu0.power_w", "metric.loss")
    step_ms = HOURS * 3_600_000 // buckets
    return json.dumps(
        {
            "version": 1,
            "containers": [
                {
                    "container_id": str(container(index).container_id),
                    "index": index,
                    "attempt": 1,
                    "start_ms": START_MS,
                    "step_ms": step_ms,
                    "columns": {
                        name: {part: [chance.random() for _ in range(buckets)] for part in ("mean", "min", "max")}
                        for name in columns
                    },
                }
                for index in range(containers)
            ],
        }
    )


def _report_at_end() -> Row:
    seconds = statistics.median(float(_own_process("report")) for _ in range(ENDS))
    conditions = {"containers": END_CONTAINERS, "processes": ENDS}
    return Row(name="report-at-end", ratio=seconds, goal=0.3, better="lower", conditions=conditions)


def _write_report() -> None:
    """Write the report of an application that has ended, and print how long that took [s]."""
    import dlapp.am.loop  # what an ApplicationMaster has loaded
    from dlapp.am.application_dir.local import LocalApplicationDir
    from dlapp.values.serialization import to_json
    from tests.am.test_loop import SUBMISSION
    from tests.pages.samples import application, container

    assert dlapp.am.loop
    view = application(*map(container, range(END_CONTAINERS)))
    with tempfile.TemporaryDirectory() as directory:
        for one in view.containers:
            logs = Path(directory, "containers", str(one.container_id))
            logs.mkdir(parents=True)
            for stream in ("stdout", "stderr"):
                (logs / stream).write_bytes(b"step 1234 loss 0.1234 accuracy 0.9876\n" * 10_000)
        Path(directory, "usage.json").write_text(_usage_file(END_CONTAINERS))
        Path(directory, "submission.json").write_text(json.dumps(to_json(SUBMISSION)))
        began = time.perf_counter()
        LocalApplicationDir(directory).write_report(view)
        seconds = time.perf_counter() - began
        assert "accuracy 0.9876" in Path(directory, "report.html").read_text()
    print(seconds)


def _page() -> Row:
    from dlapp.pages.page import page
    from dlapp.values.messages import Phase
    from dlapp.values.report import State
    from dlapp.values.usage import DeviceUsage, Usage
    from tests.pages.samples import START_MS, application, container
    from tests.services.http.browser import Browser
    from tests.services.http.http_server import Answer, Request, http_server

    usage = Usage(at_ms=START_MS, cpu_cores=1.5, memory_mib=9000, devices=(DeviceUsage(index=0, utilisation=0.5),))
    more = {"phase": Phase.RUNNING, "finished_ms": None, "exit_code": None, "usage": usage, "metrics": {"loss": 1.5}}
    urls = [f"http://node{index % 100}:8042/node/containerlogs/{index}/tony" for index in range(TASKS)]
    tasks = [container(index, log_url=urls[index], **more) for index in range(TASKS)]
    view = application(*tasks, state=State.RUNNING, cause=None, finished_ms=None, diagnosis=None)
    sizes = []

    def answer(_: Request) -> Answer:
        data = page(view, START_MS + 100_000, refreshes=False).encode()
        sizes.append(len(data))
        return Answer(body=data, headers=(("Content-Type", "text/html; charset=utf-8"),))

    painted = "new Promise(done => new PerformanceObserver(found => found.getEntries().forEach(one => one.name ==="
    painted += " 'first-contentful-paint' && done(one.startTime))).observe({type: 'paint', buffered: true}))"
    taken_s = []
    with http_server(answer) as url, Browser() as browser:
        for number in range(LOADS + 1):
            browser.open(f"{url}/?{number}")
            taken_s.append(browser.value(painted) / 1000)
    conditions = {"page_bytes": sizes[-1], "tasks": TASKS, "loads": LOADS, "longest_s": max(taken_s[1:])}
    return Row(name="page-1000", ratio=statistics.median(taken_s[1:]), goal=1.0, better="lower", conditions=conditions)


def _diagnose() -> Row:
    from dlapp.diagnosis.rules import load_rules
    from dlapp.diagnosis.search import diagnose, read_tail

    with tempfile.NamedTemporaryFile() as file:
        line = b"2026-01-31 12:00:00 step 1234 loss 0.1234 accuracy 0.9876\n"
        for _ in range(100):
            file.write(line * ((1 << 20) // len(line)))
        file.write(b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
        file.flush()
        rules = load_rules()
        began = time.perf_counter()
        found = diagnose(rules, message="", exit_code=1, signal=None, logs=[read_tail(file.name)])
        seconds = time.perf_counter() - began
    if found is None:
        raise SystemExit("Error: the cause was not found")
    return Row(name="diagnose", ratio=seconds, goal=0.5, better="lower", conditions={"rule": found.rule, "mib": 100})


def _resident_kib(*, use: bool) -> int:
    """Return VmRSS of a process that took all reports [KiB]."""
    return int(_own_process("with" if use else "without"))


def _own_process(what: str) -> str:
    """Return what a process of its own prints."""
    command = [sys.executable, "-m", "bench.insight", what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return done.stdout


def _take_reports(*, use: bool) -> None:
    """Take ten hours of reports of all containers, and print what memory this process has then."""
    import dlapp.am.loop  # what an ApplicationMaster has loaded
    from dlapp.values.messages import Phase
    from dlapp.values.spec import RoleSpec
    from dlapp.values.usage import DeviceUsage, Receipt, Usage
    from tests.am.driving import Driver

    assert dlapp.am.loop
    am = Driver(RoleSpec(instances=CONTAINERS))
    numbers = range(2, 2 + CONTAINERS)
    am.running(*numbers)
    am.view()
    for second in range(0, HOURS * 3600, REPORT_EVERY_S):
        am.all.clear()
        for number in numbers:
            fields: dict[str, Any] = {}
            if use:
                device = DeviceUsage(index=0, utilisation=0.5, memory_mib=1000 + second, power_w=70.0, temperature_c=60)
                usage = Usage(at_ms=second * 1000, cpu_cores=1.5, memory_mib=second, devices=(device,))
                fields = {"usage": usage, "receipt": Receipt(seconds={"running": float(second)})}
            am.report(number, Phase.RUNNING, **fields)
    am.view()
    with open("/proc/self/status", encoding="ascii") as file:
        print(next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")))


if __name__ == "__main__":
    if sys.argv[1] == "report":
        _write_report()
    else:
        _take_reports(use=sys.argv[1] == "with")
