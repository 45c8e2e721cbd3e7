"""Test the page of an application: its parts, and that it is one well-formed file in which texts stay texts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from dlapp.pages.containers import MAX_SHOWN, shown_containers
from dlapp.pages.curves import Curve, CurvePoint, figures
from dlapp.pages.page import Extras, LogEnd, page
from dlapp.pages.style import STYLE
from dlapp.pages.text import duration, local_time
from dlapp.pages.timeline import Bar, bars_of, timeline
from dlapp.pages.usage_curves import usage_curves
from dlapp.value import replace
from dlapp.values.messages import Phase
from dlapp.values.report import Cause, CheckpointView, IdleGpus, LinkView, OutputView, RestartView, State, TryView
from dlapp.values.usage import ContainerSeries, ForeignProcess, GpuMemory, Receipt
from dlapp.values.waiting import Waiting
from tests.pages.samples import APP, SECONDS, START_MS, application, container, everything

NOW_MS = START_MS + 200_000
EVIL = "<script>alert(1)</script>\"'&"
_EMPTY = {"meta", "br"}


class Document(HTMLParser):
    """A page, as a browser reads it. Raises AssertionError if an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes_of(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_report_has_all_parts() -> None:
    found = Document(page(application(container(0), container(1, exit_code=1)), NOW_MS, everything()))
    for text in (
        "container 1 (worker 1) failed: exit code 1",
        "CUDA is out of memory",
        "OutOfMemoryError: tried to allocate 2 GiB",
        "stderr, byte 1234, of container 1",
        "use a smaller batch",
        "memory 16 GiB, peak 9",
        "5.00 busy, 2.00 idle, 1.00 not known",
        "8.9 GiB of 16 GiB",
        "one container, the largest of some samples",
        "hdfs:///out: kept in hdfs:///out.partial",
        "appname=resnet",
        "the last line",
        "stdout of container 0 cannot be read",
    ):
        assert text in found.text
    headings = ["Cause", "Receipt", "Timeline", "Use of resources", "Containers", "Output", "Versions", "Properties"]
    assert [heading for heading in headings if heading not in found.text] == []
    assert found.attributes_of("script") == found.attributes_of("link") == found.attributes_of("img") == []


@pytest.mark.parametrize(
    ("checkpoint", "text"),
    [
        (CheckpointView(), "none"),
        (CheckpointView(why="model.pt is being written"), "nonemodel.pt is being written"),
        (CheckpointView(number=3, step=40, at_ms=NOW_MS), "step 40{at}"),
        (
            CheckpointView(number=3, epoch=2, at_ms=NOW_MS, container=1, why="its disk is full"),
            "epoch 2{at}, of container 1, no newer one: its disk is full",
        ),
        (CheckpointView(number=3, at_ms=NOW_MS), "{at}"),
    ],
)
def test_the_newest_checkpoint_or_the_reason_for_none_is_shown(checkpoint: CheckpointView, text: str) -> None:
    found = Document(page(application(container(0), checkpoint=checkpoint), NOW_MS))
    assert f"checkpoint{text.format(at=local_time(NOW_MS))}" in found.text


@pytest.mark.proves("page-text")
def test_foreign_text_is_escaped() -> None:
    one = container(
        0, role="w", host=EVIL, message=EVIL, detail=EVIL, metrics={EVIL: 1.0}, log_url="javascript:alert(1)"
    )
    view = application(
        one,
        appname=EVIL,
        username=EVIL,
        diagnostics=EVIL,
        changes=(EVIL,),
        restarts=(RestartView(role="w", generation=1, at_ms=NOW_MS, cause=EVIL),),
        outputs=(OutputView(name="", target=EVIL, partial=EVIL),),
    )
    extras = Extras(facts=[(EVIL, EVIL)], properties=EVIL, logs=[LogEnd(0, "stderr", EVIL)], notes=[EVIL])
    found = Document(page(view, NOW_MS, extras, refreshes=True))
    assert found.attributes_of("script") == []
    assert [item["href"] for item in found.attributes_of("a")] == ["?still=1", "?log=0.stdout", "?log=0.stderr"]
    assert found.text.count(EVIL) >= 12
    assert f", {EVIL}" in found.text.partition("restarted: generation 1 at ")[2]


def test_the_page_of_a_running_application_is_loaded_again_and_leads_to_logs() -> None:
    running = container(0, phase=Phase.RUNNING, finished_ms=None, exit_code=None, log_url="http://node7:8042/logs/x")
    idle = IdleGpus(containers=(0,), since_ms=NOW_MS, message="all GPUs of container 0 below 5 %")
    view = application(
        running, state=State.RUNNING, cause=None, finished_ms=None, diagnosis=None, phase="running 1 of 1", idle=idle
    )
    live = Document(page(view, NOW_MS, refreshes=True))
    assert {"http-equiv": "refresh", "content": "5"} in live.attributes_of("meta")
    logs = ["?log=0.stdout", "?log=0.stderr"]
    assert [item["href"] for item in live.attributes_of("a")] == ["?still=1", "http://node7:8042/logs/x", *logs]
    assert "running 1 of 1" in live.text
    assert idle.message in live.text
    report = Document(page(view, NOW_MS))
    assert "refresh" not in [item.get("http-equiv") for item in report.attributes_of("meta")]
    assert report.attributes_of("a") == []


def test_a_reader_can_stop_the_refresh_of_a_page() -> None:
    still = Document(page(application(container(0)), NOW_MS, refreshes=False))
    assert "refresh" not in [item.get("http-equiv") for item in still.attributes_of("meta")]
    assert "?" in [item["href"] for item in still.attributes_of("a")]


def test_services_have_links() -> None:
    urls = ("http://10.0.0.1:6006/", "javascript:alert(1)")
    links = tuple(LinkView(name="tensorboard 0", url=url, container=0, ready=False) for url in urls)
    found = Document(page(application(container(0), links=links), NOW_MS, refreshes=True))
    assert "http://10.0.0.1:6006/, not ready" in found.text
    assert urls[0] in [item["href"] for item in found.attributes_of("a")]
    assert urls[1] not in [item["href"] for item in found.attributes_of("a")]


def test_failed_ones_of_many_containers_have_a_line() -> None:
    view = application(*map(container, range(MAX_SHOWN)), container(5000, exit_code=1))
    shown = shown_containers(view)
    assert (len(shown), shown[-1].index) == (MAX_SHOWN, 5000)
    assert "1 more are not shown" in page(view, NOW_MS)


def test_the_page_of_an_application_that_waits_names_the_reason() -> None:
    waiting = Waiting(code="gang_partial", message="1 of 2 <held>")
    running = {"state": State.RUNNING, "cause": None, "diagnosis": None, "waiting": waiting}
    assert "1 of 2 &lt;held&gt; (gang_partial)" in page(application(container(0), **running), NOW_MS, refreshes=True)
    over = application(container(0), waiting=waiting, state=State.FINISHED)
    assert "gang_partial" not in page(over, NOW_MS)


def test_the_receipt_has_the_peak_of_gpu_memory_and_names_foreign_processes() -> None:
    receipt = Receipt(
        gpu_memory=(GpuMemory(index=0, memory_mib=81_920, peak_mib=11_264),),
        foreign_processes=(
            ForeignProcess(gpu="0", uuid="GPU-0", pid=7, host="node1", program="<b>", user="ann", peak_mib=5018),
        ),
    )
    found = page(application(receipt=receipt), NOW_MS)
    assert "11 GiB of 80 GiB" in found
    assert "process 7 (&lt;b&gt;, user ann), not of this application, used 4.9 GiB of gpu0 on node1" in found


def test_an_application_that_never_started_has_a_page() -> None:
    found = Document(page(application(cause=Cause.KILLED, diagnosis=None, receipt=None, outputs=()), NOW_MS))
    assert "Timeline" not in found.text
    assert str(APP) in found.text


def test_the_page_of_an_ended_application_shows_next_steps_and_unstarted_roles() -> None:
    failed = application(container(0), resumable=True, not_started={"eval": 2})
    for line in ("never started: eval (2 containers)", f"dlapp-launcher --resume {APP}"):
        assert line in page(failed, START_MS + 200_000)
        running = replace(failed, state=State.RUNNING, cause=None)
        assert line not in page(running, START_MS + 200_000)
    assert "--resume" not in page(replace(failed, cause=Cause.SUCCEEDED), START_MS + 200_000)


def test_phases_are_bars_in_their_order() -> None:
    at_ms = float(START_MS + 1000)
    assert bars_of(container(0), NOW_MS) == [
        Bar("starting", at_ms, at_ms + 1000),
        Bar("fetching", at_ms + 1000, at_ms + 10_000),
        Bar("running", at_ms + 10_000, at_ms + 90_000),
        Bar("storing", at_ms + 90_000, at_ms + 100_000),
    ]


def test_the_last_bar_of_a_running_container_ends_now() -> None:
    one = container(
        0, phase=Phase.RUNNING, finished_ms=None, exit_code=None, receipt=Receipt(seconds={"starting": 1.0})
    )
    assert bars_of(one, NOW_MS)[-1] == Bar("running", START_MS + 2000.0, float(NOW_MS))


def test_a_failure_is_marked_at_its_end() -> None:
    assert bars_of(container(0, exit_code=None, signal=9), NOW_MS)[-1].kind == "failed"


@pytest.mark.parametrize("seconds", [{}, {"running": 1e9}, {"running": -5.0}])
def test_bars_stay_within_the_life_of_their_container(seconds: dict[str, float]) -> None:
    bars = bars_of(container(0, receipt=Receipt(seconds=seconds)), NOW_MS)
    assert bars[0].begin_ms == START_MS + 1000
    assert bars[-1].end_ms == START_MS + 101_000


def test_earlier_tries_are_in_the_line_of_their_index() -> None:
    one = container(0, attempt=2, started_ms=START_MS + 50_000)
    former = TryView(
        container_id=one.container_id, attempt=1, started_ms=START_MS + 1000, finished_ms=START_MS + 40_000, exit_code=3
    )
    view = application(replace(one, earlier=(former,)))
    picture = timeline(view, view.containers, NOW_MS)
    assert "0 try 1: failed" in picture
    assert "0 try 2: running" in picture


def test_curves_have_gaps_at_unknown_values() -> None:
    values: list[float | None] = [1.0, 2.0, None, 3.0]
    text = figures([Curve("CPU", "cores", [CurvePoint(10.0 * n, one) for n, one in enumerate(values)])], 40.0)
    assert text.count("<polyline") == 2
    assert "mean 2 cores, max 3 cores" in text


def test_a_curve_of_unknown_values_is_left_out() -> None:
    assert figures([Curve("energy", "W", [CurvePoint(0.0, None)])], 1.0) == ""


def test_a_report_on_200_containers_and_ten_hours_is_below_2_mb() -> None:
    points = [CurvePoint(600.0 * n, 0.123 + n / 10, 0.1, 0.987 + n / 10) for n in range(60)]
    curves = {
        f"container {n}": [Curve(what, "%", points, 100.0) for what in ("CPU", "Memory", "GPU")] for n in range(200)
    }
    logs = [LogEnd(n, "stderr", "a line of a log\n" * 30) for n in range(16)]
    text = page(application(*map(container, range(200))), NOW_MS, Extras(curves=curves, length_s=36_000, logs=logs))
    assert len(text.encode()) < 2_000_000
    Document(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.25, "1.2 s"), (59, "59 s"), (200, "3 min 20 s"), (18_420, "5 h 07 min"), (273_600, "3 d 04 h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def _luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(2 * item for item in colour)
    parts = [int(digits[offset : offset + 2], 16) / 255 for offset in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_colours_of_text_have_the_contrast_of_wcag_aa() -> None:
    light, dark = (dict(re.findall(r"--(\w+):#([0-9a-f]{3,8})\b", part)) for part in STYLE.split("@media", 2)[:2])
    for colours in (light, light | dark):
        paper = _luminance(colours["paper"])
        for name in ("ink", "soft", "good", "bad", "link"):
            lighter, darker = sorted((paper, _luminance(colours[name])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


def test_each_phase_has_a_colour() -> None:
    assert [name for name in (*SECONDS, *(item.value for item in Phase)) if f"--{name}:" not in STYLE] == ["ended"]


def series(index: int, columns: dict[str, list[float | None]], start_ms: int = START_MS) -> ContainerSeries:
    values = {name: {"mean": one, "min": one, "max": one} for name, one in columns.items()}
    return ContainerSeries(
        container_id=container(index).container_id,
        index=index,
        attempt=1,
        start_ms=start_ms,
        step_ms=10_000,
        columns=dict(values),
    )


def test_the_use_of_each_container_is_drawn_in_the_units_of_people() -> None:
    columns: dict[str, list[float | None]] = {
        "memory_mib": [1024.0, None],
        "gpu3.utilisation": [0.5, 1.0],
        "metric.loss": [3.0, 2.0],
        "odd": [1.0],
    }
    ((name, curves),) = usage_curves([series(0, columns)], START_MS, START_MS + 20_000).items()
    assert name == ""
    assert [(curve.title, curve.unit) for curve in curves] == [
        ("Memory", "GiB"),
        ("GPU 3 utilisation", "%"),
        ("loss", ""),
    ]
    assert [(p.at_s, p.mean) for p in curves[0].points] == [(5.0, 1.0), (15.0, None)]
    assert [p.mean for p in curves[1].points] == [50.0, 100.0]


def test_the_use_of_all_containers_is_the_sum_of_known_values() -> None:
    one = series(0, {"cpu_cores": [1.0] * 10, "gpu0.utilisation": [0.2] * 10})
    late = series(1, {"cpu_cores": [2.0] * 5, "gpu0.utilisation": [1.0] * 5}, START_MS + 50_000)
    found = usage_curves([one, late], START_MS, START_MS + 100_000)
    cpu, _, gpus = found[""]
    assert {round(p.mean or 0, 6) for p in cpu.points if p.at_s < 50} == {1.0}
    assert {round(p.mean or 0, 6) for p in cpu.points if p.at_s > 50} == {3.0}
    assert {(round(p.mean or 0, 6), p.least, p.most) for p in gpus.points if p.at_s > 50} == {(60.0, 20.0, 100.0)}
    assert list(found) == ["", "container 0", "container 1"]


def test_curves_of_many_containers_have_fewer_points() -> None:
    many = [series(n, {f"gpu{gpu}.power_w": [float(k) for k in range(200)] for gpu in range(16)}) for n in range(60)]
    found = usage_curves(many, START_MS, START_MS + 2_000_000)
    points = found["container 7"][0].points
    assert len(points) <= 25
    assert (points[0].least, points[-1].most) == (0.0, 199.0)
