"""The loop with tasks that have nothing new to say: what it costs to have them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from dlapp.am.home import Home
from dlapp.am.loop import Item, Loop
from dlapp.cluster.engine import Ask, Grant, Heartbeat, Limits, Registered, TaskLaunch
from dlapp.control import Assignment, Hello, Orders, Phase, Report, derive_token
from dlapp.control_http import ControlConnection
from dlapp.ids import ApplicationId, ContainerId
from dlapp.jsonform import from_json, to_json
from dlapp.report import ApplicationView, Cause, FinalStatus
from dlapp.spec import AppSpec, Resources, RoleSpec, Secrets, Submission

APP = ApplicationId(1_700_000_000_000, 1)
SECRET = "ab" * 32
TASKS = 10


class Engine:
    """Gives every container that is asked for; of starts it tells nobody, as tasks are what the test says."""

    def __init__(self) -> None:
        self.numbers = itertools.count(2)
        self.given = 0
        self.over = False

    def register(self, control_url: str) -> Registered:
        return Registered(limits=Limits())

    def heartbeat(self, asks: Sequence[Ask], releases: Sequence[ContainerId], progress: float) -> Heartbeat:
        if self.over:
            return Heartbeat(shut_down="the test is over")
        granted = tuple(
            Grant(
                container_id=ContainerId(APP, 1, next(self.numbers)),
                request_id=ask.request_id,
                node="here",
                resources=ask.resources,
            )
            for ask in asks
            for _ in range(ask.count)
        )
        self.given += len(granted)
        return Heartbeat(granted=granted)

    def start(self, grant: Grant, launch: TaskLaunch) -> None:
        pass

    def stop(self, container_id: ContainerId) -> None:
        pass

    def finish(self, final_status: FinalStatus, cause: Cause, diagnostics: str) -> bool:
        return True

    def close(self) -> None:
        pass


class Watched(Home):
    """A home that counts the views."""

    views = 0

    def write_view(self, view: ApplicationView) -> None:
        self.views += 1
        super().write_view(view)


class Task:
    """A task that runs and says so, at once and then as often as it is answered."""

    def __init__(self, url: str, number: int) -> None:
        self.container_id = ContainerId(APP, 1, number)
        self._link = ControlConnection(url, derive_token(SECRET, str(self.container_id)))
        answer = self._call("hello", Hello(container_id=self.container_id, host="here", pid=1))
        index = from_json(Assignment, answer).index
        self._report = Report(container_id=self.container_id, number=2, index=index, phase=Phase.RUNNING)

    def report(self, wait_s: float = 0.0) -> None:
        orders = from_json(Orders, self._call("report", replace(self._report, wait_s=wait_s)))
        self._report = replace(self._report, seen=orders.number)

    def close(self) -> None:
        self._link.close()

    def _call(self, word: str, message: Hello | Report) -> object:
        return self._link.call("POST", f"/v1/tasks/{self.container_id}/{word}", to_json(message), timeout_s=60)


@pytest.fixture
def home(tmp_path: Path) -> Watched:
    return Watched(str(tmp_path))


@pytest.fixture
def tasks(home: Watched) -> Iterator[list[Task]]:
    """The tasks of an application, each of which has said once that it runs."""
    role = RoleSpec(name="worker", instances=TASKS, resources=Resources(memory_mib=1))
    spec = AppSpec(username="tony", appname="a", workspace="/w", script="run.sh", roles=(role,))
    submission = Submission(
        spec=spec, submitter="tony", submitted_ms=1, workspace_archive="/w.tar.gz", workspace_digest="0"
    )
    wakes: SimpleQueue[Item] = SimpleQueue()
    engine = Engine()
    loop = Loop(
        home=home,
        submission=submission,
        secrets=Secrets(control_secret=SECRET),
        application_id=APP,
        attempt=1,
        engine=engine,
        wakes=wakes,
    )
    thread = threading.Thread(target=loop.run)
    thread.start()
    made: list[Task] = []
    try:
        until(lambda: engine.given == TASKS)
        made += [Task(loop.control_url, 2 + number) for number in range(TASKS)]
        for one in made:
            one.report()
        yield made
    finally:
        engine.over = True
        wakes.put(None)
        thread.join(30)
        for one in made:
            one.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_at_once(tasks: list[Task], work: Callable[[Task], None]) -> None:
    threads = [threading.Thread(target=work, args=(one,)) for one in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_reports_of_nothing_new_write_no_view(home: Watched, tasks: list[Task]) -> None:
    time.sleep(0.5)  # what was new is written
    before = home.views
    assert before
    for _ in range(3):
        for one in tasks:
            one.report()
            time.sleep(0.03)
    assert home.views == before


def test_those_that_wait_are_answered_together(tasks: list[Task]) -> None:
    answered: list[float] = []

    def wait(task: Task) -> None:
        time.sleep(0.1 * tasks.index(task))
        for _ in range(2):
            task.report(wait_s=2.0)
        answered.append(time.monotonic())

    all_at_once(tasks, wait)
    answered.sort()
    # They asked 0.1 s after one another. Two heartbeats are enough for all of them.
    apart = [later - earlier for earlier, later in itertools.pairwise(answered)]
    assert len(apart) == TASKS - 1
    assert sum(one > 0.06 for one in apart) <= 4
