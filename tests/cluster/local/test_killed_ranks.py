"""Ranks of a gang that are killed in each phase, with real processes, as `tests.am.decisions.gangs.test_killed_ranks`
simulates.

The task of rank 1 dies when its ApplicationMaster has heard of the phase. For each phase there is one application of
each policy, all at the same time. Images are pulled from a registry that takes 2 s for each.
tests/end_to_end/faults/test_killed_ranks_yarn.py has the same on a cluster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.client.application import Application
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.config import load_config
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause
from dlapp.values.spec import RoleFailure
from tests.am.decisions.gangs.test_killed_ranks import AFTER_GATE, expected
from tests.applications import processes, wait_for
from tests.services.containers.dockerd import busybox_root, own_daemon
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.containers.registry import Registry
from tests.services.processes import am_at_points

END_S = 120.0
PAYLOAD = "its payload"
BEFORE_GATE = (Phase.STARTING, Phase.PULLING, Phase.UNPACKING, Phase.FETCHING, Phase.LEASING, Phase.WAITING)
POLICIES = (RoleFailure.RESTART_GANG, RoleFailure.RESTART, RoleFailure.FAIL)
SCRIPT = """\
#!/bin/sh
place="$1"
if [ "$CONTAINER_INDEX" = 1 ] && mkdir "$place/first" 2>/dev/null; then
    case $2 in
    storing | releasing) exit 0 ;;
    'its payload') kill -9 $$ ;;
    esac
fi
touch "$place/up-$CONTAINER_INDEX-$DLAPP_GENERATION"
until [ -e "$place/go" ]; do sleep 0.02; done
mkdir -p output
cat in/data >output/data
"""


class Gang:
    """A gang of two with one policy.

    Args:
        client: submits it.
        directory: for its files; it is made.
        policy: on_failure of its role.
        victim: the phase in which rank 1 is killed, or `PAYLOAD`.
        image: of its containers; empty: they are plain processes.
        files: location of its input and its result; empty: its directory.
        memory: of a container.
    """

    def __init__(
        self,
        client: Client,
        directory: Path,
        policy: RoleFailure,
        victim: Phase | str,
        *,
        image: str = "",
        files: str = "",
        memory: str = "64m",
    ) -> None:
        self.directory, self.policy, self.victim, self._image = directory, policy, victim, image
        files = files or str(directory)
        # In a container the directory is not there: its workspace takes its place.
        place = "." if image else str(directory)
        (directory / "w").mkdir(parents=True)
        (directory / "w/run.sh").write_text(SCRIPT)
        (directory / "w/run.sh").chmod(0o755)
        (directory / "data").write_text("given\n")
        word = victim if isinstance(victim, str) else victim.value
        (directory / "app.properties").write_text(
            f"[application]\nappname={policy.value}\nuser_dev_workspace_path=w\nkill_grace=2s\n"
            + (f"docker_image={image}\n" if image else "")
            + f"[resources]\nmemory={memory}\ngcores={int(victim is Phase.LEASING)}\n"
            f"[role worker]\ninstances=2\nretries=1\non_failure={policy.value}\n"
            f"script=run.sh\nargs={place} '{word}'\n"
            f"[from_hdfs]\nhdfs={files}/data\ninput_path=in\n"
            f"[to_hdfs]\noutput_path=output\nhdfs={files}/result\n"
        )
        self.application: Application = client.submit(str(directory / "app.properties"))

    def __str__(self) -> str:
        return f"{self.victim} with {self.policy.value}"

    def places(self) -> list[Path]:
        """Return the directories of its files: its own, or the workspaces of its containers."""
        if not self._image:
            return [self.directory]
        return list(self.directory.parent.glob(f"state/*/applications/{self.application.id}/containers/*/workspace"))

    def is_up(self, generation: int) -> bool:
        """Return whether both ranks run their programs in a generation."""
        names = [f"up-{index}-{generation}" for index in (0, 1)]
        return all(any((place / name).exists() for place in self.places()) for name in names)

    def result(self, index: int) -> str:
        """Return what a rank has stored."""
        return (self.directory / f"result/{index}/data").read_text()

    def check(self) -> None:
        """See that it ends as the documentation says (docs/properties.md, Gangs)."""
        how, phase = ("payload", Phase.RUNNING) if isinstance(self.victim, str) else ("task", self.victim)
        wanted = expected(how, phase, self.policy, 1)
        if not wanted.succeeds:
            end = self.application.wait(END_S)
            assert end.cause is Cause.FAILED, f"{self}: {end.diagnostics}"
            assert end.diagnostics.startswith("container 1 (worker 1) failed: "), f"{self}: {end.diagnostics}"
            return
        # Rank 0 runs on where the generation is the same.
        wait_for(f"all ranks of {self}", lambda: self.is_up(wanted.generation), END_S)
        for place in self.places():
            (place / "go").touch()
        end = self.application.wait(END_S)
        assert end.cause is Cause.SUCCEEDED, f"{self}: {end.diagnostics}"
        self.check_containers(end, wanted.generation)
        for index in (0, 1):
            assert self.result(index) == "given\n", str(self)

    def check_containers(self, end: ApplicationView, generation: int) -> None:
        """See that only the killed task was replaced."""
        assert [container.generation for container in end.containers] == [generation] * 2, str(self)
        replaced = 0 if isinstance(self.victim, str) and self.policy is RoleFailure.RESTART_GANG else 1
        assert [len(container.earlier) for container in end.containers] == [0, replaced], str(self)


@pytest.fixture
def image(victim: Phase | str) -> Iterator[tuple[str, str]]:
    """Yield an image that is not pulled yet, and the address of a dockerd for it, if images are to be pulled."""
    if victim is not Phase.PULLING:
        yield "", ""
        return
    with own_daemon() as daemon, Registry(busybox_root(), slow_s=2.0) as registry:
        yield registry.image, daemon.host


@pytest.fixture
def client(
    tmp_path: Path, request: pytest.FixtureRequest, image: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """Client of an embedded engine whose tasks of index 1 die in the phase of the test."""
    phase = request.getfixturevalue("victim")
    point = "" if isinstance(phase, str) else f"task 1 {phase.value}"
    options = {"local.state_dir": str(tmp_path / "state"), "local.vcores": "100"}
    environment: dict[str, str] = {}
    if image[1]:
        options |= {"runtime.docker.host": image[1], "runtime.docker.network": "none"}
    if phase is Phase.LEASING:
        devices = [StubDevice(uuid=f"GPU-{n}") for n in range(2 * len(POLICIES))]
        environment = with_devices(tmp_path, devices)
        options["local.gcores"] = str(len(devices))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("dlapp.gpuid.health.nvml.has_library", lambda: True)
        monkeypatch.setattr("dlapp.system.processes.spawn._KEPT_VARIABLES", ("PATH", *environment))
    # Before the gate the ApplicationMaster must see the death before the gang could be complete.
    waited_for = 3 if phase in BEFORE_GATE else 0
    program = am_at_points.install(tmp_path, point, others_wait_for=waited_for, environment=environment)
    config = load_config({**options, "gpuid.lock_dir": os.environ["DLAPP_GPUID_LOCK_DIR"]})
    engine = LocalEngine(config, program=(str(program),))
    with Client(config, engine=engine) as one:
        yield one
        for application in one.list():
            if not application.state.ended:
                one.kill(application.application_id)
    engine.close()
    wait_for("the end of all processes", lambda: not processes(tmp_path))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "victim",
    [
        *(
            pytest.param(one, marks=[pytest.mark.docker, pytest.mark.slow]) if one is Phase.PULLING else one
            for one in BEFORE_GATE
        ),
        *(*AFTER_GATE, PAYLOAD),
    ],
    ids=lambda one: getattr(one, "value", one),
)
def test_a_rank_is_killed_in_a_phase_under_each_policy(
    client: Client, tmp_path: Path, victim: Phase | str, image: tuple[str, str]
) -> None:
    """Three gangs of two, one for each policy; a task of each is killed once. A phase takes 6 to 15 s."""
    gangs = [Gang(client, tmp_path / policy.value, policy, victim, image=image[0]) for policy in POLICIES]
    for one in gangs:
        one.check()


TRAIN = """\
#!/bin/sh
place="$1"
mkdir -p model output
begun=$(cat model/weights model/optimizer 2>/dev/null | tr '\\n' ' ')
echo "$DLAPP_GENERATION $begun" >>"$place/begun-$CONTAINER_INDEX"
step=$(($(cat model/weights 2>/dev/null || echo 0) + 1))
for file in weights optimizer; do echo $step >model/new; mv model/new model/$file; done
echo "{\\"checkpoint\\": \\"model\\", \\"step\\": $step}" >>$DLAPP_REPORT
touch "$place/saved-$CONTAINER_INDEX-$step"
if [ $CONTAINER_INDEX = 1 ]; then
    until [ -e "$place/go" ]; do sleep 0.02; done
    mkdir "$place/failed" 2>/dev/null && exit 3
    touch "$place/end"
fi
until [ -e "$place/end" ]; do sleep 0.02; done
cp model/weights output/weights
"""
"""Rank 1 fails once. Both say with what they begin, and save one more step."""


@pytest.mark.slow
def test_all_ranks_start_a_generation_from_one_complete_checkpoint_after_any_kill(tmp_path: Path) -> None:
    # The choice of a checkpoint and the opening of the gate, of two generations, with the closing between them.
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(killed_master(tmp_path / f"gate-{nth}", nth)) for nth in range(1, 6)]
        for place, application in runs:
            wait_for(f"checkpoints in {place}", partial(both_have_one, place, application), END_S)
            (place / "go").touch()
        for place, application in runs:
            end = application.wait(END_S)
            assert end.cause is Cause.SUCCEEDED, f"{place}: {end.diagnostics}"
            assert end.attempt == 2, f"{place}: {am_at_points.points(place)}"
            begun = [dict(line.split(" ", 1) for line in lines_of(place / f"begun-{index}")) for index in (0, 1)]
            assert begun[0] == begun[1], str(place)
            for text in begun[0].values():
                weights, optimizer = text.split() or ("0", "0")
                assert weights == optimizer, str(place)
            ends = [(place / f"result/{index}/weights").read_text() for index in (0, 1)]
            assert ends[0] == ends[1], str(place)
            assert int(ends[0]) >= 2, str(place)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def both_have_one(place: Path, application: Application) -> bool:
    found = [place / f"kept/{application.id}/{index}" for index in (0, 1)]
    return all(any(item.glob("checkpoint-*.json")) for item in found)


@contextlib.contextmanager
def killed_master(place: Path, nth: int) -> Iterator[tuple[Path, Application]]:
    """Submit a gang whose ApplicationMaster dies when it has written down the state of its gate for the nth time."""
    program = am_at_points.install(place, "after Journal gate", nth=nth)
    config = load_config({"local.state_dir": str(place / "state"), "local.vcores": "100"})
    (place / "w").mkdir()
    (place / "w/train.sh").write_text(TRAIN)
    (place / "w/train.sh").chmod(0o755)
    (place / "app.properties").write_text(
        f"[application]\nappname=gate-{nth}\nuser_dev_workspace_path=w\nuser_shell_script=train.sh\n"
        f"user_shell_args={place}\ngang=all\nkill_grace=2s\n"
        "[resources]\nmemory=64m\ngcores=0\ncontainers=2\nretries=3\n"
        f"[checkpoint]\npath=model\nhdfs={place}/kept\nevery=1s\nrole=all\n"
        f"[to_hdfs]\noutput_path=output\nhdfs={place}/result\n"
    )
    engine = LocalEngine(config, program=(str(program),))
    with Client(config, engine=engine) as client:
        application = client.submit(str(place / "app.properties"))
        yield place, application
        if not application.status().state.ended:
            application.kill()
    engine.close()
    wait_for("the end of all processes", lambda: not processes(place))
