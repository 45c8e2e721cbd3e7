"""A host's tasks, one after the other, for the history of a ledger.

    python -m tests.services.processes.ledger_worker PLAN.json

Each task leases GPUs, starts a payload that takes its witness, holds it a while and gives the GPUs back; or dies
on the way, at a place that the seed chooses. The witness of a GPU is a file that is made with O_EXCL (a hard link of a
file that says who): should two payloads that live ever hold one GPU, the second finds the file and says so.

A payload reads a lifeline, as one in Docker does, and inherits nothing of the lease. Some linger after their lifeline
closed; some hide the lifeline meanwhile, so that nobody can know if they live.

Events go to the plan's ``events`` as lines of JSON, each written with one call: ``{"at": ms, "what": "started", …}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_TIME_NS, _TIME = time.time_ns, time.time


def now_ms() -> int:
    return _TIME_NS() // 1_000_000


def jump(choice: random.Random) -> None:
    """Set this process's wall clock to another time, up to a day away, for all but the events."""
    away_s = choice.choice((0, 1, -1, 3600, -3600, 86_400, -86_400)) * choice.random()
    time.time_ns = lambda: _TIME_NS() + int(away_s * 1e9)
    time.time = lambda: _TIME() + away_s


class Events:
    """File for events; nothing that was said is lost by a SIGKILL."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write_event(self, what: str, **more: Any) -> None:
        line = json.dumps({"at": now_ms(), "what": what, "pid": os.getpid(), **more}) + "\n"
        os.write(self._fd, line.encode())


# ---- the payload ----


def start_time_of(pid: int) -> str | None:
    """Return when a process that runs was started; None: it does not run."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def payload(order: dict[str, Any], events: Events) -> None:
    """Take the witness of each GPU, live, let go."""
    life = order["life"]
    fd = os.open(life, os.O_RDONLY | os.O_NONBLOCK)
    # From here on whoever asks sees a reader. If the task was dead before, somebody may have seen neither, and have its
    # GPUs: then this payload never began.
    if start_time_of(order["task"]["pid"]) != order["task"]["started"]:
        return
    os.set_blocking(fd, True)
    me = f"{os.getpid()} {start_time_of(os.getpid())} {order['container']}"
    mine = f"{order['witness']}/.{os.getpid()}-{order['container']}"
    with open(mine, "w") as file:
        file.write(me)
    for uuid in order["uuids"]:
        path = f"{order['witness']}/{uuid}"
        while True:
            try:
                os.link(mine, path)
                break
            except FileExistsError:
                try:
                    with open(path) as file:
                        pid, started, other = file.read().split()
                    if start_time_of(int(pid)) == started:
                        events.write_event("violation", device=uuid, container=order["container"], other=other)
                        break
                    os.unlink(path)  # its payload was killed
                except FileNotFoundError:
                    continue
    if order["hide"]:
        os.rename(life, life + ".hidden")
    events.write_event("started", container=order["container"])
    with contextlib.suppress(BrokenPipeError):  # its task was killed meanwhile: it ends like any other
        os.write(order["ready"], b".")
    os.read(fd, 1)  # until the lifeline closes
    time.sleep(order["linger_s"])
    # From here on it uses nothing; whoever looks between this line and its end sees it alive, which frees nothing.
    events.write_event("ended", container=order["container"])
    for uuid in order["uuids"]:
        path = f"{order['witness']}/{uuid}"
        try:
            with open(path) as file:
                if file.read() == me:
                    os.unlink(path)
        except FileNotFoundError:
            pass
    os.unlink(mine)
    if order["hide"]:
        os.rename(life + ".hidden", life)


def spawner(orders: int, answers: int, events: Events) -> None:
    """Start payloads on request: forked early, so that they are small and hold nothing of the ledger's."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with os.fdopen(orders) as lines:
        for line in lines:
            if os.fork() == 0:
                code = 1
                try:
                    payload(json.loads(line) | {"ready": answers}, events)
                    code = 0
                finally:
                    os._exit(code)


# ---- the tasks ----


def main(argv: list[str]) -> int:
    # Who started us ends us, also by being killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(argv[0], encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    if os.getppid() != plan["parent"]:
        return 1
    events = Events(plan["events"])
    order_in, order_out = os.pipe()
    answer_in, answer_out = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.close(order_out)
        os.close(answer_in)
        spawner(order_in, answer_out, events)
        os._exit(0)
    os.close(order_in)
    os.close(answer_out)
    choice = random.Random(plan["seed"])
    from dlapp.errors import DlappError
    from dlapp.gpuid.rules import LeaseRequest, NotEnough
    from tests.gpuid.planted import open_planted

    ledger = open_planted(plan)
    for number in range(plan["leases"]):
        container = f"{plan['name']}-{number}"
        life = f"{plan['lives']}/{container}"
        os.mkfifo(life)
        if plan["clock"]:
            jump(choice)
        dies = choice.choice(("never",) * plan["well"] + ("leased", "running", "running", "ended"))
        order = {
            "task": {"pid": os.getpid(), "started": start_time_of(os.getpid())},
            "container": container,
            "life": life,
            "witness": plan["witness"],
            "linger_s": choice.choice((0, 0, 0.02, 0.2)) if dies == "running" else 0,
            "hide": dies == "running" and choice.random() < 0.4,
        }
        evidence = {"fifo": life} | ledger.planted_evidence(container)
        ask = LeaseRequest(f"application_{plan['name']}", container, "tony", choice.choice((1, 1, 2, 3)), (), evidence)
        while True:
            try:
                lease = ledger.acquire(ask, timeout_s=2.0)
                break
            except NotEnough:
                continue
            except DlappError as error:
                events.write_event("refused", container=container, why=str(error))
        uuids = [device.uuid for device in lease.devices]
        events.write_event("leased", container=container, uuids=uuids)
        if dies == "leased":
            os.kill(os.getpid(), signal.SIGKILL)
        # Both ends before the payload is there: a ledger that asks opens the writing end for a moment, and the payload
        # would go on, hide the lifeline before it is opened here, or find it closed.
        reader = os.open(life, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        writer = os.open(life, os.O_WRONLY | os.O_CLOEXEC)
        os.write(order_out, json.dumps(order | {"uuids": uuids}).encode() + b"\n")
        os.read(answer_in, 1)
        os.close(reader)
        time.sleep(choice.uniform(0, plan["hold_s"]))
        if dies == "running":
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        while True:  # until nobody reads it any more
            try:
                os.close(os.open(life, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                break
            time.sleep(0.001)
        if dies == "ended":
            os.kill(os.getpid(), signal.SIGKILL)
        events.write_event("releasing", container=container)
        lease.release()
        os.unlink(life)
    ledger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
