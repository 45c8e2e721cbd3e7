"""Test applications of a real cluster with two ResourceManagers, of which the active one is killed, stopped for 20 s or
ended orderly at seven moments of an application.

ZooKeeper keeps the ResourceManagers' state and chooses the active one, and it has the GPU ledger.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dlapp.values.waiting import SERVICE_AWAY
from tests.applications import BIN, ended, launch, properties, run, status, wait_for
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
CALLS_PER_S = 2.0
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
RUNS = ("running", "commit", "end")
"""Moments after which no program is to start a second time."""
MOMENTS = ("submission", "start", *BLOCKED, *RUNS)
KINDS = ("killed", "stopped", "ended orderly") if FULL else ("killed",)
"""Each case takes a minute: the others run at night."""
SEEDS = range(3)


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
    return [str(one["application_id"]) for one in _applications(lines) if one["state"] in ("ACCEPTED", "RUNNING")]


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
        wrong = [one for one in later if one[0] == "ACCEPTED" or one[2] not in ("", SERVICE_AWAY)]
        assert not wrong, f"shown as waiting while its programs ran: {wrong}"


def begin(file: Path, moment: str, place: Path) -> Callable[[], str]:
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


def calls_of(hadoop: Hadoop, manager: str) -> int:
    """Return how often ApplicationMasters have called a ResourceManager."""
    bean = f"Hadoop:service=ResourceManager,name=RpcDetailedActivityForPort{hadoop.ports[f'{manager}_scheduler']}"
    (found,) = hadoop.get(f"{hadoop.url_of(manager)}/jmx?qry={bean}")["beans"]
    return int(found.get("AllocateNumOps", 0)) + int(found.get("RegisterApplicationMasterNumOps", 0))


def check_calls(hadoop: Hadoop, manager: str) -> None:
    """See that the one application calls the new ResourceManager at most twice a second, once it has found it."""
    wait_for("the ApplicationMaster calls it", lambda: calls_of(hadoop, manager) > 1, END_S)
    before, began = calls_of(hadoop, manager), time.monotonic()
    time.sleep(MEASURED_S)
    rate = (calls_of(hadoop, manager) - before) / (time.monotonic() - began)
    assert rate <= CALLS_PER_S, f"{rate:.1f} calls a second"


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
    blocker = ""
    if moment in BLOCKED:
        wait = f"until [ -e '{place}/room' ]; do sleep 0.05; done"
        blocker = launch(properties(place, wait, name="blocker", resources={"memory": MEMORY_MIB}))
        wait_for("the other one runs", lambda: "running 1 of 1" in status(blocker)["phase"], END_S)
    active = pair.hadoop.wait_until_both_serve()
    (other,) = {*RESOURCEMANAGERS} - {active}
    application = begin(file, moment, place)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch(application())) if moment != "submission" else None
        time.sleep(chance.uniform(0.0, 1.5))
        ran = len(watch.seen) if watch is not None and moment in RUNS else None
        back = pair.fail(kind, active)
        stack.enter_context(back)
        second = run("dlapp-launcher", properties(place, "true", name="second"))
        assert second.code == 0, second.err
        watch = watch or stack.enter_context(Watch(application()))
        if moment == "running":
            wait_for("the second one ends", lambda: status(second_id(second.out))["state"] == "FINISHED", END_S)
            check_calls(pair.hadoop, other)
        (place / "room").touch()
        wait_for("all members run", lambda: all((place / f"up-{n}").exists() for n in range(MEMBERS)), END_S)
        (place / "done").touch()
        seen = ended(application(), END_S)
    watch.check(ran=ran)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert not [*place.glob("twice-*")]
    starts = [(place / f"starts-{number}").read_text().split() for number in range(MEMBERS)]
    assert all(starts)
    if moment in RUNS:
        assert [len(one) for one in starts] == [1] * MEMBERS
        assert seen["attempt"] == 1
    for one in filter(None, (blocker, second_id(second.out))):
        assert ended(one, END_S)["final_status"] == "SUCCEEDED"


def second_id(out: str) -> str:
    return next(line.partition(" = ")[2] for line in out.splitlines() if line.startswith("DL App ID"))


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_application_goes_through_a_failover_at_any_moment(
    pair: Pair, place: Path, moment: str, kind: str, seed: int
) -> None:
    """See that no GPU and no index is used twice, and that each status is right and comes within 30 s.

    A submission meanwhile is accepted, and the new ResourceManager is called at most twice a second.
    """
    go_through(pair, place, moment, kind, seed)
