"""The loop with tasks that have nothing new to say: what it costs to have them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from dlapp.am import loop as loop_module
from dlapp.am.application_dir.interface import Superseded
from dlapp.am.application_dir.local import LocalApplicationDir, LocalJournalWriter
from dlapp.am.control.server import ControlRequest, RequestKind
from dlapp.am.loop import WAKE, Item, Loop
from dlapp.cluster.engine import ContainerRequest, Grant, Heartbeat, Registered, ResourceLimits, TaskLaunch
from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.net.control_client import ControlConnection
from dlapp.system import waits
from dlapp.system.waits import Wait
from dlapp.value import replace
from dlapp.values.access import TOOLS, derive_token
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Assignment, Fault, Hello, Orders, Phase, Report, TaskResult
from dlapp.values.report import ApplicationView, Cause, FinalStatus
from dlapp.values.roster import Roster
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import AppSpec, Gang, Resources, RoleSpec, Secrets, Submission
from tests.services.polling import wait_until

APP = ApplicationId(1_700_000_000_000, 1)
SECRET = "ab" * 32
TASKS = 10
QUIET_S = 30.0
"""Between two heartbeats that nobody asks for: longer than a test."""
SUBMISSION = Submission(
    spec=AppSpec(
        username="tony",
        appname="a",
        workspace="/w",
        script="run.sh",
        roles=(RoleSpec(name="worker", instances=TASKS, resources=Resources(memory_mib=1)),),
    ),
    submitter="tony",
    submitted_ms=1,
    workspace_archive="/w.tar.gz",
    workspace_digest="0",
)


class Engine:
    """Gives every container that is asked for; of starts it tells nobody, as tasks are what the test says."""

    def __init__(self) -> None:
        self.numbers = itertools.count(2)
        self.given = self.beats = 0
        self.over = False
        self.lists_all = True

    def register(self, control_url: str) -> Registered:
        return Registered(limits=ResourceLimits(), is_complete=self.lists_all)

    def heartbeat(
        self, container_requests: Sequence[ContainerRequest], releases: Sequence[ContainerId], progress: float
    ) -> Heartbeat:
        self.beats += 1
        if self.over:
            return Heartbeat(shut_down="the test is over")
        granted = tuple(
            Grant(
                container_id=ContainerId(APP, 1, next(self.numbers)),
                request_id=ask.request_id,
                node="here",
                resources=ask.resources,
            )
            for ask in container_requests
            for _ in range(ask.count)
        )
        self.given += len(granted)
        return Heartbeat(granted=granted)

    def start(self, grant: Grant, launch: TaskLaunch) -> None:
        pass

    def check_start(self, container_id: ContainerId) -> None:
        pass

    def release_devices(self) -> None:
        pass

    def stop(self, container_id: ContainerId) -> None:
        pass

    def log_tail(self, container_id: ContainerId, log_url: str, stream: str, most_bytes: int) -> bytes | None:
        return f"{stream} of {container_id}\n".encode()

    def finish(self, final_status: FinalStatus, cause: Cause, diagnostics: str) -> bool:
        return True

    def close(self) -> None:
        pass


class Watched(LocalApplicationDir):
    """A home that keeps the views."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.views: list[ApplicationView] = []

    def write_view(self, view: ApplicationView) -> None:
        super().write_view(view)
        self.views.append(view)


class Task:
    """A task that runs and says so, at once and then as often as it is answered."""

    def __init__(self, url: str, number: int) -> None:
        self.container_id = ContainerId(APP, 1, number)
        self._link = ControlConnection(url, derive_token(SECRET, str(self.container_id)))
        answer = self._call("hello", Hello(container_id=self.container_id, host="here", pid=1))
        index = from_json(Assignment, answer).index
        self._report = Report(container_id=self.container_id, number=2, index=index, phase=Phase.RUNNING)

    def report(self, wait_s: float = 0.0) -> None:
        self.orders(wait_s)

    def wait_at_gate(self, address: str) -> None:
        """Report that all is ready, and where it is."""
        self._report = replace(self._report, phase=Phase.WAITING, address=address, number=self._report.number + 1)
        self.report()

    def orders(self, wait_s: float = 0.0) -> Orders:
        """Report, and return the answer."""
        orders = from_json(Orders, self._call("report", replace(self._report, wait_s=wait_s)))
        self._report = replace(self._report, seen=orders.number)
        return orders

    def progress(self) -> None:
        """Report news."""
        self._report = replace(self._report, number=self._report.number + 1)
        self.report()

    def fail(self) -> None:
        """Report that the payload failed."""
        result = TaskResult(fault=Fault.USER, exit_code=3)
        self._report = replace(self._report, phase=Phase.ENDED, result=result, number=self._report.number + 1)
        self.report()

    def close(self) -> None:
        self._link.close()

    def _call(self, word: str, message: Hello | Report) -> object:
        return self._link.call("POST", f"/v1/tasks/{self.container_id}/{word}", to_json(message), timeout_s=120)


class World:
    """A loop whose heart beats when the test says so, and the tasks of its application."""

    def __init__(self, home: Watched, attempt: int = 1, submission: Submission = SUBMISSION) -> None:
        self.home, self.engine = home, Engine()
        self.wakes: SimpleQueue[Item] = SimpleQueue()
        self.loop = Loop(
            app_dir=home,
            submission=submission,
            secrets=Secrets(control_secret=SECRET),
            application_id=APP,
            attempt=attempt,
            engine=self.engine,
            wakes=self.wakes,
        )
        self.thread = threading.Thread(target=self.loop.run)
        self.tasks: list[Task] = []

    def beat(self) -> None:
        """One heartbeat. The round that it is in may not be over, those before it are."""
        before = self.engine.beats
        self.wakes.put(WAKE)
        wait_until(lambda: self.engine.beats > before)

    def shut_down(self) -> None:
        """The engine wants no more of it."""
        self.engine.over = True
        self.wakes.put(WAKE)
        self.thread.join(120)
        assert not self.thread.is_alive()

    def held(self) -> int:
        """Return how many tasks wait for news."""
        return len(self.loop._held)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Wait until its tasks run, each has said so once, and the view that shows it is written."""
    monkeypatch.setattr(loop_module, "QUIET_HEARTBEAT_S", QUIET_S)
    monkeypatch.setattr(loop_module, "VIEW_EVERY_S", 0.0)
    made = World(Watched(str(tmp_path)))
    made.thread.start()
    try:
        wait_until(lambda: made.engine.given == TASKS)
        made.tasks += [Task(made.loop.control_url, 2 + number) for number in range(TASKS)]
        for task in made.tasks:
            task.report()
        wait_until(lambda: [container.phase for container in made.home.views[-1].containers] == [Phase.RUNNING] * TASKS)
        yield made
    finally:
        made.shut_down()
        for task in made.tasks:
            task.close()


@pytest.mark.proves("roster-token")
def test_only_the_members_of_a_gang_can_read_its_roster(tmp_path: Path) -> None:
    gang = replace(SUBMISSION, spec=replace(SUBMISSION.spec, gang=Gang.ALL))
    made = World(Watched(str(tmp_path)), submission=gang)
    made.thread.start()

    def roster(asker: ContainerId, subject: ContainerId) -> Roster:
        with ControlConnection(made.loop.control_url, derive_token(SECRET, str(asker))) as link:
            return from_json(Roster, link.call("GET", f"/v1/tasks/{subject}/roster", timeout_s=120))

    try:
        wait_until(lambda: made.engine.given == TASKS)
        ids = [ContainerId(APP, 1, 2 + number) for number in range(TASKS)]
        for container_id in ids:
            made.tasks.append(Task(made.loop.control_url, container_id.number))
            with pytest.raises(NotFound, match="that has a roster"):
                roster(ids[0], ids[0])
            made.tasks[-1].wait_at_gate(f"10.0.0.{container_id.number}")
        found = roster(ids[0], ids[0])
        assert [(member.index, member.address) for member in found.members] == [
            (n, f"10.0.0.{n + 2}") for n in range(TASKS)
        ]
        assert roster(ids[1], ids[1]) == found
        assert [task.orders().roster for task in made.tasks] == [1] * TASKS
        with pytest.raises(Denied):
            roster(ids[0], ids[1])
        stranger = ContainerId(APP, 1, 99)
        with pytest.raises(NotFound, match="is not a container of this application"):
            roster(stranger, stranger)
    finally:
        made.shut_down()
        for task in made.tasks:
            task.close()


def test_reports_without_changes_write_no_view(world: World) -> None:
    before = len(world.home.views)
    for _ in range(3):
        for task in world.tasks:
            task.report()
    world.beat()
    world.beat()
    assert len(world.home.views) == before


def test_waiting_calls_are_answered_together_by_the_last_heartbeat(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []

    def wait(number: int) -> None:
        # Half of them would be due before the next heartbeat, at moments of their own.
        world.tasks[number].report(wait_s=QUIET_S - 5 + number / TASKS if number % 2 else 60.0)
        answered.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(TASKS)]
    for thread in threads:
        thread.start()
    wait_until(lambda: world.held() == TASKS)
    assert answered == []
    world.beat()
    wait_until(lambda: len(answered) == TASKS // 2)
    world.beat()
    assert world.held() == TASKS // 2
    assert sorted(answered) == list(range(1, TASKS, 2))
    monkeypatch.setattr(loop_module, "QUIET_HEARTBEAT_S", 1000.0)
    world.beat()
    for thread in threads:
        thread.join(120)
    assert len(answered) == TASKS


def test_a_report_of_a_task_does_not_end_its_wait_for_orders(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    task = world.tasks[0]
    waiting = threading.Thread(target=task.report, args=(60.0,))
    waiting.start()
    wait_until(lambda: world.held() == 1)
    path = f"/v1/tasks/{task.container_id}/report"
    with ControlConnection(world.loop.control_url, derive_token(SECRET, str(task.container_id))) as news:
        for number in (3, 4):
            report = replace(task._report, number=number, detail=f"news {number}")
            from_json(Orders, news.call("POST", path, to_json(report), timeout_s=120))
    assert world.held() == 1
    assert waiting.is_alive()
    monkeypatch.setattr(loop_module, "QUIET_HEARTBEAT_S", 1000.0)
    world.beat()
    waiting.join(120)
    assert not waiting.is_alive()


def test_an_expensive_view_is_built_seldom(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.beat()  # the view before is made: it measures its time after it was written
    times = itertools.chain([100.0, 200.0], itertools.repeat(200.0))
    monkeypatch.setattr(time, "thread_time", lambda: next(times))
    before = len(world.home.views)
    world.tasks[0].progress()
    wait_until(lambda: len(world.home.views) == before + 1)
    # 100 s of a core, of which they may take a twentieth.
    wait_until(lambda: world.loop._view_due > time.monotonic() + 1000)
    world.tasks[0].progress()
    world.beat()
    world.beat()
    assert len(world.home.views) == before + 1


def test_an_attempt_shut_down_at_once_writes_no_last_view(world: World) -> None:
    before = len(world.home.views)
    world.shut_down()
    assert len(world.home.views) == before


class LateJournal(LocalJournalWriter):
    """A journal that another thread writes, when the test says so."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.hurried = threading.Event()

    def request_write(self) -> None:
        self.hurried.set()

    def flush(self, *, durable: bool = False) -> None:
        pass

    def write(self) -> None:
        super().flush()
        self.on_written()


def test_a_task_may_start_its_payload_when_another_thread_has_written_the_journal(tmp_path: Path) -> None:
    late = LateJournal(str(tmp_path / "journal-1.jsonl"))

    class Late(Watched):
        def journal(self, attempt: int) -> LateJournal:
            return late

    world = World(Late(str(tmp_path)))
    world.engine.lists_all = False
    world.thread.start()
    try:
        wait_until(lambda: world.engine.given == TASKS)
        task = Task(world.loop.control_url, 2)
        assert late.hurried.wait(120)
        first = task.orders()
        waiting = threading.Thread(target=task.report, args=(60.0,))
        waiting.start()
        wait_until(lambda: world.held() == 1)
        late.write()
        waiting.join(120)
        assert not waiting.is_alive()
        assert (first.go, task.orders().go) == (False, True)
        task.close()
    finally:
        world.shut_down()


class OvertakenJournal(LocalJournalWriter):
    """A journal that learns with its first durable record that another attempt has the application."""

    def flush(self, *, durable: bool = False) -> None:
        if durable:
            raise Superseded("another attempt has the application now")
        super().flush()


def test_an_attempt_superseded_in_its_journal_sends_tasks_no_more_orders(
    tmp_path: Path,
) -> None:
    class Overtaken(Watched):
        def journal(self, attempt: int) -> OvertakenJournal:
            return OvertakenJournal(str(tmp_path / "journal-1.jsonl"))

    world = World(Overtaken(str(tmp_path)))
    stopped: list[ContainerId] = []
    world.engine.stop = stopped.append  # type: ignore[assignment,method-assign]
    world.thread.start()
    wait_until(lambda: world.engine.given == TASKS)
    tasks = [Task(world.loop.control_url, 2 + number) for number in range(TASKS)]
    for item in tasks:
        item.report()
    orders_received: list[Orders | None] = []

    def wait_for_orders(task: Task) -> None:
        try:
            orders_received.append(task.orders(60.0))
        except Unreachable:
            orders_received.append(None)

    waiting = [threading.Thread(target=wait_for_orders, args=[item]) for item in tasks[1:]]
    for thread in waiting:
        thread.start()
    wait_until(lambda: world.held() == TASKS - 1)
    with pytest.raises(Unreachable):
        tasks[0].fail()
    world.thread.join(120)
    assert not world.thread.is_alive()
    for thread in waiting:
        thread.join(120)
    assert orders_received == [None] * (TASKS - 1)
    assert not stopped
    for item in tasks:
        item.close()


class Next:
    """The second attempt of the application, and what it does; its journal is read when ``readable`` is set."""

    def __init__(
        self, directory: Path, wakes: SimpleQueue[Item] | None = None, may_register: threading.Event | None = None
    ) -> None:
        (directory / "journal-1.jsonl").write_text('{"kind":"begin","t":1,"attempt":1,"started_ms":77}\n')
        self.done: list[str] = []
        self.readable = threading.Event()
        done, readable = self.done, self.readable

        class Registering(Engine):
            def register(self, control_url: str) -> Registered:
                assert may_register is None or may_register.wait(120)
                done.append("register")
                return super().register(control_url)

        class Reading(LocalApplicationDir):
            def all_journal_lines(self) -> list[str]:
                assert readable.wait(120)
                done.append("read")
                return super().all_journal_lines()

        self.engine = Registering()
        self.wakes: SimpleQueue[Item] = SimpleQueue() if wakes is None else wakes
        self.loop = Loop(
            app_dir=Reading(str(directory)),
            submission=SUBMISSION,
            secrets=Secrets(control_secret=SECRET),
            application_id=APP,
            attempt=2,
            engine=self.engine,
            wakes=self.wakes,
        )
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def end(self) -> None:
        self.readable.set()
        self.engine.over = True
        self.wakes.put(WAKE)
        self.thread.join(120)
        assert not self.thread.is_alive()

    def phase(self) -> str:
        with ControlConnection(self.loop.control_url, derive_token(SECRET, TOOLS)) as link:
            return str(link.call("GET", "/v1/view", timeout_s=120)["phase"])


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Next]:
    made = Next(tmp_path)
    yield made
    made.end()


def test_a_next_attempt_registers_before_it_reads_the_journal(second: Next) -> None:
    wait_until(lambda: second.done == ["register"])
    second.readable.set()
    wait_until(lambda: second.loop._state.lifetime.started_ms == 77)
    assert second.done == ["register", "read"]


def test_while_the_journal_is_unreadable_the_view_gives_the_reason_and_tasks_wait(
    second: Next, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    wait_until(lambda: second.loop._state.waiting_for)
    assert second.phase() == "starting: the journal of the attempt before is read"
    container_id = ContainerId(APP, 1, 2)
    orders_received: list[Orders] = []

    def report(number: int) -> None:
        sent_report = Report(container_id=container_id, number=number, index=0, phase=Phase.RUNNING)
        with ControlConnection(second.loop.control_url, derive_token(SECRET, str(container_id))) as link:
            answer = link.call("POST", f"/v1/tasks/{container_id}/report", to_json(sent_report), timeout_s=120)
            orders_received.append(from_json(Orders, answer))

    task = threading.Thread(target=report, args=(3,))
    task.start()
    wait_until(lambda: second.loop._control.server._peers and second.loop._queue.empty())
    assert orders_received == []
    second.readable.set()
    task.join(120)
    assert [item.attempt for item in orders_received] == [2]
    assert "journal" not in second.phase()


def test_while_the_resourcemanager_is_away_at_the_start_status_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(waits, "POLL_INTERVAL_S", 0.01)
    world, back = World(Watched(str(tmp_path))), threading.Event()

    def register(_url: str) -> Registered:
        with Wait("the ResourceManager", 86_400.0):
            assert back.wait(120)
        return Registered(limits=ResourceLimits())

    monkeypatch.setattr(world.engine, "register", register)
    world.thread.start()
    wait_until(lambda: world.home.views and "ResourceManager" in world.home.views[-1].phase)
    assert world.home.views[-1].phase.startswith("starting, waits for the ResourceManager since ")
    back.set()
    wait_until(lambda: world.engine.given == TASKS)
    world.beat()
    wait_until(lambda: "ResourceManager" not in world.home.views[-1].phase)
    world.shut_down()


def test_without_a_resourcemanager_the_next_attempt_keeps_the_previous_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(waits, "POLL_INTERVAL_S", 0.01)
    home, looked, back = Watched(str(tmp_path)), threading.Event(), threading.Event()
    world = World(home, attempt=2)

    def register(_url: str) -> Registered:
        with Wait("the ResourceManager", 86_400.0):
            assert back.wait(120)
        return Registered(limits=ResourceLimits())

    look = world.loop._update_wait

    def look_and_tell() -> None:
        if "ResourceManager" in world.loop._wait:
            looked.set()  # by an earlier look: what that one was to write is written
        look()

    monkeypatch.setattr(world.engine, "register", register)
    monkeypatch.setattr(world.loop, "_update_wait", look_and_tell)
    world.thread.start()
    assert looked.wait(120)
    assert home.views == []
    back.set()
    wait_until(lambda: home.views)
    world.shut_down()


def test_an_attempt_superseded_while_the_resourcemanager_is_away_ends(tmp_path: Path) -> None:
    world, never = World(Watched(str(tmp_path))), threading.Event()
    world.engine.register = lambda _url: never.wait(240)  # type: ignore[assignment, method-assign, return-value]
    world.thread.start()
    world.wakes.put(Heartbeat(shut_down="attempt 2 has the application now"))
    world.thread.join(120)
    assert not world.thread.is_alive()
    never.set()


def test_the_last_of_repeated_reports_is_answered(second: Next) -> None:
    answered: list[str] = []

    class Answers:
        def reply(self, request: str, _status: int, _body: object) -> None:
            answered.append(request)

    container_id = ContainerId(APP, 1, 2)
    for name, wait_s in (("old", 0.0), ("old poll", 10.0), ("new", 0.0), ("new poll", 10.0)):
        report = Report(container_id=container_id, number=3, index=0, phase=Phase.RUNNING, wait_s=wait_s)
        second.wakes.put(ControlRequest(RequestKind.REPORT, report, name, Answers()))  # type: ignore[arg-type]
    wait_until(second.wakes.empty)
    second.readable.set()
    wait_until(lambda: len(answered) >= 2)
    second.end()
    assert sorted(answered) == ["new", "new poll"]


def test_a_report_during_the_registration_is_older_than_later_ones(tmp_path: Path) -> None:
    taken, registered, answered = threading.Event(), threading.Event(), list[str]()

    class Queue(SimpleQueue[Item]):
        """A queue whose reader is held up after it has taken the first report, until the attempt is registered."""

        def get(self, block: bool = True, timeout: float | None = None) -> Item:
            item = super().get(block, timeout)
            if isinstance(item, ControlRequest) and not taken.is_set():
                taken.set()
                assert registered.wait(120)
            return item

    class Answers:
        def reply(self, request: str, _status: int, _body: object) -> None:
            answered.append(request)

    def report(name: str) -> ControlRequest:
        sent_report = Report(container_id=ContainerId(APP, 1, 2), number=3, index=0, phase=Phase.RUNNING)
        return ControlRequest(RequestKind.REPORT, sent_report, name, Answers())  # type: ignore[arg-type]

    wakes = Queue()
    wakes.put(report("old"))
    second = Next(tmp_path, wakes, may_register=taken)
    wait_until(lambda: second.done and not wakes.empty())  # the news that it is registered
    wakes.put(report("new"))
    registered.set()
    wait_until(lambda: second.loop._state.waiting_for and wakes.empty())
    second.readable.set()
    wait_until(lambda: answered)
    second.end()
    assert answered == ["new"]


def test_an_attempt_that_is_superseded_while_it_reads_the_journal_ends(second: Next) -> None:
    second.wakes.put(Heartbeat(shut_down="attempt 3 has the application now"))
    second.thread.join(120)
    assert not second.thread.is_alive()
    assert second.loop._state.lifetime.started_ms is None


def test_an_attempt_whose_journal_cannot_be_read_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "journal-1.jsonl").mkdir()
    loop = Loop(
        app_dir=LocalApplicationDir(str(tmp_path)),
        submission=SUBMISSION,
        secrets=Secrets(control_secret=SECRET),
        application_id=APP,
        attempt=2,
        engine=Engine(),
        wakes=SimpleQueue(),
    )
    with pytest.raises(DlappError, match=r"journal-1\.jsonl cannot be read"):
        loop.run()
