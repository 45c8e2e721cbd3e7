"""Trials of a container, run by a real task against each other."""

from __future__ import annotations

import os
import re
import select
from pathlib import Path

import pytest

from dlapp.net.exec_frames import END, TRIAL, ExecEnd, FrameStream, read_end, read_trial
from dlapp.values.messages import Fault, TaskResult, TrialOrder, TrialWork
from dlapp.values.spec import OutputSpec
from tests.services.disks import fill, small_disk
from tests.task.fake_am import FakeAm, workspace_archive


def run_trials(am: FakeAm, count: int) -> dict[int, TaskResult]:
    """Order some trials, one after another, and return their results."""
    found: dict[int, TaskResult] = {}
    for number in range(count):
        am.order(trials=(TrialOrder(number=number, try_number=1),))
        am.wait_until(lambda: take_results(am, found) > number, 120)  # noqa: B023
    am.order(trials=(), trials_are_over=True)
    assert am.result().fault is Fault.NONE
    return found


def take_results(am: FakeAm, found: dict[int, TaskResult]) -> int:
    for report in list(am.reports):
        found |= {trial.number: trial.result for trial in report.trials if trial.result is not None}
    return len(found)


def test_a_trial_that_creates_files_of_later_trials_does_not_disturb_them(
    place: Path,
) -> None:
    (place / "precious").write_text("kept")
    script = f"""
        case $DLAPP_TRIAL in 0)
            cd "$(dirname "$(readlink ../stdout)")" || exit 9
            mkfifo trial_1_1.stdout
            mkdir -p trial_1_1.stderr/x
            ln -s {place}/precious trial_2_1.stdout
            ln {place}/precious trial_2_1.stderr
        esac
        echo "of $DLAPP_TRIAL"; echo oops >&2
    """
    with FakeAm(place / "containers", **workspace_archive(place, {"run.sh": script}), sweep=TrialWork(metric="")) as am:
        am.start()
        results = run_trials(am, 3)
        ends = {number: (one.fault, one.message) for number, one in results.items()}
        assert ends == dict.fromkeys(range(3), (Fault.NONE, ""))
        for number in range(3):
            assert (am.home / f"trial_{number}_1.stdout").read_text() == f"of {number}\n"
            assert (am.home / f"trial_{number}_1.stderr").read_text() == "oops\n"
    assert (place / "precious").read_text() == "kept"


def test_output_of_a_trial_that_cannot_be_kept_is_not_reported_as_kept(place: Path) -> None:
    (place / "results.tmp").write_text("in the way")
    (place / "unstored").write_text("in the way, too")
    output = OutputSpec(output_path="output", target=f"file://{place}/results")
    packed = workspace_archive(place, {"run.sh": "mkdir -p output; echo 1 >output/x"})
    storing = {"outputs": (output,), "parts": (f"file://{place}/results.tmp/container",)}
    with FakeAm(place / "containers", **packed, **storing, sweep=TrialWork(metric="")) as am:
        am.start(unstored=str(place / "unstored"))
        result = run_trials(am, 1)[0]
    assert (result.fault, result.unstored) == (Fault.DATA, ())
    assert result.message.endswith("output (Not a directory): it is removed with its trial")


def test_each_trial_has_a_tmpdir_of_its_own_with_a_short_name(place: Path) -> None:
    script = "echo $TMPDIR; ls -A $TMPDIR/; echo x >$TMPDIR/left"
    with FakeAm(place / "containers", **workspace_archive(place, {"run.sh": script}), sweep=TrialWork(metric="")) as am:
        am.start()
        run_trials(am, 2)
        first, second = ((am.home / f"trial_{number}_1.stdout").read_text() for number in range(2))
    names = {first.strip(), second.strip()}
    assert len(names) == 2
    assert all(re.fullmatch("/tmp/dlapp-[0-9a-f]{10}/tmp", name) for name in names)
    assert not any(os.path.lexists(os.path.dirname(name)) for name in names)


def test_a_command_for_a_trial_that_has_just_ended_is_refused_with_those_that_run(place: Path) -> None:
    script = f"touch {place}/began.$DLAPP_TRIAL; until test -e {place}/go.$DLAPP_TRIAL; do sleep 0.1; done"
    packed = workspace_archive(place, {"run.sh": script})
    with FakeAm(place / "containers", **packed, sweep=TrialWork(metric="", slots=2)) as am:
        am.start()
        both = tuple(TrialOrder(number=number, try_number=2) for number in (4, 5))
        am.order(trials=both)
        am.wait_until(lambda: all((place / f"began.{number}").exists() for number in (4, 5)), 120)
        (place / "go.4").touch()
        results: dict[int, TaskResult] = {}
        am.wait_until(lambda: take_results(am, results) == 1, 120)
        command = {"command": ["true"]}
        for number, trial in enumerate(((4, 2), (5, 1), (6, 1)), start=1):
            am.open_stream(number, "exec", command, trial)
            am.wait_until(lambda: len(am.refused) == number, 120)  # noqa: B023
        ends = [(item.error, item.reason) for item in am.refused]
        running = "does not run its program now; running in its container: 5"
        assert ends == [(f"trial {trial} {running}", "not_running") for trial in (4, 5, 6)]
        with am.open_stream(4, "exec", command, (5, 2))() as stream:
            stream_of_frames = FrameStream(stream)
            frames: list[tuple[bytes, bytes]] = []
            while len(frames) < 2:
                select.select([stream_of_frames], [], [], 120)
                frames += stream_of_frames.receive()
        assert [kind for kind, _ in frames] == [TRIAL, END]
        assert (read_trial(frames[0][1]), read_end(frames[1][1])) == ((5, 2), ExecEnd(0))
        (place / "go.5").touch()
        am.wait_until(lambda: take_results(am, results) == 2, 120)
        am.order(trials=(), trials_are_over=True)
        assert am.result().fault is Fault.NONE


@pytest.mark.slow
@pytest.mark.root("to mount a small disk")
def test_a_trial_for_which_the_disk_is_full_waits_for_room_and_runs_once(place: Path) -> None:
    script = f'test "$(wc -c <much)" -eq 1000000 && echo x >>{place}/ran'
    files: dict[str, str | bytes] = {"run.sh": script, "much": "x" * 1_000_000}
    work = TrialWork(metric="")
    with small_disk(place) as disk, FakeAm(place / "containers", **workspace_archive(place, files), sweep=work) as am:
        (am.home / "trials").symlink_to(disk)
        am.start()
        results: dict[int, TaskResult] = {}
        am.order(trials=(TrialOrder(number=16, try_number=1),))
        am.wait_until(lambda: take_results(am, results) == 1, 120)
        am.wait_until(lambda: not (disk / "16_1").exists(), 120)
        ballast = fill(disk)
        am.order(trials=(TrialOrder(number=17, try_number=1),))
        am.wait_until(lambda: "; retrying" in (am.home / "dlapp.log").read_text(), 120)
        assert take_results(am, results) == 1
        assert "trial 17_1: the trial could not be prepared: disk full: " in (am.home / "dlapp.log").read_text()
        ballast.unlink()
        am.wait_until(lambda: take_results(am, results) == 2, 120)
        am.order(trials=(), trials_are_over=True)
        assert am.result().fault is Fault.NONE
        assert {number: one.fault for number, one in results.items()} == {16: Fault.NONE, 17: Fault.NONE}
        assert (place / "ran").read_text() == "x\nx\n"
