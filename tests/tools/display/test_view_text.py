"""Test what the commands print of a view, to the character."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.am.decisions.assessment import Assessment, container_name, failure, of_end, of_result
from dlapp.cluster.engine import ContainerEnd
from dlapp.tools.applications.list import STATES
from dlapp.tools.display.progress import PlainLines, picture_lines
from dlapp.tools.display.receipt import cost_text, receipt_lines, usage_text
from dlapp.tools.display.status import ErrorTail, answer_lines, kept_lines, status_lines
from dlapp.tools.display.view import (
    derived,
    elapsed,
    elapsed_ms_of,
    fitted_list_lines,
    list_lines,
    local_time,
    payload_exit_text,
    phase_text,
    short_ids,
    state_word,
    width,
)
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import MAX_NAMED, Fault, LeftOutEntry, NewFile, NotStored, Phase, TaskResult
from dlapp.values.report import (
    ApplicationView,
    Cause,
    CheckpointView,
    ContainerView,
    FinalStatus,
    IdleGpus,
    OutputView,
    RestartView,
    State,
)
from dlapp.values.serialization import to_json
from dlapp.values.usage import (
    ByteCounts,
    DeviceUsage,
    ForeignProcess,
    GpuHours,
    GpuMemory,
    MemoryReceipt,
    Receipt,
    Usage,
)

APP = ApplicationId(1474893803111, 42)
START_MS = 1474899851575
END_MS = 1474899897703


@pytest.fixture(autouse=True)
def _in_seoul(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def view(**more: Any) -> Any:
    values: dict[str, Any] = {
        "application_id": APP,
        "attempt": 1,
        "state": State.FINISHED,
        "final_status": FinalStatus.SUCCEEDED,
        "cause": Cause.SUCCEEDED,
        "username": "tony",
        "submitter": "tony",
        "appname": "'c3 deeplearning app caffe mnist example'",
        "submitted_ms": START_MS,
        "started_ms": START_MS + 1000,
        "finished_ms": END_MS,
        "total_containers": 1,
    }
    return to_json(ApplicationView(**{**values, **more}))


def container(index: int, **more: Any) -> ContainerView:
    values: dict[str, Any] = {"role": "worker", "role_index": index, "phase": Phase.ENDED, "finished_ms": END_MS}
    return ContainerView(container_id=ContainerId(APP, 1, index + 2), index=index, **{**values, **more})


def log(index: int) -> dict[str, Any]:
    name = str(ContainerId(APP, 1, index + 2))
    return {
        "index": index,
        "files": {stream: f"file:///logs/{name}/{stream}" for stream in ("stdout", "stderr", "dlapp.log")},
    }


def failed_view(**more: Any) -> Any:
    return view(**{"final_status": FinalStatus.FAILED, "cause": Cause.FAILED, **more})


def test_a_finished_application_starts_with_the_original_block_and_its_urls() -> None:
    lines = status_lines(view(), [log(0)], END_MS + 99_999)
    assert lines[:12] == [
        "DL App application_1474893803111_0042 is FINISHED",
        "Username : tony",
        "DL App ID : application_1474893803111_0042",
        "DL App Name : 'c3 deeplearning app caffe mnist example'",
        "startTime : 2016-09-26 23:24:11.575000",
        "finishTime : 2016-09-26 23:24:57.703000",
        "elapsedTime : 0:00:46.13",
        "stdout",
        "file:///logs/container_1474893803111_0042_01_000002/stdout",
        "stderr",
        "file:///logs/container_1474893803111_0042_01_000002/stderr",
        "succeeded after 0:00:46",
    ]


def test_while_it_runs_finish_time_is_empty_and_elapsed_counts_on() -> None:
    running = view(
        state=State.RUNNING, final_status=FinalStatus.UNDEFINED, cause=None, finished_ms=None, phase="running 3 of 4"
    )
    lines = status_lines(running, [], START_MS + 3_600_000)
    assert lines[0] == "DL App application_1474893803111_0042 is RUNNING"
    assert lines[5:10] == [
        "finishTime : ",
        "elapsedTime : 1:00:00.00",
        "running for 1:00:00",
        "phase : running 3 of 4",
        "next : dlapp-logs -f application_1474893803111_0042",
    ]
    waiting = view(state=State.ACCEPTED, cause=None, finished_ms=None, diagnostics="needs 2 gcores, 1 free")
    assert answer_lines(waiting, START_MS + 1500) == ["waiting for 0:00:01", "diagnostics : needs 2 gcores, 1 free"]


def test_urls_show_the_failed_or_first_container_or_all_on_request() -> None:
    logs = [log(0), log(1)]
    failed = failed_view(containers=(container(0, signal=9), container(1, exit_code=3)))

    def shown(of: Any, *, all_logs: bool = False) -> list[str]:
        lines = status_lines(of, logs, END_MS, all_logs=all_logs)
        urls = [line for line in lines if line.startswith("file:///logs/")]
        assert lines[7 : 7 + 2 * len(urls) : 2] == ["stdout", "stderr"] * (len(urls) // 2)
        return [url.rpartition("/")[0][-1:] for url in urls]

    assert shown(view()) == ["2", "2"]
    assert shown(failed) == ["3", "3"]
    assert shown(failed, all_logs=True) == ["2", "2", "3", "3"]
    assert status_lines(view(), [], END_MS)[-1].startswith("launchTime")


def test_the_answer_lists_end_cause_outputs_and_containers() -> None:
    failed = failed_view(
        diagnostics="container 1 (worker 1) failed: exit code 3",
        outputs=(OutputView(name="", target="file:///r", partial="file:///r.application_1.partial"),),
        containers=(
            container(0, exit_code=0, host="box", gpus=(0, 3)),
            container(1, exit_code=3, attempt=2, generation=1),
        ),
    )
    assert status_lines(failed, [], END_MS, tail=ErrorTail(1, ("Traceback", "ValueError: 3")))[7:] == [
        "failed after 0:00:46: container 1 exited with code 3",
        "diagnostics : container 1 (worker 1) failed: exit code 3",
        "stderr of container 1, last lines:",
        "  | Traceback",
        "  | ValueError: 3",
        "next : dlapp-logs --container 1 application_1474893803111_0042",
        "output : not committed to file:///r",
        "partial : kept at file:///r.application_1.partial",
        "containers",
        "INDEX  ROLE      PHASE  HOST  EXIT  GPUS  NOTE",
        "0      worker_0  ended  box   0     0,3",
        "1      worker_1  ended  -     3     -     attempt 2; generation 1",
        "finalStatus : FAILED",
        "cause : failed",
        "queue : default",
        "launchTime : 2016-09-26 23:24:12.575000",
    ]


@pytest.mark.parametrize(
    ("end", "headline", "command"),
    [
        ({"containers": (container(0, exit_code=137),)}, "container 0 exited with code 137", "--container 0"),
        ({"containers": (container(0, signal=11),)}, "container 0 was killed by signal 11", "--container 0"),
        # The one that the ApplicationMaster names, though another one has an exit code.
        (
            {
                "diagnostics": "container 1 (worker 1) failed: killed by signal 11",
                "containers": (container(0, exit_code=143), container(1, signal=11)),
            },
            "container 1 was killed by signal 11",
            "--container 1",
        ),
        # Its program ended well: dlapp's own log says why it failed.
        (
            {"diagnostics": "container 0 (worker 0) failed: no 'out'", "containers": (container(0, exit_code=0),)},
            "container 0 failed",
            "--own",
        ),
        # Nobody says that the container was to blame.
        ({"diagnostics": "the ApplicationMaster died", "containers": (container(0, signal=9),)}, "", "--own"),
        ({"diagnostics": "no such queue"}, "", None),
    ],
)
def test_the_headline_of_a_failure_names_the_container_to_blame_and_the_next_command_its_log(
    end: dict[str, Any], headline: str, command: str | None
) -> None:
    lines = answer_lines(failed_view(**end), END_MS)
    assert lines[0] == "failed after 0:00:46" + (f": {headline}" if headline else "")
    commands = [line.removeprefix("next : ") for line in lines if line.startswith("next : ")]
    assert commands == ([] if command is None else [f"dlapp-logs {command} application_1474893803111_0042"])


@pytest.mark.parametrize(
    ("cause", "commands"),
    [
        (Cause.FAILED, ["dlapp-logs --container 0", "dlapp-launcher --resume"]),
        (Cause.TIMED_OUT, ["dlapp-launcher --resume"]),
        (Cause.SOFT_KILLED, ["dlapp-launcher --resume"]),
        (Cause.SUCCEEDED, []),
    ],
)
def test_an_application_with_a_checkpoint_can_be_resumed_unless_it_succeeded(cause: Cause, commands: list[str]) -> None:
    one = view(cause=cause, resumable=True, containers=(container(0, exit_code=3),))
    found = [line.removeprefix("next : ") for line in answer_lines(one, END_MS) if line.startswith("next : ")]
    assert found == [f"{command} application_1474893803111_0042" for command in commands]


@pytest.mark.parametrize(
    ("checkpoint", "line"),
    [
        ({"number": 3, "step": 500, "epoch": 2, "at_ms": END_MS - 61_000}, " : step 500, 0:01:01 ago"),
        ({"number": 3, "epoch": 2, "at_ms": END_MS - 1000}, " : epoch 2, 0:00:01 ago"),
        ({"number": 3, "at_ms": END_MS + 5000}, " : 0:00:00 ago"),  # the clock of another machine
        (
            {"number": 3, "at_ms": END_MS, "why": "out/a is open for writing", "container": 1},
            " of container 1 : 0:00:00 ago; no newer one: out/a is open for writing",
        ),
        ({"why": "nothing was written in out"}, " : none: nothing was written in out"),
    ],
)
def test_the_step_and_the_age_of_the_newest_checkpoint_are_shown_or_why_there_is_none(
    checkpoint: dict[str, Any], line: str
) -> None:
    one = CheckpointView(**checkpoint)
    assert f"checkpoint{line}" in answer_lines(view(checkpoint=one), END_MS)
    runs = answer_lines(view(checkpoint=one, state=State.RUNNING, cause=None, finished_ms=None), END_MS)
    assert f"checkpoint{line.replace(' : none', ' : none yet')}" in runs


def test_roles_that_never_started_are_named_when_all_is_over() -> None:
    roles = {"eval": 2, "export": 1}
    failed = failed_view(not_started=roles, containers=(container(0, exit_code=3),))
    lines = status_lines(failed, [], END_MS)
    assert lines[lines.index("containers") - 1] == "notStarted : eval (2 containers), export (1 container)"
    running = view(state=State.RUNNING, cause=None, finished_ms=None, not_started=roles, containers=(container(0),))
    assert not any(line.startswith("notStarted") for line in status_lines(running, [], END_MS))


def test_a_killed_application_names_no_failed_container() -> None:
    killed = view(
        state=State.KILLED, cause=Cause.KILLED, diagnostics="killed by kim", containers=(container(0, signal=9),)
    )
    assert answer_lines(killed, END_MS) == ["killed after 0:00:46", "diagnostics : killed by kim"]
    late = view(cause=Cause.TIMED_OUT, containers=(container(0, exit_code=143),))
    assert answer_lines(late, END_MS) == ["timed out after 0:00:46"]


def test_empty_or_unreadable_stderr_is_reported() -> None:
    failed = failed_view(containers=(container(0, exit_code=3),))
    assert "stderr of container 0 is empty" in answer_lines(failed, END_MS, ErrorTail(0))
    output = answer_lines(failed, END_MS, ErrorTail(0, problem="it is gone"))
    assert "stderr of container 0 cannot be read: it is gone" in output


def test_queue_labels_and_engine_changes_have_their_own_lines() -> None:
    labelled = view(queue="gpu", priority=0, project="cats", tags=("a", "b"), changes=("one", "two"))
    lines = status_lines(labelled, [], END_MS)
    begin = lines.index("queue : gpu")
    assert lines[begin : begin + 6] == [
        "queue : gpu",
        "priority : 0",
        "project : cats",
        "tags : a, b",
        "changed : one",
        "changed : two",
    ]


def test_committed_and_pending_outputs_are_distinguished() -> None:
    done = view(outputs=(OutputView(name="model", target="file:///m", committed=True),))
    assert "output model : committed to file:///m" in status_lines(done, [], END_MS)
    running = view(state=State.RUNNING, cause=None, outputs=(OutputView(name="", target="file:///m"),))
    assert "output : goes to file:///m" in status_lines(running, [], END_MS)


def test_outputs_of_failed_containers_and_applications_are_distinguished() -> None:
    kept_output = OutputView(name="model", target="file:///m", partial="file:///m.app.failed", replaced="file:///m.old")
    failed = failed_view(
        outputs=(kept_output, replace(kept_output, name="", committed=True, previous="file:///m.previous"))
    )
    assert kept_lines(failed, ["/u/c1"]) == [
        "partial model : kept at file:///m.app.failed",
        "replaced model : not written by dlapp, kept at file:///m.old",
        "failed : output of failed containers kept at file:///m.app.failed",
        "replaced : not written by dlapp, kept at file:///m.old",
        "previous : the former output, kept at file:///m.previous",
        "unstored : /u/c1",
    ]
    assert status_lines(failed, [], END_MS, unstored=["/u/c1"]).count("unstored : /u/c1") == 1
    assert kept_lines(view(), []) == []


def left_out(*names: str, more: int = 0) -> NotStored:
    return NotStored(entries=tuple(LeftOutEntry(name=name, reason="a FIFO") for name in names), more_entries=more)


def new_files(*sizes_bytes: int, more: int = 0, complete: bool = True) -> NotStored:
    files = tuple(NewFile(name=f"f{size}", size_bytes=size) for size in sizes_bytes)
    return NotStored(files=files, more_files=more, all_files_found=complete)


def test_unstored_files_are_named_with_their_container_if_there_are_several() -> None:
    one = view(containers=(container(0, not_stored=left_out("output/pipe").plus(new_files(1 << 20, 5, 3, 2, more=1))),))
    assert answer_lines({**one, "total_containers": 1}, END_MS)[-2:] == [
        "not stored : output/pipe (a FIFO)",
        "not stored : f1048576 (1.0 MiB), f5 (5 bytes), f3 (3 bytes), 2 other new files",
    ]
    two = view(
        containers=(
            container(0, not_stored=left_out(*"abcdefg")),
            container(1, not_stored=left_out(*"hij", more=4).plus(new_files(7, complete=False))),
            container(2),
        )
    )
    lines = [line for line in answer_lines({**two, "total_containers": 3}, END_MS) if line.startswith("not stored")]
    assert lines[7:] == [
        "not stored : h of container 1 (a FIFO)",
        "not stored : 6 more of the output",
        "not stored : f7 of container 1 (7 bytes), perhaps others",
    ]


def test_unstored_files_of_several_trials_are_limited_and_counted() -> None:
    both = left_out(*"abcde", more=1).plus(left_out(*"fghij", more=2))
    assert ([entry.name for entry in both.entries], both.more_entries) == ([*"abcdefgh"], 5)
    both = new_files(*range(9, 3, -1), more=1).plus(new_files(*range(20, 14, -1), complete=False))
    assert [file.size_bytes for file in both.files] == [20, 19, 18, 17, 16, 15, 9, 8]
    assert (len(both.files), both.more_files, both.all_files_found) == (MAX_NAMED, 5, False)


def test_a_sweep_shows_trials_in_place_of_empty_container_logs() -> None:
    kept_output = OutputView(name="", target="file:///m", committed=True, partial="file:///m.app.failed")
    done = view(
        trials=6, containers=(container(0, exit_code=0),), outputs=(kept_output,), diagnostics="1 of 6 trials failed"
    )
    assert answer_lines(done, END_MS) == [
        "succeeded after 0:00:46",
        "diagnostics : 1 of 6 trials failed",
        "next : dlapp-sweep application_1474893803111_0042",
        "output : committed to file:///m",
        "failed : output of failed trials kept at file:///m.app.failed",
    ]
    assert "stdout" not in status_lines(done, [log(0)], END_MS)
    assert "stdout" in status_lines(done, [log(0)], END_MS, all_logs=True)


@pytest.mark.parametrize(
    ("of", "commands"),
    [
        ({"state": State.RUNNING, "cause": None, "finished_ms": None}, ["dlapp-sweep -f"]),
        ({"state": State.ACCEPTED, "cause": None, "finished_ms": None}, []),
        ({"cause": Cause.FAILED, "diagnostics": "3 of 3 trials failed (trials 0-2); ..."}, ["dlapp-sweep"]),
        (
            {"cause": Cause.FAILED, "diagnostics": "container 0 (worker 0) failed: no 'in'"},
            ["dlapp-sweep", "dlapp-logs --own"],
        ),
    ],
)
def test_the_next_command_of_a_sweep_shows_its_trials(of: dict[str, Any], commands: list[str]) -> None:
    one = view(trials=3, containers=(container(0),), **of)
    found = [line.removeprefix("next : ") for line in answer_lines(one, END_MS) if line.startswith("next : ")]
    assert found == [f"{command} application_1474893803111_0042" for command in commands]


def test_the_latest_restarts_of_gangs_have_a_line_each_with_the_reason() -> None:
    restarts = [RestartView(role="w", generation=n, at_ms=END_MS + n * 1000, cause=f"cause {n}") for n in range(1, 6)]
    assert answer_lines(view(restarts=tuple(restarts)), END_MS)[1:] == [
        "restarted : generation 3 at 2016-09-26 23:25:00, cause 3",
        "restarted : generation 4 at 2016-09-26 23:25:01, cause 4",
        "restarted : generation 5 at 2016-09-26 23:25:02, cause 5",
    ]


def test_gpus_that_are_not_used_have_a_line_while_it_runs() -> None:
    idle = IdleGpus(containers=(0,), since_ms=START_MS, message="all GPUs of container 0 below 5 % since 14:02:03")
    line = f"idle : {idle.message}"
    running = view(state=State.RUNNING, final_status=FinalStatus.UNDEFINED, cause=None, finished_ms=None, idle=idle)
    assert line in answer_lines(running, END_MS)
    assert line not in answer_lines(view(idle=idle), END_MS)


def test_a_soft_kill_under_way_shows_the_time_that_is_left() -> None:
    def line(now_ms: int, *phases: Phase) -> str:
        ending = view(
            state=State.RUNNING,
            cause=None,
            finished_ms=None,
            soft_kill_by="kim",
            soft_kill_ends_ms=END_MS + 5000,
            containers=tuple(container(index, phase=phase) for index, phase in enumerate(phases)),
        )
        (found,) = [item for item in status_lines(ending, [], now_ms) if item.startswith("softkill")]
        return found

    assert line(END_MS, Phase.ENDED, Phase.RUNNING) == "softkill : by kim, the payload has 0:00:05.00 left"
    assert line(END_MS + 6000, Phase.RUNNING) == "softkill : by kim, the payload has 0:00:00.00 left"
    assert line(END_MS, Phase.ENDED, Phase.STORING, Phase.RELEASING) == "softkill : by kim"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0:00:00.00"),
        (4, "0:00:00.00"),
        (5, "0:00:00.01"),
        (46_128, "0:00:46.13"),
        (59_994, "0:00:59.99"),
        (59_995, "0:01:00.00"),
        (3_599_996, "1:00:00.00"),
        (360_000_000, "100:00:00.00"),
        (-50, "0:00:00.00"),
    ],
)
def test_elapsed_is_rounded_and_its_hours_are_unbounded(ms: int, text: str) -> None:
    assert elapsed(ms) == text


@given(st.integers(0, 10**12))
def test_elapsed_is_never_more_than_half_a_hundredth_off(ms: int) -> None:
    hours, minutes, seconds = elapsed(ms).split(":")
    shown_ms = int(hours) * 3_600_000 + int(minutes) * 60_000 + round(float(seconds) * 1000)
    assert abs(shown_ms - ms) <= 5
    assert int(minutes) < 60
    assert float(seconds) < 60


@given(st.integers(0, 4 * 10**12))
def test_a_local_time_always_has_six_decimals(ms: int) -> None:
    assert local_time(ms).endswith(f".{ms % 1000:03d}000")
    assert len(local_time(ms)) == len("2016-09-26 22:24:11.575000")


def test_the_list_is_a_table_that_wide_characters_do_not_shift() -> None:
    waiting = view(
        application_id=ApplicationId(1474893803111, 7),
        appname="손글씨",
        state=State.ACCEPTED,
        cause=None,
        started_ms=None,
        finished_ms=None,
        diagnostics="queue full, 2 ahead",
        queue="gpu",
        priority=3,
        project="cats",
        tags=("a", "b"),
        receipt=Receipt(cpu_hours=0.123),
    )
    assert list_lines([view(appname="digits"), waiting], START_MS + 1230) == [
        "ID                              NAME    USER  STATE     PHASE                ELAPSED     EXIT  "
        "QUEUE    PRIORITY  PROJECT  TAGS  STARTED              AGE  COST",
        "application_1474893803111_0042  digits  tony  FINISHED  succeeded            0:00:46.13  0     "
        "default  -         -        -     2016-09-26T23:24:12  1s   -",
        "application_1474893803111_0007  손글씨  tony  ACCEPTED  queue full, 2 ahead  0:00:01.23  -     "
        "gpu      3         cats     a, b  -                    1s   0.123 CPUh",
    ]


def test_an_empty_list_is_its_head_alone() -> None:
    head = "ID  NAME  USER  STATE  PHASE  ELAPSED  EXIT  QUEUE  PRIORITY  PROJECT  TAGS  STARTED  AGE  COST"
    assert list_lines([], 0) == [head]
    assert fitted_list_lines([], 0, 30, users=False) == ["ID  NAME  PHASE  AGE  EXIT"]


def test_a_list_on_a_terminal_has_short_ids_and_fits() -> None:
    long = view(appname="a name of many words and more", cause=Cause.SOFT_KILLED, started_ms=None)
    views = [view(appname="손글씨를 배우는 프로그램"), view(application_id=ApplicationId(1474893803111, 7)), long]
    views[2]["application_id"] = "application_1474893803111_0043"
    assert fitted_list_lines(views, START_MS + 7_200_000, 80, users=False) == [
        "ID    NAME             STATE     PHASE        STARTED      AGE  ELAPSED     EXIT",
        "0042  손글씨를 배우…   FINISHED  succeeded    09-26 23:24  2h   0:00:46.13  0",
        "0007  'c3 deeplearni…  FINISHED  succeeded    09-26 23:24  2h   0:00:46.13  0",
        "0043  a name of many…  FINISHED  soft-killed  -            2h   0:00:46.13  0",
    ]
    views[1]["priority"] = 7
    assert fitted_list_lines(views, START_MS + 800 * 86_400_000, 60, users=True) == [
        "ID    NAME           USER  STATE     PHASE        AGE   EXIT",
        "0042  손글씨를 배…   tony  FINISHED  succeeded    800d  0",
        "0007  'c3 deeplear…  tony  FINISHED  succeeded    800d  0",
        "0043  a name of ma…  tony  FINISHED  soft-killed  800d  0",
    ]
    assert "7" in fitted_list_lines(views, START_MS + 800 * 86_400_000, 120, users=True)[2].split()


def test_the_cost_is_the_first_column_that_a_narrow_terminal_lacks() -> None:
    hours = GpuHours(granted=1.5, busy=0.375, idle=1.125)
    views = [view(appname="digits", receipt=Receipt(gpu_hours=hours, cpu_hours=2.0))]
    wide, narrow = (fitted_list_lines(views, START_MS + 7_200_000, columns, users=False) for columns in (120, 80))
    assert wide[1].endswith("  1.5 GPUh 25%")
    assert "COST" not in narrow[0]
    assert [len(line) <= 80 for line in narrow] == [True, True]


# ---- what it has cost ----


def test_a_status_shows_the_receipt() -> None:
    receipt = Receipt(
        gpu_hours=GpuHours(granted=8.0, busy=1.5, idle=6.0, unknown=0.5),
        gpus_asked=4,
        gpus_used=1,
        cpu_hours=2.5,
        memory=MemoryReceipt(asked_mib=65_536, peak_mib=9216, is_exact=True),
        seconds={"starting": 0.2, "fetching": 90.0, "running": 7200.0},
        bytes=ByteCounts(input=5 << 30, output=1024, read=0),
        energy_wh=1234.5,
        suggestion="asked 4 GPUs, used 1",
    )
    assert receipt_lines(to_json(receipt)) == [
        "cost : 8 GPU-hours (1.5 busy, 6 idle, 0.5 unknown), 2.5 CPU-hours, memory 64.0 GiB, peak 9.0 GiB, 1.23 kWh",
        "time : fetching 90 s, running 2:00 h",
        "moved : input 5.0 GiB, output 1.0 KiB",
        "suggestion : asked 4 GPUs, used 1",
    ]


def test_a_status_shows_peak_gpu_memory_and_foreign_processes() -> None:
    gpus = (GpuMemory(index=0, memory_mib=81_920, peak_mib=500), GpuMemory(index=1, memory_mib=81_920, peak_mib=11_264))
    foreign = (
        ForeignProcess(gpu="0", uuid="GPU-0", pid=21547, host="node1", program="python", user="ann", peak_mib=5018),
        ForeignProcess(gpu="0:1", uuid="MIG-0", pid=3),
    )
    receipt = Receipt(cpu_hours=1.0, gpu_memory=gpus, foreign_processes=foreign)
    assert receipt_lines(to_json(receipt))[1:] == [
        "gpu memory : 80.0 GiB, peak 11.0 GiB (sampled)",
        "foreign : process 21547 (python, user ann) used 4.9 GiB of gpu0 on node1",
        "foreign : process 3 (name hidden) used gpu0:1",
    ]


def test_unknown_costs_are_shown_as_unknown_and_not_zero() -> None:
    receipt = Receipt(gpu_hours=GpuHours(granted=1.0, unknown=1.0), memory=MemoryReceipt(asked_mib=1024))
    assert receipt_lines(to_json(receipt)) == [
        "cost : 1 GPU-hours (1 unknown), CPU-hours not known, memory 1.0 GiB, peak not known"
    ]
    assert cost_text(to_json(receipt)) == "1 GPUh"
    assert receipt_lines(None) == []


def test_a_running_container_shows_its_usage() -> None:
    devices = (DeviceUsage(index=0, utilisation=0.75), DeviceUsage(index=1, utilisation=0.25))
    assert usage_text(to_json(Usage(at_ms=1, cpu_cores=1.94, memory_mib=9216, devices=devices))) == (
        "1.9 cores, 9.0 GiB, GPUs 50%"
    )
    assert usage_text(to_json(Usage(at_ms=1, devices=(*devices, DeviceUsage(index=2))))) == ""
    active = Usage(at_ms=1, devices=(DeviceUsage(index=0, utilisation=1.0, activity=0.02),))
    assert usage_text(to_json(active)) == "GPU 100%, 2% active"
    waits = Usage(at_ms=1, devices=(DeviceUsage(index=0, utilisation=1.0, at_idle_power=True),))
    assert usage_text(to_json(waits)) == "GPU 100%, at idle power"
    assert usage_text(None) == ""


@given(
    st.lists(st.tuples(st.text(max_size=40), st.text(max_size=60), st.text(max_size=30)), max_size=4),
    st.integers(56, 200),
    st.booleans(),
)
def test_no_line_of_a_list_is_longer_than_the_terminal(
    texts: list[tuple[str, str, str]], columns: int, users: bool
) -> None:
    views = [
        {**view(state=State.ACCEPTED, cause=None), "appname": name, "diagnostics": reason, "username": user}
        for name, reason, user in texts
    ]
    for number, one in enumerate(views):
        one["application_id"] = f"application_1474893803111_{number:04d}"
    assert all(width(line) <= columns for line in fitted_list_lines(views, END_MS, columns, users=users))


@pytest.mark.parametrize(
    ("ids", "short"),
    [
        (["a_1_0042", "a_1_0043"], ["0042", "0043"]),
        (["a_1_0042", "a_1_10042"], ["a_1_0042", "10042"]),
        (["a_1_0042", "a_2_0042", "a_2_0001"], ["a_1_0042", "a_2_0042", "0001"]),
        (["a_1795640588701_0001", "a_1795640590240_0001"], ["8701_0001", "0240_0001"]),
        (["a_1795640588701_0001", "a_1795640598701_0001"], ["88701_0001", "98701_0001"]),
        ([], []),
    ],
)
def test_a_short_id_is_the_ending_of_no_other(ids: list[str], short: list[str]) -> None:
    assert short_ids(ids) == short


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"state": State.ACCEPTED, "cause": None}, "waiting"),
        ({"state": State.RUNNING, "cause": None}, "running"),
        ({}, "succeeded"),
        ({"cause": Cause.TIMED_OUT}, "timed-out"),
        ({"cause": Cause.SOFT_KILLED}, "soft-killed"),
        ({"state": State.FAILED, "final_status": FinalStatus.FAILED, "cause": None}, "failed"),
    ],
)
def test_each_application_has_one_word_that_a_list_can_select_by(more: dict[str, Any], word: str) -> None:
    assert state_word(view(**more)) == word
    assert word in STATES


def test_control_characters_are_shown_escaped() -> None:
    line = list_lines([view(appname="a\x1b[2Jb\u202ec\udcffd\u3000e")], END_MS)[1]
    assert "a\\x1b[2Jb\\u202ec\\udcffd\u3000e" in line


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("손", 2), ("e\u0301", 1), ("", 0)])
def test_width_counts_columns(text: str, columns: int) -> None:
    assert width(text) == columns


def test_the_exit_of_an_application_is_that_of_the_first_container_that_failed() -> None:
    failed = {"final_status": FinalStatus.FAILED, "cause": Cause.FAILED}
    assert payload_exit_text(view()) == "0"
    assert payload_exit_text(view(**failed, containers=(container(0, exit_code=0), container(1, exit_code=9)))) == "9"
    assert payload_exit_text(view(**failed, containers=(container(0, signal=11),))) == "signal 11"
    assert payload_exit_text(view(**failed)) == "-"
    killed = {"final_status": FinalStatus.KILLED, "cause": Cause.SOFT_KILLED}
    assert payload_exit_text(view(**killed, containers=(container(0, exit_code=0), container(1, exit_code=0)))) == "0"
    assert payload_exit_text(view(**killed, containers=(container(0, exit_code=0), container(1)))) == "-"
    assert payload_exit_text(view(**killed, containers=(container(0, exit_code=0), container(1, signal=15)))) == (
        "signal 15"
    )
    assert payload_exit_text(view(state=State.RUNNING, final_status=FinalStatus.UNDEFINED)) == "-"


@pytest.mark.parametrize(
    ("assessed", "exit_"),
    [
        (of_result(TaskResult(fault=Fault.USER, exit_code=3)), "3"),
        (of_result(TaskResult(fault=Fault.USER, signal=11)), "signal 11"),
        (of_result(TaskResult(fault=Fault.USER, exit_code=137, message="the kernel ended it")), "137"),
        (of_end(ContainerEnd(container_id=container(0).container_id, exit_status=9)), "-"),
        (of_result(TaskResult(fault=Fault.DATA, message="no input")), "-"),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_without_containers_the_exit_comes_from_the_diagnostics(assessed: Assessment, exit_: str, times: int) -> None:
    diagnostics = failure(container_name(7, "worker", 7), assessed, user_faults=times, node_faults=0)
    ended = view(final_status=FinalStatus.FAILED, cause=Cause.FAILED, diagnostics=diagnostics)
    assert payload_exit_text(ended) == exit_
    assert payload_exit_text({**ended, "containers": to_json(view(containers=(container(7),)))["containers"]}) == "-"


def test_the_phase_is_the_reason_of_a_wait_or_the_cause_of_an_end() -> None:
    assert phase_text(view(state=State.ACCEPTED, cause=None, diagnostics="needs 2 gcores, 1 free")).startswith("needs")
    assert phase_text(view(state=State.ACCEPTED, cause=None)) == "waiting"
    assert phase_text(view(state=State.RUNNING, cause=None, phase="storing 1 of 1")) == "storing 1 of 1"
    assert phase_text(view(cause=Cause.SOFT_KILLED)) == "soft-killed"
    assert phase_text(view(state=State.FAILED, final_status=FinalStatus.FAILED, cause=None)) == "failed"


def test_the_json_of_a_view_has_the_exit_code_only_once_it_ended() -> None:
    assert derived(view(cause=Cause.TIMED_OUT), END_MS)["exit_code"] == 6
    running = derived(view(state=State.RUNNING, cause=None, finished_ms=None), START_MS + 12)
    assert running["exit_code"] is None
    assert running["elapsed_ms"] == 12


def waiting_view(*containers: ContainerView, phase: str, total: int) -> Any:
    more = {"state": State.RUNNING, "final_status": FinalStatus.UNDEFINED, "cause": None, "finished_ms": None}
    return view(**more, containers=containers, phase=phase, total_containers=total)


def at_it(index: int, phase: Phase, **more: Any) -> ContainerView:
    return container(index, phase=phase, finished_ms=None, **more)


def test_the_picture_has_a_bar_of_how_many_containers_are_in_each_phase() -> None:
    ended = container(0, progress=0.5, detail="removing the workspace")  # its last report
    now = waiting_view(ended, at_it(1, Phase.RUNNING), at_it(2, Phase.RUNNING), phase="running 2 of 4", total=4)
    assert picture_lines(now, START_MS + 12340) == [
        "application_1474893803111_0042 RUNNING 0:00:12.34 running 2 of 4",
        "running    ███████████████                2 of 4",
        "ended      ███████                        1 of 4",
    ]


def test_the_picture_has_a_bar_with_rate_and_time_left_of_the_only_container() -> None:
    one = at_it(0, Phase.FETCHING, progress=0.24, detail="1.2 GiB of 5.0 GiB, 310.5 MiB/s, 13 s left")
    lines = picture_lines(waiting_view(one, phase="fetching", total=1), START_MS)
    assert lines[1:] == [
        "fetching   ███████░░░░░░░░░░░░░░░░░░░░░░░ 1 of 1, 24%",
        "           1.2 GiB of 5.0 GiB, 310.5 MiB/s, 13 s left",
    ]


def test_a_shared_bar_shows_the_mean_and_the_slowest_containers_time() -> None:
    containers = (
        at_it(0, Phase.FETCHING, progress=0.75, detail="3.0 GiB of 4.0 GiB, 1.0 GiB/s, 1 s left"),
        at_it(1, Phase.FETCHING, progress=0.25, detail="1.0 GiB of 4.0 GiB, 300.0 MiB/s, 10 s left"),
        at_it(2, Phase.FETCHING),  # no report yet
        at_it(3, Phase.PULLING, progress=1.0),
        at_it(4, Phase.RUNNING, detail="a\x1b[2Jb"),
        at_it(5, Phase.STARTING, progress=0.0),
    )
    now = waiting_view(*containers, phase="running 1 of 6, 1 pulling, 3 fetching, 1 starting", total=6)
    assert picture_lines(now, START_MS)[1:] == [
        "starting   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 1 of 6, 0%",
        "pulling    ██████████████████████████████ 1 of 6, 100%",
        "fetching   ███████████████░░░░░░░░░░░░░░░ 3 of 6, 50%",
        "           worker_1: 1.0 GiB of 4.0 GiB, 300.0 MiB/s, 10 s left",
        "running    █████                          1 of 6",
        "           a\\x1b[2Jb",
    ]


def test_without_a_terminal_each_phase_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    plain = PlainLines()
    for share in (0.1, 0.5, 0.9):
        one = at_it(0, Phase.FETCHING, progress=share, detail=f"{share} GiB of 1.0 GiB")
        plain.show(waiting_view(one, phase="fetching", total=1))
    plain.show(waiting_view(at_it(0, Phase.RUNNING), phase="running", total=1))
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "RUNNING fetching",
        "RUNNING running",
    ]


def test_reports_of_payloads_are_in_their_rows() -> None:
    content = {"loss": 0.123456, "a": 1.0, "b": 2.0, "c": 3e20, "d": 4.0}
    running = container(0, phase=Phase.RUNNING, finished_ms=None, progress=0.3, ready=True, step=12, metrics=content)
    shown = status_lines(
        view(containers=(running, container(1, exit_code=0, ready=True, metrics={"loss": 0.5}))), [], END_MS
    )
    start = next(n for n, line in enumerate(shown) if line.startswith("INDEX"))
    assert shown[start + 1].endswith("-     ready, step 12, loss=0.1235, a=1, b=2, c=3e+20 and 1 more")
    assert shown[start + 2].endswith("-     loss=0.5")
    assert "running 30%" in shown[start + 1]


def test_without_a_time_of_the_submission_no_time_has_elapsed() -> None:
    """YARN shows 0 to users without access to the application."""
    assert elapsed_ms_of({"submitted_ms": 0, "finished_ms": None}, 1_795_950_000_000) == 0
    assert elapsed_ms_of({"submitted_ms": 1_000, "finished_ms": None}, 4_000) == 3_000
