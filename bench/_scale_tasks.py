"""python -m bench._scale_tasks: thousands of tasks in one process, each with the link of a real one.

A task here is `dlapp.task.link.am_link.AmLink` with what finds the next ApplicationMaster
(`dlapp.task.link.am_address`), as in a container, and without a payload. Its threads are made light by gevent, which
takes the place of Python's blocking calls before anything else is loaded. Commands come as JSON on standard input, a
line each: ``{"start": launch}``, ``{"stop": container}`` and ``{"results": count, "every_s": pause}``. What happened
is written to standard output: ``{"runs": container}``, ``{"heard": attempt, "at": monotonic}`` when a task has orders
of a new attempt, and ``{"ended": container}``. A task in a gang says ``{"ready": container, "at": monotonic}`` and,
once it has the roster, ``{"met": container, "at": monotonic, "members": count}``.
"""

from __future__ import annotations

import os

os.environ["GEVENT_RESOLVER"] = "block"  # all addresses are numbers

from gevent import monkey

monkey.patch_all()

import itertools  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections import deque  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import Any  # noqa: E402

from gevent.fileobject import FileObject  # noqa: E402

from dlapp.task.link import am_link  # noqa: E402
from dlapp.task.link.am_address import am_finder  # noqa: E402
from dlapp.task.link.am_link import AmLink  # noqa: E402
from dlapp.values.launch_spec import LaunchSpec  # noqa: E402
from dlapp.values.messages import Assignment, Fault, Orders, Phase, Stop, StoredOutput, TaskResult  # noqa: E402
from dlapp.values.roster import Roster  # noqa: E402
from dlapp.values.serialization import from_json  # noqa: E402

RESULT_S = 600.0
FIRST_PORT = 20_000


class Stopper:
    """Takes the orders that an ApplicationMaster gives a task."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def order(self, wanted: Stop, why: str, grace_s: float | None = None) -> None:
        """End the task without a result."""
        del grace_s
        print(json.dumps({"stopped": str(self._task.launch.container_id), "how": wanted.value, "why": why}), flush=True)
        self._task.wanted.set()

    def wake(self) -> None:
        """Do nothing: there is no payload whose loop has to look at the orders."""


class Link(AmLink):
    """A task's link that says when it has the first orders of an attempt."""

    _heard = 0

    def _handle_orders(self, orders: Orders) -> None:
        super()._handle_orders(orders)
        if orders.attempt > self._heard:
            self._heard = orders.attempt
            print(json.dumps({"heard": orders.attempt, "at": time.monotonic()}), flush=True)


def _light(kind: Any, data: Any) -> Any:
    """Read a value; of a roster only what is counted here, for each task reads it on a host of its own: 10 ms."""
    return SimpleNamespace(**data) if kind is Roster else from_json(kind, data)


vars(am_link)["from_json"] = _light
_ASKING = threading.Semaphore(8)
"""Tasks of one process that ask for work at a time. Each is a node's only one: more of them at a time would wait for
this interpreter between connecting and sending, and the ApplicationMaster closes connections that send nothing."""


class Task:
    """One task, from its start to its result."""

    def __init__(self, launch: LaunchSpec) -> None:
        self.launch = launch
        self.wanted = threading.Event()
        self.with_result = False

    def run(self) -> None:
        """Be a task until it is told to end."""
        launch = self.launch
        container = str(launch.container_id)

        def warn(_line: str) -> None:
            """Discard what a task writes into its log."""

        with Link(
            launch.control_url,
            launch.token,
            launch.container_id,
            Stopper(self),  # type: ignore[arg-type]  # the real one is woken by signals, of which a process has one
            warn,
            am_finder(launch, warn),
            containers=launch.containers,
        ) as link:
            with _ASKING:
                assignment = link.hello()
            link.begin(assignment.index)
            if assignment.in_gang:
                self._meet(link, assignment)
            link.report_phase(Phase.RUNNING)
            print(json.dumps({"runs": container}), flush=True)
            self.wanted.wait()
            if self.with_result:
                part = assignment.parts[0] if assignment.parts else ""
                stored = (StoredOutput(name="", part=part, files=3, size_bytes=1 << 20),)
                link.send_result(TaskResult(fault=Fault.NONE, exit_code=0, outputs=stored))
                self.with_result = link.finish(RESULT_S)
        print(json.dumps({"ended": container, "delivered": self.with_result}), flush=True)

    def _meet(self, link: AmLink, assignment: Assignment) -> None:
        """Wait at the gate of the gang, and for the roster."""
        container = str(self.launch.container_id)
        ports = tuple(FIRST_PORT + assignment.index + number for number in range(assignment.ports))
        link.report_phase(Phase.WAITING, address="127.0.0.1", ports=ports)
        print(json.dumps({"ready": container, "at": time.monotonic()}), flush=True)
        link.wait_for_start(0, with_roster=assignment.has_roster)
        members = 0 if link.roster is None else len(link.roster.members)
        print(json.dumps({"met": container, "at": time.monotonic(), "members": members}), flush=True)


def main() -> None:
    """Be tasks until standard input ends."""
    tasks: dict[str, Task] = {}
    waiting: deque[Task] = deque()
    for line in FileObject(sys.stdin.fileno(), "r"):
        command: dict[str, Any] = json.loads(line)
        if "start" in command:
            task = Task(from_json(LaunchSpec, command["start"]))
            tasks[str(task.launch.container_id)] = task
            waiting.append(task)
            threading.Thread(target=task.run, daemon=True).start()
        elif "stop" in command:
            tasks[command["stop"]].wanted.set()
        else:
            threading.Thread(target=_deliver, args=(waiting, command["results"], command["every_s"])).start()
    os._exit(0)


def _deliver(waiting: deque[Task], count: int, every_s: float) -> None:
    """Let so many tasks end with a result, one after another."""
    began = time.monotonic()
    for number in itertools.islice(itertools.count(1), count):
        task = waiting.popleft()
        task.with_result = True
        task.wanted.set()
        time.sleep(max(0.0, began + number * every_s - time.monotonic()))


if __name__ == "__main__":
    main()
