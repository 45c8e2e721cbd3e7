"""The embedded engine from its client's side: real processes, a small program in the ApplicationMaster's place."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.local.attempts import registration
from dlapp.cluster.local.client import submission
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.local.client.kill import write_kill_request
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.runner import main as runner_module
from dlapp.cluster.local.runner import starting
from dlapp.cluster.local.runner.gpus import GpuReservations
from dlapp.cluster.local.state import is_locked, open_lock
from dlapp.errors import Denied, DlappError, NotFound, RequestTooLarge, Unreachable
from dlapp.node_policy import node_policy
from dlapp.system import locks
from dlapp.system.logs import log
from dlapp.system.owners import user_name, user_text
from dlapp.system.processes.proc import open_process
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import StopAnswer
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.serialization import from_json
from tests.applications import listed, listed_json, open_files
from tests.seeds import each_seed
from tests.services.containers.nvml_stub import Part, StubDevice, with_devices
from tests.services.polling import wait_until
from tests.services.processes import small_app
from tests.services.processes.small_app import engine_at, spec_of, submit
from tests.tiers import FULL

NOBODY = ApplicationId(1, 99999)


@pytest.fixture
def start_engine(state_dir: Path) -> Iterator[Callable[..., LocalEngine]]:
    """Make engines; at the end all that they started is gone."""
    engines: list[LocalEngine] = []

    def start(where: str = "", **options: str) -> LocalEngine:
        texts = {name.replace("__", "."): value for name, value in options.items()}
        engines.append(engine_at(f"{state_dir}{where}", {"gpuid.lock_dir": f"{state_dir}-gpus", **texts}))
        return engines[-1]

    yield start
    for engine in engines:
        clear(engine)
        engine.close()


@pytest.fixture
def engine(start_engine: Callable[..., LocalEngine]) -> LocalEngine:
    """An engine that has 1000 MiB to give."""
    return start_engine(local__memory="1000", local__vcores="1000")


def clear(engine: LocalEngine) -> None:
    """Kill all that waits or runs, and wait for the runner's end."""
    for view in listed(engine):
        if not view.state.ended:
            engine.kill(view.application_id, "the test")
    engine.ensure_runner()
    wait_until(lambda: runner_of(engine) is None)


def ended(engine: LocalEngine, application_id: ApplicationId, timeout_s: float = 120.0) -> ApplicationView:
    """Wait for an application's end, as its row says it."""
    wait_until(lambda: row_state(engine, application_id) == "done", timeout_s)
    return engine.view(application_id).value


def running(engine: LocalEngine, *application_ids: ApplicationId) -> None:
    """Wait until applications run, and their processes are recorded."""
    for application_id in application_ids:
        wait_until(lambda item=application_id: engine.view(item).value.state is State.RUNNING)  # type: ignore[misc]
        wait_until(lambda item=application_id: is_recorded(engine, item))  # type: ignore[misc]


def row_state(engine: LocalEngine, application_id: ApplicationId) -> str:
    with Queue(engine.state) as queue:
        row = queue.row(str(application_id))
        return row.state if row else ""


def application_dir(engine: LocalEngine, application_id: ApplicationId) -> Path:
    return Path(engine.state.application(str(application_id)))


def starts(engine: LocalEngine, application_id: ApplicationId) -> list[str]:
    """The attempts that were started, in order."""
    path = application_dir(engine, application_id) / "witness"
    words = [line.split()[1:] for line in path.read_text().splitlines()] if path.exists() else []
    return [rest[0] for kind, *rest in words if kind == "start"]


def began_twice(engine: LocalEngine, application_id: ApplicationId) -> bool:
    """Return whether an application that had registered was ever begun again; cleaning up after it is no beginning."""
    path = application_dir(engine, application_id) / "witness"
    text = path.read_text() if path.exists() else ""
    return "start 1" in text.partition("registered")[2]


def runner_of(engine: LocalEngine) -> int | None:
    """The runner's pid; None: there is none."""
    if not is_locked(engine.state.runner_lock(os.geteuid())):
        return None
    return process_with(engine, b"runner") or -1  # it is just starting or ending


def process_with(engine: LocalEngine, word: bytes) -> int | None:
    """The process of this engine that has a word in its command line."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            if word in words and os.fsencode(engine.state.path) in words:
                return int(name)
    return None


def signal_runner(engine: LocalEngine, number: signal.Signals) -> int:
    """Send a signal to the runner, as soon as it is there; its pid."""

    def look() -> int | None:
        found = runner_of(engine)
        return found if found is not None and found > 0 else None  # -1 would be all processes

    pid = wait_until(look)
    os.kill(pid, number)
    return pid


def runner_here(engine: LocalEngine) -> runner_module.Runner:
    """Make the runner in this process. It has the lock, so no application that ends starts another one."""
    lock = open_lock(engine.state.runner_lock(os.geteuid()))
    assert locks.try_lock(lock)
    return runner_module.Runner(engine.state, engine.session.settings, lock)


def kill_runner(engine: LocalEngine) -> None:
    signal_runner(engine, signal.SIGKILL)
    wait_until(lambda: runner_of(engine) is None)


def am_of(engine: LocalEngine, application_id: ApplicationId) -> int:
    return int((application_dir(engine, application_id) / "am.pid").read_text().split()[0])


def is_recorded(engine: LocalEngine, application_id: ApplicationId) -> bool:
    """Return whether the runner has recorded the process that registered last, as it does after the start of that."""
    last = registration(str(application_dir(engine, application_id)))
    try:
        text = (application_dir(engine, application_id) / "am.pid").read_text()
    except FileNotFoundError:
        return False
    return last is not None and text.split() == [str(last.pid), str(last.started)]


def kill_all_ams(engine: LocalEngine, application_id: ApplicationId) -> None:
    """Kill each ApplicationMaster that an application has, one after the other."""
    kill_am(engine, application_id)
    wait_until(lambda: registered(engine, application_id) == 2)
    kill_am(engine, application_id)


def registered(engine: LocalEngine, application_id: ApplicationId) -> int:
    """Return how many attempts have registered, and could be named to be killed."""
    text = (application_dir(engine, application_id) / "witness").read_text()
    return text.count("registered") if is_recorded(engine, application_id) else 0


def kill_am(engine: LocalEngine, application_id: ApplicationId) -> None:
    pid, started = map(int, (application_dir(engine, application_id) / "am.pid").read_text().split())
    pidfd = open_process(pid, started, os.geteuid())
    assert pidfd is not None
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert select.select([pidfd], [], [], 120)[0]
    os.close(pidfd)


# ---- the way of an application ----


def test_an_application_runs_to_its_end_and_leaves_no_process(engine: LocalEngine) -> None:
    application_id = submit(engine, "finish")
    view = ended(engine, application_id)
    assert (view.state, view.final_status) == (State.FINISHED, FinalStatus.SUCCEEDED)
    assert view.finished_ms is not None
    assert view.finished_ms >= view.submitted_ms
    assert starts(engine, application_id) == ["1"]
    wait_until(lambda: runner_of(engine) is None)
    assert not is_locked(str(application_dir(engine, application_id) / "alive"))


def test_an_application_that_ends_while_a_list_is_read_is_listed_once(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    application_id = submit(engine, "finish")
    wait_until(lambda: row_state(engine, application_id) == "done")
    rows = Queue.rows

    def before_its_end(self: Queue, where: str = "TRUE", *args: Any, **columns: str) -> Any:
        return rows(self, where.replace("state != 'done'", "TRUE"), *args, **columns)

    monkeypatch.setattr(Queue, "rows", before_its_end)
    assert [view["application_id"] for view in listed_json(engine, limit=10)] == [str(application_id)]


def test_ids_have_yarns_form_and_grow(engine: LocalEngine) -> None:
    first, second = submit(engine, "quick"), submit(engine, "quick")
    assert first.cluster_timestamp_ms == second.cluster_timestamp_ms
    assert (first.number, second.number) == (1, 2)
    assert engine.ids() == [str(first), str(second)]


@pytest.mark.slow
def test_many_submissions_from_eight_processes_at_once_all_run_each_exactly_once(
    start_engine: Callable[..., LocalEngine], state_dir: Path
) -> None:
    each = 25 if FULL else 6
    engine = start_engine(local__vcores="1000", local__memory="8")
    options = json.dumps({"local.vcores": "1000", "local.memory": "8", "gpuid.lock_dir": f"{state_dir}-gpus"})
    command = [sys.executable, "-I", small_app.__file__, str(state_dir), options, str(each), "quick"]
    submitters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    ids = [ApplicationId.from_text(item) for it in submitters for item in it.communicate(timeout=240)[0].split()]
    assert [it.returncode for it in submitters] == [0] * 8
    assert len(set(ids)) == 8 * each
    wait_until(lambda: all(view.state.ended for view in listed(engine)), 240)
    assert {engine.view(id_).value.state for id_ in ids} == {State.FINISHED}
    assert [starts(engine, id_) for id_ in ids] == [["1"]] * len(ids)
    wait_until(lambda: runner_of(engine) is None)


def test_no_wake_up_is_lost_when_the_runner_is_just_leaving(engine: LocalEngine) -> None:
    for pause_s in [0.0, 0.001, 0.003] * (5 if FULL else 2):
        application_id = submit(engine, "quick")
        wait_until(lambda item=application_id: row_state(engine, item) == "done")  # type: ignore[misc]
        time.sleep(pause_s)


def test_an_application_survives_a_closed_terminal_and_a_killed_submitter(engine: LocalEngine, state_dir: Path) -> None:
    options = json.dumps({"local.memory": "1000", "gpuid.lock_dir": f"{state_dir}-gpus"})
    command = [sys.executable, "-I", small_app.__file__, str(state_dir), options, "1", "sleep"]
    script = f"exec 9>{state_dir}-a-lock-of-the-shell; exec {shlex.join(command)}"
    submitter = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert submitter.stdout is not None
    application_id = ApplicationId.from_text(submitter.stdout.readline().strip())
    for number in (signal.SIGHUP, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(submitter.pid, number)
    submitter.communicate()
    running(engine, application_id)
    pid = am_of(engine, application_id)
    assert os.getsid(pid) == pid
    runner = signal_runner(engine, signal.SIGCONT)
    assert os.getsid(runner) == runner
    for item in (pid, runner):
        assert [file for file in open_files(item) if "lock-of-the-shell" in file] == []


# ---- first come, first served; all or none ----


def test_a_later_application_does_not_overtake_a_waiting_one(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "first"), memory_mib=300, containers=2)
    running(engine, first)
    large = submit(engine, "wait", str(tmp_path / "large"), memory_mib=500, containers=2)
    small = submit(engine, "wait", str(tmp_path / "small"), memory_mib=100)
    wait_until(lambda: "needs" in engine.view(large).value.diagnostics)
    view = engine.view(large).value
    assert (view.state, view.phase) == (State.ACCEPTED, "waiting")
    assert view.diagnostics == f"needs 1000 MiB of memory, 400 MiB free: {first} (uid{os.geteuid()})"
    assert engine.view(small).value.diagnostics == "waiting: 1 ahead"
    assert [item.diagnostics for item in listed(engine)][1:] == [view.diagnostics, "waiting: 1 ahead"]
    (tmp_path / "first").touch()
    running(engine, large)
    assert engine.view(small).value.state is State.ACCEPTED
    (tmp_path / "large").touch()
    running(engine, small)
    (tmp_path / "small").touch()
    assert ended(engine, small).state is State.FINISHED


def test_a_waiting_application_names_the_change_with_which_it_starts(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "first"), memory_mib=600)
    running(engine, first)
    large = submit(engine, "wait", str(tmp_path / "large"), memory_mib=900)
    wait_until(lambda: "needs" in engine.view(large).value.diagnostics)
    found = engine.view_in_full(str(large)).json
    waiting = found["waiting"]
    assert (waiting["code"], waiting["message"]) == ("nodes_full", found["diagnostics"])
    assert (waiting["resource"], waiting["asked"], waiting["available"]) == ("memory", 900, 400)
    assert [item["id"] for item in waiting["ahead"]] == [str(first)]
    assert waiting["since_ms"] == found["submitted_ms"]
    assert waiting["estimate"] == {"earliest_ms": None, "latest_ms": None, "coverage": None, "samples": 0}
    same = engine.view(large).value.waiting
    assert same is not None
    assert (same.code, same.message, same.change) == ("nodes_full", waiting["message"], "")
    assert listed(engine)[1].waiting == same
    behind = submit(engine, "wait", str(tmp_path / "behind"), memory_mib=256)
    message = engine.view_in_full(str(behind)).json["waiting"]
    assert (message["code"], message["message"], message["change"]) == ("nodes_full", "waiting: 1 ahead", "")
    assert [(item["id"], item["amounts"]["memory"]) for item in message["ahead"]] == [(str(large), 900)]
    engine.kill(large, "the test")
    memory_mib = int(waiting["change"].partition("--set resources.memory=")[2].rstrip(")"))
    engine.kill(behind, "the test")
    changed = submit(engine, "wait", str(tmp_path / "large"), memory_mib=memory_mib)
    running(engine, changed)
    assert engine.view(changed).value.waiting is None or engine.view(changed).value.waiting.code == "starting"  # type: ignore[union-attr]


def test_a_reason_that_cannot_be_read_is_shown_as_its_words(engine: LocalEngine, tmp_path: Path) -> None:
    """A damaged row hides no application, and an earlier version's row has only the words."""
    running(engine, submit(engine, "wait", str(tmp_path / "first"), memory_mib=600))
    large = submit(engine, "wait", str(tmp_path / "large"), memory_mib=900)
    wait_until(lambda: "needs" in engine.view(large).value.diagnostics)
    words = engine.view(large).value.diagnostics
    for text in ("", "{", "[]", '{"code": 3}', '{"message": "another"}'):
        with Queue(engine.state) as queue, queue.change():
            queue.update(int(str(large).rpartition("_")[2]), waiting=text)
        found = engine.view(large).value
        assert found.waiting is not None
        assert (found.diagnostics, found.waiting.code, found.waiting.message) == (words, "nodes_full", words)


def test_a_short_one_starts_before_the_first_if_that_is_not_delayed(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "first"), memory_mib=600, max_runtime_s=3600.0)
    running(engine, first)
    large = submit(engine, "wait", str(tmp_path / "large"), memory_mib=900)
    long = submit(engine, "wait", str(tmp_path / "long"), memory_mib=300, max_runtime_s=7200.0)
    short = submit(engine, "wait", str(tmp_path / "short"), memory_mib=300, max_runtime_s=600.0)
    running(engine, short)
    wait_until(lambda: engine.view(long).value.diagnostics == "waiting: 1 ahead")
    wait_until(lambda: "needs" in engine.view(large).value.diagnostics)
    for name in ("first", "short"):
        (tmp_path / name).touch()
    running(engine, large)


def test_a_higher_priority_starts_first(engine: LocalEngine, tmp_path: Path) -> None:
    running(engine, submit(engine, "wait", str(tmp_path / "first"), memory_mib=600))
    low = submit(engine, "wait", str(tmp_path / "low"), memory_mib=900)
    wait_until(lambda: "needs" in engine.view(low).value.diagnostics)
    high = submit(engine, "wait", str(tmp_path / "high"), memory_mib=900, priority=1)
    wait_until(lambda: "needs" in engine.view(high).value.diagnostics)
    wait_until(lambda: engine.view(low).value.diagnostics == "waiting: 1 ahead")
    (tmp_path / "first").touch()
    running(engine, high)
    (tmp_path / "high").touch()
    running(engine, low)


def test_no_application_starts_with_an_invalid_operators_file(
    start_engine: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dlapp.cluster.local import queue_state

    (tmp_path / "node.yaml").write_text("queue: {user_gcores: many}\n")
    engine = start_engine()
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    application = submit(engine, "quick")
    monkeypatch.setattr(queue_state, "POLICY_FILE", str(tmp_path / "node.yaml"))
    monkeypatch.setattr(node_policy, "__kwdefaults__", {"owner": os.getuid()})
    runner = runner_here(engine)
    runner.starter.start_waiting()
    waiting = engine.view(application).value.waiting
    assert waiting is not None
    assert waiting.code == "service_away"
    assert "node.yaml:1: queue.user_gcores: 'many' is not a whole number" in waiting.message
    (tmp_path / "node.yaml").unlink()
    runner.run()
    assert engine.view(application).value.state is State.FINISHED


def test_applications_that_fit_together_run_together(engine: LocalEngine) -> None:
    ids = [submit(engine, "sleep", memory_mib=250) for _ in range(4)]
    running(engine, *ids)


def test_an_ask_that_can_never_fit_is_refused_with_the_numbers(
    start_engine: Callable[..., LocalEngine],
) -> None:
    engine = start_engine(local__memory="24g", local__vcores="4")
    with pytest.raises(RequestTooLarge, match=r"^4 containers asked for 64 GiB of memory, this machine has 24 GiB of"):
        engine.check(spec_of(memory_mib=16 << 10, containers=4))
    with pytest.raises(
        RequestTooLarge, match=r"^5 containers asked for 5 vcores, this machine has 4 vcores, .*local.vcores"
    ):
        engine.check(spec_of(containers=5))
    assert engine.check(spec_of(containers=4)) == []


def test_a_request_that_no_longer_fits_ends_and_the_rest_continues(
    start_engine: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine(local__memory="10")
    monkeypatch.setattr(starting, "PATIENCE_S", 0.0)
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    large, small = submit(engine, "quick", memory_mib=11), submit(engine, "quick")
    runner_here(engine).run()
    view = engine.view(large).value
    assert (view.state, view.diagnostics) == (
        State.FAILED,
        "asked for 11 MiB of memory, this machine has 10 MiB of memory",
    )
    assert engine.view(small).value.state is State.FINISHED


def test_keys_that_only_place_work_on_a_cluster_pass_with_a_line(engine: LocalEngine) -> None:
    from dlapp.value import replace
    from dlapp.values.spec import Placement

    spec = replace(spec_of(), queue="research", placement=Placement(nodes=("node7",)))
    assert engine.check(spec) == [
        "application.queue has no effect on one machine",
        "resources.nodes has no effect on one machine",
    ]


# ---- the spare ApplicationMaster ----


def with_spare(engine: LocalEngine) -> int:
    """Announce a submission; the answer is the process that waits for it."""
    engine.prepare()
    return wait_until(lambda: process_with(engine, b"--spare-fd"))


def test_a_spare_applicationmaster_serves_the_first_application_only(engine: LocalEngine, tmp_path: Path) -> None:
    spare = with_spare(engine)
    first, second = (submit(engine, "wait", str(tmp_path / "go")) for _ in range(2))
    running(engine, first, second)
    assert am_of(engine, first) == spare
    assert am_of(engine, second) != spare
    (tmp_path / "go").touch()
    for item in (first, second):
        assert ended(engine, item).final_status is FinalStatus.SUCCEEDED
        assert starts(engine, item) == ["1"]
    assert (application_dir(engine, first) / "am.log").exists()


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_dead_spare_applicationmaster_fails_only_its_own_application(engine: LocalEngine, when: str) -> None:
    spare = with_spare(engine)
    if when == "before":
        os.kill(spare, signal.SIGKILL)
    if when == "meanwhile":
        os.kill(spare, signal.SIGSTOP)  # it gets its application, and never reads it
    application_id = submit(engine, "sleep" if when == "after" else "finish")
    if when == "meanwhile":
        wait_until((application_dir(engine, application_id) / "am.pid").exists)
        os.kill(spare, signal.SIGKILL)
    if when == "after":
        running(engine, application_id)
        assert am_of(engine, application_id) == spare
        kill_all_ams(engine, application_id)
    view = ended(engine, application_id)
    if when == "after":
        assert (view.state, view.diagnostics) == (State.FAILED, KILLED)
    else:
        assert view.final_status is FinalStatus.SUCCEEDED
        assert starts(engine, application_id) == ["1"]


def test_a_spare_application_master_ends_with_its_runner(engine: LocalEngine) -> None:
    with_spare(engine)
    kill_runner(engine)
    wait_until(lambda: process_with(engine, b"--spare-fd") is None)


# ---- deaths ----


KILLED = "the ApplicationMaster died: killed from outside (signal 9), for example by killall or the kernel (dmesg)"
"""The diagnostics of an application whose ApplicationMaster was killed."""


def test_a_dead_applicationmaster_is_restarted_and_its_application_continues(
    engine: LocalEngine, tmp_path: Path
) -> None:
    first, second = submit(engine, "wait", str(tmp_path / "go"), memory_mib=1000), submit(engine, "quick")
    running(engine, first)
    kill_am(engine, first)
    wait_until(lambda: registered(engine, first) == 2)
    assert row_state(engine, second) == "waiting"
    (tmp_path / "go").touch()
    view = ended(engine, first)
    assert (view.state, view.final_status) == (State.FINISHED, FinalStatus.SUCCEEDED)
    assert starts(engine, first) == ["1", "2"]
    assert ended(engine, second).state is State.FINISHED


def test_the_last_dead_applicationmaster_fails_its_application_and_the_queue_continues(
    engine: LocalEngine,
) -> None:
    first, second = submit(engine, "sleep", memory_mib=1000), submit(engine, "quick")
    running(engine, first)
    kill_all_ams(engine, first)
    view = ended(engine, first)
    assert (view.state, view.final_status) == (State.FAILED, FinalStatus.FAILED)
    assert view.diagnostics == KILLED
    assert starts(engine, first) == ["1", "2", "3"]
    assert ended(engine, second).state is State.FINISHED


def test_the_number_of_attempts_is_configured(start_engine: Callable[..., LocalEngine]) -> None:
    for most in (1, 3):
        engine = start_engine(f"-{most}", local__am_attempts=str(most))
        application_id = submit(engine, "die")
        assert ended(engine, application_id).diagnostics == KILLED
        assert starts(engine, application_id) == [str(number + 1) for number in range(most + 1)]


def test_the_state_is_restarting_until_the_next_applicationmaster_starts(engine: LocalEngine, tmp_path: Path) -> None:
    application_id = submit(engine, "sleep")
    running(engine, application_id)
    runner = signal_runner(engine, signal.SIGCONT)
    # It has the lock of what it starts for a moment longer than it takes to record that.
    wait_until(lambda: not any(file.endswith("/alive") for file in open_files(runner)))
    signal_runner(engine, signal.SIGSTOP)
    kill_am(engine, application_id)
    view = engine.view(application_id).value
    assert (view.state, view.phase) == (State.RUNNING, "restarting")
    assert view.diagnostics.startswith("the ApplicationMaster died")
    assert listed(engine)[0].phase == "restarting"
    signal_runner(engine, signal.SIGCONT)
    wait_until(lambda: registered(engine, application_id) == 2)
    wait_until(lambda: engine.view(application_id).value.phase == "running")


def test_an_application_master_that_does_not_register_again_is_tried_three_times(engine: LocalEngine) -> None:
    application_id = submit(engine, "never-again")
    view = ended(engine, application_id)
    assert (view.state, view.final_status) == (State.FAILED, FinalStatus.FAILED)
    assert starts(engine, application_id) == ["1", "2", "2", "2", "2"]


def test_a_traceback_of_the_application_master_is_in_the_diagnostics(engine: LocalEngine) -> None:
    view = ended(engine, application_id := submit(engine, "raise"))
    log = application_dir(engine, application_id) / "am.log"
    assert view.diagnostics == f"the ApplicationMaster died: RuntimeError: the roof is on fire; its log is {log}"
    assert "the roof is on fire" in log.read_text()


def test_an_applicationmaster_that_never_starts_is_tried_three_times(engine: LocalEngine) -> None:
    application_id = submit(engine, "never")
    view = ended(engine, application_id)
    message = "its ApplicationMaster did not start in 3 starts: no ApplicationMaster today"
    assert (view.state, view.diagnostics) == (State.FAILED, message)
    assert starts(engine, application_id) == ["1", "1", "1"]


def test_a_begun_commit_is_finished_and_decides_the_end(engine: LocalEngine) -> None:
    view = ended(engine, submit(engine, "commit-die"))
    assert (view.state, view.final_status) == (State.FINISHED, FinalStatus.SUCCEEDED)


def test_cleaning_up_is_tried_three_times(engine: LocalEngine) -> None:
    application_id = submit(engine, "aftermath-dies")
    view = ended(engine, application_id)
    assert view.state is State.FAILED
    assert "cleaning up after it failed 3 times" in view.diagnostics
    assert starts(engine, application_id) == ["1", "2", "3", "4", "5"]


def test_a_killed_runner_stops_no_application_and_the_next_command_replaces_it(
    engine: LocalEngine, tmp_path: Path
) -> None:
    application_id = submit(engine, "wait", str(tmp_path / "go"), memory_mib=1000)
    running(engine, application_id)
    kill_runner(engine)
    later = submit(engine, "quick")
    assert engine.view(application_id).value.state is State.RUNNING
    (tmp_path / "go").touch()
    assert ended(engine, application_id).state is State.FINISHED
    assert ended(engine, later).state is State.FINISHED
    assert starts(engine, application_id) == ["1"]


def test_an_application_that_ends_starts_the_runner_that_others_wait_for(engine: LocalEngine, tmp_path: Path) -> None:
    first = submit(engine, "wait", str(tmp_path / "go"), memory_mib=1000)
    running(engine, first)
    second = submit(engine, "quick")
    kill_runner(engine)
    (tmp_path / "go").touch()
    assert ended(engine, second).state is State.FINISHED  # no command tended


def test_after_all_processes_are_killed_the_status_is_failed_and_the_queue_continues(engine: LocalEngine) -> None:
    first, second = submit(engine, "sleep", memory_mib=1000), submit(engine, "quick")
    running(engine, first)
    kill_runner(engine)
    kill_am(engine, first)
    wait_until(lambda: engine.view(first).value.state is State.FAILED)
    view = engine.view(first).value
    # Its runner died before it, so nobody has seen how it ended.
    died = f"the ApplicationMaster died; its log is {application_dir(engine, first) / 'am.log'}"
    assert view.diagnostics == died
    assert view.finished_ms is not None
    assert row_state(engine, first) == "running"
    assert listed(engine)[0].state is State.FAILED
    engine.ensure_runner()
    assert ended(engine, first).diagnostics == died
    assert ended(engine, second).state is State.FINISHED


@pytest.mark.parametrize("asked", [False, True], ids=["died", "killed"])
@pytest.mark.parametrize("has_runner", [True, False], ids=["watched", "alone"])
def test_the_time_of_a_death_is_the_same_before_and_after_the_cleanup(
    start_engine: Callable[..., LocalEngine], asked: bool, has_runner: bool
) -> None:
    engine = start_engine(local__am_attempts="1")
    application_id = submit(engine, "sleep")
    running(engine, application_id)
    if asked:
        write_kill_request(engine.session, str(application_dir(engine, application_id)), "tony")
    if not has_runner:
        kill_runner(engine)
    an_hour_ago = int(time.time()) - 3600  # much older, and it would be cleared away as history
    for name in ("view.json", "am.json", "am.log"):
        os.utime(application_dir(engine, application_id) / name, (an_hour_ago, an_hour_ago))
    before_ms = time.time_ns() // 1_000_000
    kill_am(engine, application_id)
    if not has_runner:
        seen = engine.view(application_id).value
        assert seen.state.ended
        engine.ensure_runner()
        assert ended(engine, application_id).finished_ms == seen.finished_ms == an_hour_ago * 1000
    view = ended(engine, application_id)
    assert view.state is (State.KILLED if asked else State.FAILED)
    if has_runner:
        assert view.finished_ms == int((application_dir(engine, application_id) / "died").read_text().split()[0])
        assert view.finished_ms >= before_ms


def test_after_a_reboot_running_applications_failed_and_waiting_ones_run(engine: LocalEngine) -> None:
    first, second = submit(engine, "sleep", memory_mib=1000), submit(engine, "quick")
    running(engine, first)
    kill_runner(engine)
    kill_am(engine, first)
    with Queue(engine.state) as queue, queue.change():
        queue.update(first.number, boot_id="another")
    # What was not forced to the disk is gone, too.
    (application_dir(engine, first) / "am.json").unlink()
    (application_dir(engine, first) / "view.json").write_text("")
    view = engine.view(first).value
    assert (view.state, view.diagnostics) == (State.FAILED, "the machine was restarted while it ran")
    engine.ensure_runner()
    assert ended(engine, first).state is State.FAILED
    assert ended(engine, second).state is State.FINISHED


def test_an_application_without_its_directory_does_not_block_the_queue(engine: LocalEngine) -> None:
    first, second = submit(engine, "sleep", memory_mib=1000), submit(engine, "quick")
    running(engine, first)
    kill_runner(engine)
    application_dir(engine, first).rename(application_dir(engine, first).with_name("taken-away"))
    (application_dir(engine, first).with_name("taken-away") / "am.pid").rename(engine.state.path + "/am.pid")
    os.kill(int(Path(engine.state.path, "am.pid").read_text().split()[0]), signal.SIGKILL)
    engine.ensure_runner()
    assert "is gone" in ended(engine, first).diagnostics
    assert ended(engine, second).state is State.FINISHED


@pytest.mark.slow
@each_seed("killed runners and masters")
def test_applications_end_and_run_once_after_random_kills(engine: LocalEngine, seed: int) -> None:
    """Submit 8 applications with three seeds, at night 24 with five, and kill the runner or a master after each."""
    chance = random.Random(seed)
    rounds = 24 if FULL else 8
    ids = []
    for _ in range(rounds):
        ids.append(submit(engine, chance.choice(["finish", "quick", "commit-die", "raise"]), memory_mib=400))
        time.sleep(chance.uniform(0, 0.08))
        victim = chance.choice(["runner", "am", "both", "nobody"])
        if victim in ("am", "both"):
            with contextlib.suppress(OSError, ValueError, AssertionError):
                kill_am(engine, chance.choice(ids))
        if victim in ("runner", "both") and (pid := runner_of(engine)) is not None and pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def all_done() -> bool:
        engine.ensure_runner()
        return all(row_state(engine, id_) == "done" for id_ in ids)

    for application_id in ids:
        wait_until(all_done, 240)
        assert engine.view(application_id).value.state.ended
        assert not began_twice(engine, application_id)
        assert starts(engine, application_id) == sorted(starts(engine, application_id))
    wait_until(lambda: runner_of(engine) is None)


# ---- submissions that die half-way ----


def test_leftovers_of_an_unrecorded_submission_do_not_block_others(engine: LocalEngine) -> None:
    first = submit(engine, "quick")
    left = application_dir(engine, ApplicationId(first.cluster_timestamp_ms, 2))
    left.mkdir()
    (left / "submission.json").write_text("half")
    with pytest.raises(NotFound):
        engine.view(ApplicationId(first.cluster_timestamp_ms, 2))
    second = submit(engine, "quick")
    assert second.number == 2
    assert ended(engine, second).state is State.FINISHED


def test_old_leftovers_in_staging_are_swept_and_fresh_ones_kept(engine: LocalEngine) -> None:
    old, fresh = Path(engine.state.staging, "old"), Path(engine.state.staging, "fresh")
    for directory in (old, fresh):
        directory.mkdir()
        (directory / "secrets.json").write_text("{}")
    os.utime(old, (1, 1))
    ended(engine, submit(engine, "quick"))
    wait_until(lambda: runner_of(engine) is None)
    assert (old.exists(), fresh.exists()) == (False, True)


def test_a_submission_whose_archive_is_gone_leaves_no_files(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = submission.stage

    def stage(*args: Any) -> str:
        os.unlink(os.path.join(engine.archive_cache(), "small.tar.gz"))
        return real(*args)

    monkeypatch.setattr(submission, "stage", stage)
    with pytest.raises(NotFound, match="is gone: submit again"):
        submit(engine, "quick")
    assert listed(engine) == []
    assert os.listdir(engine.state.staging) == []
    assert os.listdir(engine.state.applications) == []


# ---- ending ----


def test_killing_a_waiting_application_lets_the_next_one_start(engine: LocalEngine) -> None:
    first, second = submit(engine, "sleep", memory_mib=600), submit(engine, "sleep", memory_mib=600)
    third = submit(engine, "sleep", memory_mib=300)
    running(engine, first)
    assert engine.kill(second, "tony") == f"{second} was killed before it started"
    view = engine.view(second).value
    assert (view.state, view.final_status) == (State.KILLED, FinalStatus.KILLED)
    assert view.diagnostics == "killed by tony before it started"
    running(engine, third)
    assert starts(engine, second) == []


def test_killing_a_running_application_leaves_no_process_and_no_secret(engine: LocalEngine) -> None:
    application_id = submit(engine, "sleep")
    running(engine, application_id)
    assert (application_dir(engine, application_id) / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert engine.kill(application_id, "tony") == f"{application_id} was killed, no output kept"
    assert engine.view(application_id).value.state is State.KILLED
    assert not is_locked(str(application_dir(engine, application_id) / "alive"))
    assert not (application_dir(engine, application_id) / "secrets.json").exists()


def test_killing_a_starting_application_kills_it(engine: LocalEngine) -> None:
    for _ in range(4):
        application_id = submit(engine, "sleep")
        engine.kill(application_id, "tony")
        assert engine.view(application_id).value.state is State.KILLED


def test_a_kill_without_a_runner_works_as_well(engine: LocalEngine) -> None:
    application_id = submit(engine, "sleep")
    running(engine, application_id)
    kill_runner(engine)
    engine.kill(application_id, "tony")
    assert engine.view(application_id).value.state is State.KILLED


def test_killing_an_ended_application_reports_its_end(engine: LocalEngine) -> None:
    application_id = submit(engine, "quick")
    ended(engine, application_id)
    message = f"{application_id} had already ended: succeeded"
    assert engine.kill(application_id, "tony") == message
    assert engine.soft_kill(application_id, "tony") == message


def test_a_soft_kill_of_a_waiting_application_is_a_kill(engine: LocalEngine) -> None:
    first, second = submit(engine, "sleep", memory_mib=1000), submit(engine, "sleep")
    running(engine, first)
    assert engine.soft_kill(second, "tony") == f"{second} was killed before it started"
    assert engine.view(second).value.state is State.KILLED


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            {"state": "stopping", "left_s": 29.8},
            "is being stopped, its output will be committed; SIGKILL follows in 30 s",
        ),
        ({"state": "stopping", "left_s": 3, "commits": False}, "application_1_0001 is being stopped; SIGKILL follows"),
        ({"state": "already", "left_s": 3}, "is already being stopped; SIGKILL follows in 3 s at the latest"),
        ({"state": "ended"}, "application_1_0001 had already ended"),
        ({"state": "new word", "message": "what the ApplicationMaster says"}, "what the ApplicationMaster says"),
    ],
)
def test_the_answer_to_a_soft_kill_is_one_line(answer: dict[str, Any], line: str) -> None:
    assert line in from_json(StopAnswer, answer).line("application_1_0001")


def test_an_unanswered_soft_kill_raises_unreachable(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlapp.cluster.local.client.kill.SOFT_KILL_REQUEST_TIMEOUT_S", 0.2)
    application_id = submit(engine, "sleep")
    running(engine, application_id)
    with pytest.raises(Unreachable):
        engine.soft_kill(application_id, "tony")


def test_an_unknown_application_is_not_found(engine: LocalEngine) -> None:
    for call in (engine.view, engine.submission, engine.logs, engine.dashboard_urls):
        with pytest.raises(NotFound, match="application_1_99999 is not known on this machine"):
            call(NOBODY)
    with pytest.raises(NotFound):
        engine.kill(NOBODY, "tony")


# ---- looking ----


def test_logs_and_pages_have_urls(engine: LocalEngine) -> None:
    application_id = submit(engine, "sleep")
    page, history = engine.dashboard_urls(application_id, wait_s=120)
    assert re.fullmatch("http://127.0.0.1:9/[0-9a-f]{32}/", page)
    assert history == f"file://{application_dir(engine, application_id)}/report.html"
    running(engine, application_id)
    (log,) = engine.logs(application_id)
    assert (
        log.files["stdout"] == f"file://{application_dir(engine, application_id)}/containers/{log.container_id}/stdout"
    )
    assert engine.submission(application_id).spec == spec_of("sleep")


def test_a_list_has_all_that_has_not_ended_and_the_last_that_has(engine: LocalEngine) -> None:
    waits = submit(engine, "sleep", memory_mib=1000)
    running(engine, waits)
    engine.kill(waits, "tony")
    done = [submit(engine, "finish") for _ in range(3)]
    for item in done:
        ended(engine, item)
    runs = submit(engine, "sleep")
    running(engine, runs)
    assert [view.application_id for view in listed(engine, limit=2)] == [*done[1:], runs]
    assert [view.application_id for view in listed(engine, everybody=True)] == [waits, *done, runs]
    assert len(listed(engine, user=user_name(os.geteuid()))) == 5
    assert listed(engine, user="nobody") == []
    assert len(listed(engine, user="tony")) == 5  # the username of the caller's own files
    assert [len(view.containers) for view in listed(engine, limit=1)] == [1, 1]


def test_a_long_list_reads_no_file_of_ended_applications(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(engine, submit(engine, "finish"))
    application_dir(engine, listed(engine)[0].application_id).rename(Path(engine.state.path) / "elsewhere")
    assert listed(engine)[0].state is State.FINISHED


# ---- GPUs ----


@pytest.fixture
def two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, for the processes that are started; this one sees them, too."""
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health import nvml

    for name, value in with_devices(tmp_path, [StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b")]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dlapp.system.processes.spawn._KEPT_VARIABLES", ("PATH", "LD_LIBRARY_PATH", "NVML_STUB"))
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    seen = (Device("GPU-a", 0, 0), Device("GPU-b", 1, 1))
    monkeypatch.setattr("dlapp.gpuid.stores.machine.MachineLedger.devices", lambda self: seen)


@pytest.mark.slow
@pytest.mark.usefixtures("two_devices")
def test_gpus_of_a_machine_are_shared_between_users(start_engine: Callable[..., LocalEngine]) -> None:
    ann, tony = start_engine("-ann"), start_engine("-tony")
    assert ann.info().has_gpus
    first = submit(ann, "sleep", gcores=2)
    running(ann, first)
    second = submit(tony, "sleep", gcores=1)
    name = user_text(os.geteuid())
    reason = f"needs 1 gcore, 0 free: gpu0 {first} ({name}), gpu1 {first} ({name})"
    wait_until(lambda: tony.view(second).value.diagnostics == reason)
    kill_runner(ann)
    kill_am(ann, first)
    running(tony, second)
    ann.ensure_runner()
    assert ended(ann, first).state is State.FAILED


@pytest.mark.slow
@pytest.mark.usefixtures("two_devices")
def test_programs_without_gpus_run_while_the_first_waits_for_gpus(
    start_engine: Callable[..., LocalEngine], tmp_path: Path
) -> None:
    engine, other = start_engine(), start_engine("-other")
    for holder, what in ((engine, "own"), (other, "foreign")):
        first = submit(holder, "wait", str(tmp_path / what), gcores=1)
        running(holder, first)
        both = submit(engine, "wait", str(tmp_path / f"{what}-both"), gcores=2)
        one, none = submit(engine, "sleep", gcores=1), submit(engine, "sleep")
        running(engine, none)
        wait_until(lambda both=both: "needs 2 gcores, 1 free" in engine.view(both).value.diagnostics)  # type: ignore[misc]
        wait_until(lambda item=one: engine.view(item).value.diagnostics == "waiting: 1 ahead")  # type: ignore[misc]
        engine.kill(one, "the test")
        (tmp_path / what).touch()
        running(engine, both)
        (tmp_path / f"{what}-both").touch()
        ended(engine, both)


@pytest.mark.usefixtures("two_devices")
def test_gpus_in_quarantine_are_the_reason_and_the_application_starts_with_fewer(
    start_engine: Callable[..., LocalEngine], state_dir: Path
) -> None:
    from dlapp.gpuid.stores.machine import MachineLedger

    engine, ledger = start_engine(), MachineLedger(f"{state_dir}-gpus")
    ledger.quarantine("GPU-b", cause="operator", detail="for the test", by="root")
    both = submit(engine, "sleep", gcores=2)
    wait_until(lambda: "quarantined" in engine.view(both).value.diagnostics)
    waiting = engine.view_in_full(str(both)).json["waiting"]
    assert (waiting["code"], waiting["message"]) == ("gpus_quarantined", engine.view(both).value.diagnostics)
    assert (waiting["resource"], waiting["asked"], waiting["available"]) == ("gcores", 2, 1)
    assert waiting["change"] == "1 GPU: now (--set resources.gcores=1)"
    engine.kill(both, "the test")
    running(engine, submit(engine, "sleep", gcores=1))


def test_gpus_are_spread_on_request(
    start_engine: Callable[..., LocalEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    from dlapp.gpuid.stores.machine import MachineLedger

    links = ((0, 10, 50, 50), (10, 0, 50, 50), (50, 50, 0, 10), (50, 50, 10, 0))
    for name, value in with_devices(
        tmp_path, [StubDevice(uuid=f"GPU-{n}", pcie=row) for n, row in enumerate(links)]
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dlapp.system.processes.spawn._KEPT_VARIABLES", ("PATH", "LD_LIBRARY_PATH", "NVML_STUB"))
    engine, ledger = start_engine(local__gcores="4"), MachineLedger(f"{state_dir}-gpus")
    for spread, expected in ((True, {"GPU-0", "GPU-2"}), (False, {"GPU-0", "GPU-1"})):
        one = submit(engine, "sleep", gcores=2, spread=spread)
        running(engine, one)
        assert set(ledger.holders()) == expected
        engine.kill(one, "root")


@pytest.mark.usefixtures("two_devices")
def test_an_ask_for_more_gpus_than_there_are_is_refused(start_engine: Callable[..., LocalEngine]) -> None:
    engine = start_engine()
    with pytest.raises(RequestTooLarge, match="asked for 3 gcores, this machine has 2 gcores"):
        engine.check(spec_of(gcores=3))
    with pytest.raises(RequestTooLarge, match="asked for 2 gcores, this machine has 1 gcore "):
        start_engine("-less", local__gcores="1").check(spec_of(gcores=2))
    assert not start_engine("-none", local__gcores="0").info().has_gpus


def test_a_machine_whose_gpus_are_all_split_has_none_for_a_file_that_names_none(
    start_engine: Callable[..., LocalEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlapp.gpuid.health import nvml

    split = StubDevice(mig=(Part("MIG-a"), Part("MIG-b")))
    for name, value in with_devices(tmp_path, [split]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    assert not start_engine().info().has_gpus
    with_devices(tmp_path, [split, StubDevice()])
    assert start_engine("-2").info().has_gpus


def test_too_many_gcores_are_refused_once_also_on_a_machine_with_slices(
    start_engine: Callable[..., LocalEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlapp.gpuid.health import nvml

    for name, value in with_devices(tmp_path, [StubDevice(mig=(Part("MIG-a"), Part("MIG-b"))), StubDevice()]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    problems = list[DlappError]()
    start_engine().check(spec_of(gcores=4), problems.append)
    assert [str(problem).partition(" (")[0] for problem in problems] == [
        "asked for 4 whole GPUs, this machine has 1 whole GPU"
    ]
    problems.clear()
    start_engine("-less", local__gcores="1").check(spec_of(gcores=1, containers=2, gpu="mig"), problems.append)
    assert len(problems) == 1, "what only local.gcores limits is refused, too"


@pytest.mark.parametrize(("init", "message"), [(18, "Driver/library version mismatch"), (999, "Unknown Error")])
def test_without_a_working_driver_only_applications_with_gpus_are_refused(
    start_engine: Callable[..., LocalEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: int, message: str
) -> None:
    from dlapp.gpuid.health import nvml

    for name, value in with_devices(tmp_path, [StubDevice()], init=init).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    engine = start_engine()
    assert not engine.info().has_gpus
    assert engine.capacity().gcores == 0
    (note,) = engine.check(spec_of())
    assert note.startswith(f"it runs without GPUs: NVML: {message}")
    problems = list[DlappError]()
    engine.check(spec_of(gcores=1), problems.append)
    (problem,) = problems
    assert isinstance(problem, nvml.NvmlError)
    assert message in problem.problem
    assert "reboot this machine" in problem.repair
    with_devices(tmp_path, [StubDevice()])
    assert engine.info().has_gpus
    assert engine.check(spec_of(gcores=1)) == []
    assert start_engine("-none", local__gcores="0").check(spec_of()) == []


@pytest.mark.usefixtures("two_devices")
def test_gpus_of_a_ledger_that_does_not_serve_the_user_are_refused_before_the_submission(
    start_engine: Callable[..., LocalEngine], state_dir: Path
) -> None:
    engine = start_engine()
    directory = Path(f"{state_dir}-gpus")
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    with pytest.raises(Denied, match=r"others can remove what is not theirs \(as root: echo 'd "):
        engine.check(spec_of(gcores=1))
    engine.check(spec_of())


@pytest.mark.usefixtures("two_devices")
def test_a_ledger_that_fails_keeps_no_ended_application_from_being_settled(
    start_engine: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlapp.gpuid.rules import LedgerError
    from dlapp.gpuid.stores.machine import MachineLedger

    class NoCards:
        fds = ()

        def close(self) -> None:
            pass

    def broken(ledger: MachineLedger, application: str) -> None:
        raise LedgerError(f"the record of {application} is not what it must be")

    messages: list[str] = []
    monkeypatch.setattr(MachineLedger, "reclaim", broken)
    monkeypatch.setattr(GpuReservations, "reserve", lambda self, row: NoCards())
    monkeypatch.setattr(log, "warning", messages.append)
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    engine = start_engine()
    first, second = submit(engine, "finish", gcores=1), submit(engine, "quick")
    runner_here(engine).run()
    assert [row_state(engine, item) for item in (first, second)] == ["done", "done"]
    assert engine.view(first).value.state is State.FINISHED
    assert [line for line in messages if f"{first}: its leases in the GPU ledger could not be inspected" in line]


# ---- history ----


def test_ended_applications_are_forgotten_by_age_and_others_never(start_engine: Callable[..., LocalEngine]) -> None:
    engine = start_engine(history__age="1h", local__memory="1000")
    old, young = submit(engine, "quick"), submit(engine, "quick")
    for item in (old, young):
        ended(engine, item)
    wait_until(lambda: runner_of(engine) is None)
    with Queue(engine.state) as queue, queue.change():
        queue.update(old.number, finished_ms=1000)
    ended(engine, submit(engine, "quick"))
    wait_until(lambda: runner_of(engine) is None)
    assert [view.application_id.number for view in listed(engine)] == [2, 3]
    assert not application_dir(engine, old).exists()
    assert submit(engine, "quick").number == 4
