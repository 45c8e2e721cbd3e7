"""Shells of two real users in one Docker, with the GPUs of one ledger: each has its own, and gives back its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.processes.proc import start_time
from tests.applications import Done, properties, wait_for
from tests.services.containers.dockerd import GPU_IMAGE, Dockerd
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.services.install import SEARCH
from tests.services.users import interpreter_for_everybody, place_for_everybody
from tests.tools.terminal import Terminal

pytestmark = pytest.mark.root

ANN, TONY = 12_345, 12_346


class User:
    """Somebody with a home and a properties file of their own."""

    def __init__(self, place: Path, uid: int, python: Path, env: dict[str, str]) -> None:
        self.uid, home = uid, place / f"home-{uid}"
        home.mkdir(mode=0o700)
        self.state = home / "state"
        self.file = properties(home, "true", application={"docker_image": GPU_IMAGE})
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid)
        self._env = {**env, "HOME": str(home), "DLAPP_LOCAL_STATE_DIR": str(self.state)}
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        self._command = [*become, str(python), "-m", "dlapp.tools", "shell", "--gcores", "1", str(self.file)]

    def on_a_terminal(self) -> Terminal:
        program = shutil.which(self._command[0], path=SEARCH)
        assert program is not None
        return Terminal(program, *self._command[1:], env=self._env)

    def shell(self, script: str, *args: str) -> Done:
        """Run ``script`` in a shell without a terminal."""
        whole = {**os.environ, **self._env}
        done = subprocess.run(
            [*self._command, *args], input=script, capture_output=True, text=True, timeout=120, env=whole
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def sessions(self) -> list[Path]:
        return list(self.state.glob("*/shells/*/sessions/*"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may look into, as pytest's own is not."""
    with place_for_everybody("shells") as top:
        yield top


@pytest.fixture
def users(place: Path, dockerd: Dockerd) -> tuple[User, User]:
    """Ann and Tony, on a machine with two GPUs."""
    dockerd.socket.chmod(0o666)
    dockerd.socket.parent.chmod(0o755)
    for name, mode in (("cards", 0o755), ("gpus", 0o1777)):
        (place / name).mkdir()
        (place / name).chmod(mode)
    env = {
        **seen_by_all(place / "cards", [StubDevice(), StubDevice()]),
        "DLAPP_GPUID_LOCK_DIR": str(place / "gpus"),
        "DLAPP_RUNTIME_DOCKER_HOST": dockerd.host,
        "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
        "DLAPP_RUNTIME_DOCKER_GPU_MODE": "gpus",
    }
    python = interpreter_for_everybody()
    return User(place, ANN, python, env), User(place, TONY, python, env)


LOOK = "echo I am $(id -u) with $NV_GPU: $(ls /dev/nvidia?)\n"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed terminal", "SIGKILL"])
def test_two_shells_have_separate_devices_and_free_only_their_own(
    users: tuple[User, User], place: Path, dockerd: Dockerd, how: str
) -> None:
    ann, tony = users

    def containers(user: User) -> list[str]:
        return dockerd.containers(f"label=dlapp.uid={user.uid}")

    with ann.on_a_terminal() as anns, tony.on_a_terminal() as tonys:
        for terminal in (anns, tonys):
            terminal.expect(r"GPU \d")
            terminal.expect("[#$] ")
            terminal.type(LOOK)
        device = int(anns.expect(rf"^I am {ANN} with (\d): /dev/nvidia\1$").group(1))
        other = int(tonys.expect(rf"^I am {TONY} with (\d): /dev/nvidia\1$").group(1))
        assert {device, other} == {0, 1}
        refused = tony.shell("echo it ran\n")
        assert (refused.code, refused.out) == (1, "")
        assert "needs 1 gcore, 0 free: gpu0 application_" in refused.err

        # What is in the background and ignores everything goes, too.
        anns.type("setsid nohup sh -c 'trap \"\" TERM HUP; sleep 1000' & echo left it $((40 + 2))\n")
        anns.expect("^left it 42")
        if how == "SIGKILL":
            os.kill(anns.pid, signal.SIGKILL)
        else:
            anns.hang_up()
        wait_for("Ann's container is removed", lambda: not containers(ann))
        # She has her device for as long as her shell has not ended.
        wait_for("the end of Ann's shell", lambda: start_time(anns.pid) is None)
        again = tony.shell(LOOK, "--wait")
        assert again.out == f"I am {TONY} with {device}: /dev/nvidia{device}\n", again.err
        back = ann.shell(LOOK, "--wait")
        assert back.out == f"I am {ANN} with {device}: /dev/nvidia{device}\n", back.err
        assert ann.sessions() == []

        assert len(containers(tony)) == len(tony.sessions()) == 1
        tonys.type(LOOK)
        tonys.expect(rf"^I am {TONY} with {other}: /dev/nvidia{other}$")
        tonys.type("exit 4\n")
        assert tonys.wait() == 4
    ledger = MachineLedger(str(place / "gpus"), discover=tuple)
    wait_for("no lease", lambda: (ledger.reclaim(), not ledger.holders())[1])
    wait_for("no container", lambda: not containers(tony))
    assert tony.sessions() == []
