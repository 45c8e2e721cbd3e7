"""Test applications that wait for others, are held, or begin again after a restart of the machine, with real runners
and a small program in the ApplicationMaster's place.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.cluster.local.attempts import registration
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.runner.election import is_runner_alive
from dlapp.errors import SpecError, UsageError
from dlapp.system.processes.proc import start_time
from dlapp.values.ids import ApplicationId
from dlapp.values.report import FinalStatus, State
from dlapp.values.start_conditions import After, RequiredEnd
from tests.applications import kill_processes, listed, wait_for
from tests.services.processes.small_app import engine_at, spec_of, submit

END_S = 120.0
UID = os.geteuid()


@pytest.fixture
def engine(state_dir: Path) -> Iterator[LocalEngine]:
    """An engine that has 1000 MiB to give; at the end nothing of it runs."""
    options = {"local.memory": "1000", "local.vcores": "1000", "gpuid.lock_dir": f"{state_dir}-gpus"}
    with engine_at(str(state_dir), options) as one:
        yield one
        for view in listed(one):
            if not view.state.ended:
                one.kill(view.application_id, "the test")
        one.ensure_runner()
        wait_for("the runner's end", lambda: not is_runner_alive(one.state, UID), END_S)


def row(engine: LocalEngine, one: ApplicationId) -> tuple[str, str]:
    with Queue(engine.state) as queue:
        found = queue.row(str(one))
        assert found is not None
        return found.state, found.after


def reason(engine: LocalEngine, one: ApplicationId) -> tuple[str, str]:
    waiting = engine.view(one).value.waiting
    return ("", "") if waiting is None else (waiting.code, waiting.message)


def until_over(engine: LocalEngine, *applications: ApplicationId) -> None:
    for one in applications:
        wait_for(f"the end of {one}", lambda item=one: row(engine, item)[0] == "done", END_S)  # type: ignore[misc]


def until_running(engine: LocalEngine, one: ApplicationId) -> None:
    wait_for(f"{one} runs", lambda: engine.view(one).value.state is State.RUNNING, END_S)


def kill_runner(engine: LocalEngine) -> None:
    """Kill the runner, and wait until its lock is free."""

    def kill() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if b"runner" in words.split(b"\0") and str(engine.state.path).encode() in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.parent.name), signal.SIGKILL)
        return not is_runner_alive(engine.state, UID)

    wait_for("the runner is dead", kill, END_S)


def test_an_application_starts_or_ends_by_the_results_of_others(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "go"))
    good = submit(engine, "quick", after=(After(str(first)),))
    bad = submit(engine, "quick", after=(After(str(first), RequiredEnd.FAILED),))
    behind = submit(engine, "quick", after=(After(str(bad)),))
    whatever = submit(engine, "quick", after=(After(str(bad), RequiredEnd.ANY), After(str(first))))
    until_running(engine, first)
    assert reason(engine, good) == ("dependency", f"waits for the end of {first} (ok)")
    view = engine.view(behind).value
    assert (view.state, view.phase) == (State.ACCEPTED, "waiting")
    assert view.diagnostics == f"waits for the end of {bad} (ok)"
    full = engine.view_in_full(str(whatever)).json["waiting"]
    assert (full["code"], full["message"]) == ("dependency", f"waits for the end of {bad} (any), {first} (ok)")
    specs = spec_of("quick", after=(After(str(first)),)), spec_of("quick", hold=True)
    planned = [engine.plan(spec).waiting for spec in specs]
    assert [item.code for item in planned] == ["dependency", "held"]
    kill_runner(engine)  # what was waited for is in the rows
    engine.ensure_runner()
    (tmp_path / "go").touch()
    until_over(engine, first, good, bad, behind, whatever)
    assert engine.view(good).value.final_status is engine.view(whatever).value.final_status is FinalStatus.SUCCEEDED
    ends = [
        (item.state, item.final_status, item.diagnostics)
        for item in (engine.view(bad).value, engine.view(behind).value)
    ]
    assert ends == [
        (State.FAILED, FinalStatus.FAILED, f"{first} succeeded, so after={first}:failed can never hold"),
        (State.FAILED, FinalStatus.FAILED, f"{bad} failed, so after={bad}:ok can never hold"),
    ]
    assert engine.view(bad).value.started_ms is None


def test_an_application_waiting_for_others_does_not_block_the_queue(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "go"))
    submit(engine, "quick", memory_mib=1000, after=(After(str(first)),))
    submit(engine, "quick", memory_mib=1000, hold=True)
    until_over(engine, submit(engine, "quick", memory_mib=900))
    (tmp_path / "go").touch()


def test_a_fulfilled_condition_is_not_checked_again(engine: LocalEngine, tmp_path: Path) -> None:
    """The application that it names may be removed meanwhile."""
    done, first = submit(engine, "quick"), submit(engine, "wait", str(tmp_path / "go"))
    last = submit(engine, "quick", after=(After(str(done)), After(str(first))))
    until_over(engine, done)
    wait_for("one condition is left", lambda: row(engine, last)[1] == f"{first}:ok", END_S)
    engine.remove(done)
    (tmp_path / "go").touch()
    until_over(engine, last)
    assert engine.view(last).value.final_status is FinalStatus.SUCCEEDED


def test_an_id_that_is_not_there_or_has_ended_otherwise_is_refused(engine: LocalEngine) -> None:
    done = submit(engine, "quick")
    until_over(engine, done)
    engine.check(spec_of("quick", after=(After(str(done)),)))
    with pytest.raises(SpecError, match=r"application\.after: .*_99999999 is not known on this machine"):
        engine.check(spec_of("quick", after=(After(f"{str(done).rpartition('_')[0]}_99999999"),)))
    with pytest.raises(SpecError, match=f"{done} succeeded, so after={done}:failed can never hold"):
        engine.check(spec_of("quick", after=(After(str(done), RequiredEnd.FAILED),)))


def test_an_application_removed_before_its_end_was_read_has_not_succeeded(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = submit(engine, "quick")
    until_over(engine, done)
    wait_for("the runner's end", lambda: not is_runner_alive(engine.state, UID), END_S)
    monkeypatch.setattr("dlapp.cluster.local.client.session.ensure_runner", lambda *args, **named: None)
    one = submit(engine, "quick", after=(After(str(done)),))
    other = submit(engine, "quick", after=(After(str(done), RequiredEnd.ANY),))
    with pytest.raises(UsageError, match=f"{one} waits for its end"):
        engine.remove(done)
    with Queue(engine.state) as queue, queue.change():
        queue.delete(done.number)
    monkeypatch.undo()
    engine.ensure_runner()
    until_over(engine, one, other)
    assert "and how is not known any more" in engine.view(one).value.diagnostics
    assert engine.view(other).value.final_status is FinalStatus.SUCCEEDED


def test_a_held_one_starts_when_it_is_released_and_needs_no_runner_before(engine: LocalEngine) -> None:
    held = submit(engine, "quick", hold=True)
    text = f"it is held until it is released (dlapp-release {held})"
    assert reason(engine, held) == ("held", text)
    assert listed(engine)[-1].diagnostics == text
    wait_for("the runner's end", lambda: not is_runner_alive(engine.state, UID), END_S)
    engine.ensure_runner()
    assert not is_runner_alive(engine.state, UID)
    assert engine.release(held, "tony") == f"{held} is released"
    until_over(engine, held)
    assert engine.view(held).value.final_status is FinalStatus.SUCCEEDED
    assert engine.release(held, "tony") == f"{held} had already ended: succeeded"
    killed = submit(engine, "quick", hold=True)
    assert engine.kill(killed, "tony") == f"{killed} was killed before it started"


def test_a_held_application_is_first_shown_as_waiting_for_others(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "go"))
    both = submit(engine, "quick", after=(After(str(first)),), hold=True)
    other = submit(engine, "quick", after=(After(str(first)),), hold=True)
    assert reason(engine, both)[0] == "dependency"
    assert engine.release(other, "tony") == f"{other} is released, and waits for the end of {first} (ok)"
    assert engine.release(other, "tony") == f"{other} is not held"
    (tmp_path / "go").touch()
    until_over(engine, other)
    assert reason(engine, both)[0] == "held"
    engine.release(both, "tony")
    until_over(engine, both)


@pytest.mark.parametrize("lost", [(), ("am.json",), ("am.json", "journal-1.jsonl")])
def test_after_a_reboot_an_application_with_requeue_is_queued_again(
    engine: LocalEngine, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    asks = submit(engine, "wait", str(tmp_path / "go"), memory_mib=600, requeue=True)
    until_running(engine, asks)
    home = Path(engine.state.application(str(asks)))
    (home / "journal-1.jsonl").touch()  # as an ApplicationMaster writes it
    waits = submit(engine, "quick", memory_mib=600)
    restart(engine, asks)
    for name in lost:
        (home / name).unlink()
    view = engine.view(asks).value
    assert (view.state, view.diagnostics) == (State.ACCEPTED, "the machine was restarted while it ran; it begins again")
    engine.ensure_runner()
    wait_for("it runs again", lambda: (home / "witness").read_text().count(" start ") == 2, END_S)
    (tmp_path / "go").touch()
    until_over(engine, asks, waits)
    assert engine.view(asks).value.final_status is FinalStatus.SUCCEEDED
    started = [engine.view(item).value.started_ms or 0 for item in (asks, waits)]
    assert started == sorted(started)  # it has kept its place


@pytest.mark.parametrize("name", ["commit.json", "kill.json", "outcome.json"])
def test_an_ending_application_is_not_requeued(engine: LocalEngine, name: str) -> None:
    one = submit(engine, "sleep", requeue=True)
    until_running(engine, one)
    restart(engine, one)
    home = Path(engine.state.application(str(one)))
    ended = {"state": "FINISHED", "final_status": "SUCCEEDED", "cause": "succeeded", "diagnostics": ""}
    # An end long ago would leave the history at once.
    ended_now = json.dumps({**ended, "finished_ms": time.time_ns() // 1_000_000})
    (home / name).write_text(ended_now if name == "outcome.json" else "{}")
    engine.ensure_runner()
    until_over(engine, one)
    expected = FinalStatus.KILLED if name == "kill.json" else FinalStatus.SUCCEEDED
    assert engine.view(one).value.final_status is expected


def restart(engine: LocalEngine, one: ApplicationId) -> None:
    """Leave what a restart of the machine leaves: no process, and rows of another boot."""
    kill_runner(engine)
    # Its runner may have died before it has recorded the process.
    master = registration(engine.state.application(str(one)))
    assert master is not None
    assert start_time(master.pid) == master.started
    kill_processes([master.pid])
    with Queue(engine.state) as queue, queue.change():
        queue.update(one.number, boot_id="another")


def test_a_damaged_row_ends_the_waiting_application_with_a_message(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "go"))
    damaged = submit(engine, "quick", after=(After(str(first)),))
    other = submit(engine, "quick", after=(After(str(first)),))
    with Queue(engine.state) as queue, queue.change():
        queue.update(damaged.number, after="half an id, \0")
    assert reason(engine, damaged) in (("dependency", "waits for the end of other applications"), ("", ""))
    engine.ensure_runner()
    kill_runner(engine)
    engine.ensure_runner()
    until_over(engine, damaged)
    assert engine.view(damaged).value.diagnostics.startswith("its row cannot be read: ")
    (tmp_path / "go").touch()
    until_over(engine, first)
    wait_for("the runner's end", lambda: not is_runner_alive(engine.state, UID), END_S)
    assert engine.view(other).value.final_status is FinalStatus.SUCCEEDED
    with Queue(engine.state) as queue, queue.change():
        queue.update(first.number, outcome='{"final_status"')
    with pytest.raises(SpecError, match=f"{first} failed, so after={first}:ok can never hold"):
        engine.check(spec_of("quick", after=(After(str(first)),)))
