"""Test applications of a real cluster with two ResourceManagers, of which the active one is killed, stopped for 20 s,
ended orderly or made to hand over to the other at seven moments of an application.

ZooKeeper keeps the ResourceManagers' state and chooses the active one, and it has the GPU ledger.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dlapp.cluster.yarn.am.engine import CALM_S
from dlapp.values.waiting import SERVICE_AWAY
from tests.applications import BIN, ended, properties, run, status, wait_for
from tests.cluster.yarn.on_yarn import set_ha_state
from tests.seeds import each_seed
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import RESOURCEMANAGERS, Hadoop, NoHadoop, with_zookeeper
from tests.services.zookeeper import ZooKeeper, zookeeper_for_tests
from tests.tiers import FULL

pytestmark = pytest.mark.zookeeper
MEMBERS = 2
MEMORY_MIB = 2560
"""One container of it fits a node of 4 GiB."""
STOPPED_S = 20.0
STATUS_S = 30.0
END_S = 180.0
MEASURED_S = 8.0
SELDOM_S = 15.0
"""From then on a command that waits asks at most twice a second (`dlapp.client.polling.poll_pause_s`)."""
CALLS_PER_S, FRESH_CALLS_PER_S = 2.0, 14.0
"""Limits for each ApplicationMaster that a ResourceManager finds when it becomes active, and for one that starts later
and waits for containers: it calls ten times a second, and never more often than each 75 ms."""
PROGRAM = """\
exec 8>@/gpu-$CUDA_VISIBLE_DEVICES 9>@/index-$CONTAINER_INDEX
flock -n 8 || touch @/twice-gpu-$CUDA_VISIBLE_DEVICES
flock -n 9 || touch @/twice-index-$CONTAINER_INDEX
echo "$CUDA_VISIBLE_DEVICES" >>@/starts-$CONTAINER_INDEX
touch @/up-$CONTAINER_INDEX
until [ -e @/done ]; do sleep 0.05; done
mkdir -p output
for number in 0 1 2 3 4 5 6 7 8 9; do echo $number >output/$number; done
"""
BLOCKED = ("requests open", "gate")
"""Moments at which a member waits for a container, because another application has its place."""
FRESH = {"submission": 2, "start": 1, "end": 1}
"""How many ApplicationMasters the new ResourceManager may start, and not find: of the application that is submitted, or
has just been, and of the second one."""
RUNS = ("running", "commit", "end")
"""Moments after which no program is to start a second time."""
MOMENTS = ("submission", "start", *BLOCKED, *RUNS)
KINDS = ("killed", "stopped", "ended orderly", "handed over") if FULL else ("killed",)
"""Each case takes a minute: the others run at night."""


class Pair(NamedTuple):
    """The cluster with two ResourceManagers, and its ZooKeeper."""

    hadoop: Hadoop
    zookeeper: ZooKeeper

    def fail(self, kind: str, active: str) -> contextlib.ExitStack:
        """Take the active one; what is returned brings it back, and waits until both serve."""
        back = contextlib.ExitStack()
        back.callback(self.hadoop.wait_until_both_serve)
        if kind == "stopped":
            self.hadoop.pause_part(active)
            timer = threading.Timer(STOPPED_S, self.hadoop.resume_part, (active,))
            timer.start()
            back.callback(timer.join)
            return back
        if kind == "handed over":
            set_ha_state(self.hadoop, active, active=False)
            set_ha_state(self.hadoop, other_of(active), active=True)
            # It stands by, but keeps ZooKeeper's lock until it ends.
            back.callback(self.hadoop.start_part, active)
            back.callback(self.hadoop.stop_part, active)
            return back
        # The supervisor of an operator starts it again at once.
        self.hadoop.kill_part(active) if kind == "killed" else self.hadoop.stop_part(active)
        self.hadoop.start_part(active)
        return back


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(zookeeper_for_tests())
        settings = {"yarn-site.xml": with_zookeeper(zookeeper.ensemble)}
        parts = ("nn", "dn", *RESOURCEMANAGERS, "nm1", "nm2")
        try:
            hadoop = stack.enter_context(Hadoop.start(parts=parts, settings=settings, wait=False))
        except NoHadoop as missing:
            pytest.skip(f"no Hadoop: {missing}")
        hadoop.wait_until_ready(parts=("nn", "dn"))
        hadoop.wait_until_both_serve()
        yield Pair(hadoop, zookeeper)


@pytest.fixture
def place(pair: Pair, tmp_path: Path, travel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for files by which programs and the test speak; commands and clients use the pair."""
    here = tmp_path / "place"
    here.mkdir()
    tmp_path.chmod(0o755)
    devices = with_devices(tmp_path, [StubDevice() for _ in range(2 * MEMBERS)])
    python, credentials, config = (tmp_path / name for name in ("python3", "credentials", "config.yaml"))
    exports = "".join(f"export {name}='{value}'\n" for name, value in devices.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    config.write_text(
        f"cluster: yarn\nyarn:\n  conf_dir: {pair.hadoop.configuration}\n  python: {python}\n"
        f"gpuid:\n  zookeeper:\n    ensemble: {pair.zookeeper.ensemble}\n    credentials: {credentials}\n"
    )
    monkeypatch.setenv("DLAPP_CONFIG", str(config))
    cache = Path.home() / ".cache" / "dlapp"
    cache.mkdir(parents=True)
    (cache / "travel").symlink_to(travel_cache)
    yield here
    for application in _unfinished():
        run("dlapp-kill", application)


def _unfinished() -> list[str]:
    lines = run("dlapp-list", "--json").out
    return [
        str(application["application_id"])
        for application in _applications(lines)
        if application["state"] in ("ACCEPTED", "RUNNING")
    ]


def _applications(text: str) -> list[dict[str, Any]]:
    found = json.loads(text or "[]")
    return list(found["applications"] if isinstance(found, dict) else found)


class Watch:
    """Watcher of the status of an application, in a thread of its own."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.longest_s, self.error = 0.0, ""
        self.seen: list[tuple[str, str, str, str]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            began = time.monotonic()
            try:
                view = status(self.application)
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            waiting = view["waiting"] or {}
            now = view["state"], view["phase"], waiting.get("code", ""), waiting.get("message", "")
            if not self.seen or self.seen[-1] != now:
                self.seen.append(now)

    def check(self, *, ran: int | None) -> None:
        """See that each status came in time and was so; ``ran``: its programs ran when the failover began, and this
        many different answers had been seen by then."""
        assert not self.error, self.error
        assert self.longest_s < STATUS_S, f"a status took {self.longest_s:.1f} s"
        later = [] if ran is None else self.seen[ran:]
        wrong = [item for item in later if item[0] == "ACCEPTED" or item[2] not in ("", SERVICE_AWAY)]
        assert not wrong, f"shown as waiting while its programs ran: {wrong}"


def submit_at(file: Path, moment: str, place: Path) -> Callable[[], str]:
    """Submit an application and return at a moment of it; what is returned waits for its id."""
    command = [str(BIN / "dlapp-launcher"), str(file)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def application() -> str:
        out, problem = launcher.communicate(timeout=END_S)
        assert launcher.returncode == 0, problem
        return next(line.partition(" = ")[2] for line in out.splitlines() if line.startswith("DL App ID"))

    if moment == "submission":
        return application
    found = application()
    if moment == "requests open":
        wait_for("it waits", lambda: status(found)["state"] == "RUNNING" and status(found)["lacking"], END_S)
    elif moment == "gate":
        wait_for("it is at the gate", lambda: f"1 of {MEMBERS} at the gate" in status(found)["phase"], END_S)
    elif moment != "start":
        wait_for("it runs", lambda: f"running {MEMBERS} of {MEMBERS}" in status(found)["phase"], END_S)
    if moment in ("commit", "end"):
        (place / "done").touch()
    if moment == "end":
        wait_for("its output is there", lambda: "running" not in status(found)["phase"], END_S)
    return lambda: found


def other_of(manager: str) -> str:
    (other,) = {*RESOURCEMANAGERS} - {manager}
    return other


class Waiting:
    """A ``dlapp-launcher --wait`` in the background, and its requests to a ResourceManager."""

    def __init__(self) -> None:
        self.launcher: subprocess.Popen[str] | None = None
        self.application, self.began = "", time.monotonic()

    def submit(self, file: Path) -> str:
        """Submit an application that nobody else asks for, once it runs."""
        command = [str(BIN / "dlapp-launcher"), "--wait", str(file)]
        self.launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.began = time.monotonic()
        assert self.launcher.stdout is not None
        lines = iter(self.launcher.stdout)
        self.application = next(line.partition(" = ")[2].strip() for line in lines if line.startswith("DL App ID"))
        return self.application

    def requests(self, hadoop: Hadoop, manager: str) -> list[tuple[float, int]]:
        """Return when it has asked a ResourceManager for its application [s], and how often by then; by the access
        log.
        """
        one = re.compile(rf'(.{{19}}),(\d+) .*"GET /ws/v1/cluster/apps/{self.application}\?', re.MULTILINE)
        times = [
            datetime.datetime.fromisoformat(f"{found[1]}.{found[2]}").timestamp()
            for found in one.finditer(hadoop.log(manager))
        ]
        return [(at, number) for number, at in enumerate(times)]

    def check_end(self) -> None:
        """See that the command ends with its application."""
        if self.launcher is not None:
            self.launcher.communicate(timeout=END_S)
            assert self.launcher.returncode == 0


def highest_rate(samples: Sequence[tuple[float, int]]) -> float:
    """Return the highest rate in 8 s [1/s]; a sample is a time [s] and a count."""
    return max(
        (
            (after - before) / max(until - since, MEASURED_S)
            for number, (since, before) in enumerate(samples)
            for until, after in samples[number:]
        ),
        default=0.0,
    )


class Calls(threading.Thread):
    """Counter of the calls of ApplicationMasters to a ResourceManager that becomes active, in the 15 s after the first.

    For thirty seconds an ApplicationMaster calls it seldom (`dlapp.cluster.yarn.am.engine.CALM_S`).
    """

    def __init__(self, hadoop: Hadoop, manager: str) -> None:
        super().__init__(daemon=True)
        self._hadoop, self.manager = hadoop, manager
        self._is_over = threading.Event()
        self.samples = [(time.monotonic(), self._count())]

    def __enter__(self) -> Calls:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        until = float("inf")
        while not self._is_over.wait(0.5) and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self.samples.append((time.monotonic(), self._count()))
            if self.samples[-1][1] > self.samples[0][1]:
                until = min(until, time.monotonic() + CALM_S / 2)

    def _count(self) -> int:
        """Return the number of calls, also of those that were refused, which count under the name of their error."""
        port = self._hadoop.ports[f"{self.manager}_scheduler"]
        bean = f"Hadoop:service=ResourceManager,name=RpcDetailedActivityForPort{port}"
        found = self._hadoop.get(f"{self._hadoop.url_of(self.manager)}/jmx?qry={bean}", timeout_s=5.0)["beans"]
        # Each is there again as Overall..., with the time in the queue, and as Deferred....
        own = re.compile(r"(?!Overall|Deferred)\w+NumOps")
        return sum(int(value) for item in found for name, value in item.items() if own.fullmatch(name))


def check_rates(hadoop: Hadoop, moment: str, calls: Calls, waited: Waiting) -> None:
    """See that ApplicationMasters call the new ResourceManager at most twice a second, as an older ``--wait`` does."""
    applications = 3 if waited.application else 2
    rate, requests = highest_rate(calls.samples), highest_rate(waited.requests(hadoop, calls.manager))
    print(f"{rate:.1f} calls a second of {applications} applications, {requests:.1f} of --wait")
    fresh = FRESH.get(moment, 0)
    assert rate <= fresh * FRESH_CALLS_PER_S + (applications - fresh) * CALLS_PER_S
    assert requests <= CALLS_PER_S
    waited.check_end()


def go_through(pair: Pair, place: Path, moment: str, kind: str, seed: int) -> None:
    """Run one application through a failover at one of its moments."""
    chance = random.Random(f"{moment} {kind} {seed}")
    print(f"{moment}, {kind}, seed {seed}")
    resources = {"memory": MEMORY_MIB, "gcores": 1, "containers": MEMBERS}
    output = {"output_path": "output", "hdfs": f"/tmp/failover-{time.time_ns():x}"}
    file = properties(
        place,
        PROGRAM.replace("@", str(place)),
        application={"gang": "all"},
        resources=resources,
        to_hdfs=output,
    )
    blocker, waited = "", Waiting()
    if moment in BLOCKED:
        wait = f"until [ -e '{place}/room' ]; do sleep 0.05; done"
        blocker = waited.submit(properties(place, wait, name="blocker", resources={"memory": MEMORY_MIB}))
        wait_for("the other one runs", lambda: "running 1 of 1" in status(blocker)["phase"], END_S)
    active = pair.hadoop.wait_until_both_serve()
    application = submit_at(file, moment, place)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch(application())) if moment != "submission" else None
        if blocker:
            wait_for("--wait asks seldom", lambda: time.monotonic() > waited.began + SELDOM_S, END_S)
        time.sleep(chance.uniform(0.0, 1.5))
        ran = len(watch.seen) if watch is not None and moment in RUNS else None
        calls = Calls(pair.hadoop, other_of(active))
        back = pair.fail(kind, active)
        stack.enter_context(back)
        stack.enter_context(calls)
        # It starts when the first one has ended, and calls as seldom until then.
        after = {} if watch is None else {"after": application()}
        second = run("dlapp-launcher", properties(place, "true", name="second", application=after), timeout_s=END_S)
        assert second.code == 0, second.err
        watch = watch or stack.enter_context(Watch(application()))
        if moment in ("running", *BLOCKED):
            wait_for("it is measured", lambda: not calls.is_alive(), END_S)
        (place / "room").touch()
        wait_for("all members run", lambda: all((place / f"up-{n}").exists() for n in range(MEMBERS)), END_S)
        (place / "done").touch()
        seen = ended(application(), END_S)
    watch.check(ran=ran)
    check_rates(pair.hadoop, moment, calls, waited)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert not [*place.glob("twice-*")]
    starts = [(place / f"starts-{number}").read_text().split() for number in range(MEMBERS)]
    assert all(starts)
    if moment in RUNS:
        assert [len(start) for start in starts] == [1] * MEMBERS
        assert seen["attempt"] == 1
    for item in filter(None, (blocker, second_id(second.out))):
        assert ended(item, END_S)["final_status"] == "SUCCEEDED"


def second_id(out: str) -> str:
    return next(line.partition(" = ")[2] for line in out.splitlines() if line.startswith("DL App ID"))


@pytest.mark.slow
@pytest.mark.sampled(8)
@each_seed("failovers", 3 if FULL else 1)  # a minute each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_application_survives_a_failover_at_any_moment(
    pair: Pair, place: Path, moment: str, kind: str, seed: int
) -> None:
    """See that no GPU and no index is used twice, and that each status is right and comes within 30 s.

    A submission meanwhile is accepted, and each application that was there calls the new ResourceManager at most twice
    a second, as does a command that has waited for 15 s.
    """
    go_through(pair, place, moment, kind, seed)
