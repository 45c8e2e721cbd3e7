"""The place of one run of `make test-gpu`: its directory, its environment, its applications and its processes.

Everything is below one directory, which goes with the run: the state of the embedded engine, a GPU ledger of its own,
HOME, TMPDIR, and ``site`` with links to this source tree and the unpacked wheels. dlapp's own processes find their
libraries beside the package dlapp, so nothing is installed. Each process of the run has XDG_STATE_HOME or HOME in that
directory, and is found and ended by this alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.gpu_run import cuda_program
from tests.gpu_run.results import Failed

T = TypeVar("T")
VARIABLE = "DLAPP_SHELL_GPU_RUN"
"""Variable with the directory of the run; dlapp ignores variables with this prefix."""
COMMAND_S = 60.0
"""Time limit of one command of dlapp [s]."""
POLL_S = 0.2
START_S = 30.0
"""Until an application runs that need not wait [s]."""
ENDED = ("FINISHED", "FAILED", "KILLED")


class Done(NamedTuple):
    """Output of a command, and its exit code."""

    code: int
    out: str
    err: str


class Workplace:
    """The place of the run, in the parent of the checks and in each of them.

    Args:
        directory: of the run.
        stub: whether the stub of NVML answers.
        device: the fields of the GPU that the run uses (`dlapp.gpuid.devices.Device`), and ``count``: how many the
            machine has.
        values: what earlier checks recorded, by their ids.
        root: the source tree.
    """

    def __init__(self, directory: Path, *, stub: bool, device: Mapping[str, Any], root: Path) -> None:
        self.directory, self.stub, self.device, self.root = directory, stub, dict(device), root
        self.values: dict[str, Mapping[str, Any]] = {}

    @property
    def uuid(self) -> str:
        """Return the uuid of the GPU that the run uses."""
        return str(self.device["uuid"])

    @property
    def label(self) -> str:
        """Return its name, ``gpu0``."""
        mig = int(self.device["mig"])
        return f"gpu{self.device['index']}" + (f":{mig}" if mig >= 0 else "")

    @property
    def lock_dir(self) -> Path:
        """Return the directory of the run's GPU ledger."""
        return self.directory / "locks"

    # ---- commands ----

    def tool(self, *words: object, env: Mapping[str, str] = {}, timeout_s: float = COMMAND_S) -> Done:
        """Run a command of dlapp to its end; a check without time left is ended by its parent."""
        done = subprocess.run(
            [*self.tool_words, *map(str, words)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env={**os.environ, **env},
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def tool_words(self) -> list[str]:
        """Return the command line of dlapp's commands."""
        return [sys.executable, "-I", "-S", str(self.directory / "site/dlapp/__main__.py"), "tool"]

    def submit(self, name: str, script: str, **sections: Mapping[str, object]) -> Application:
        """Submit an application whose start script is ``script``; its workspace has cuda_program.py.

        Args:
            name: of the application, which names its directory, too.
            script: lines of sh.
            sections: keys by section, beside the defaults: one GPU, 2 GiB of memory.

        Raises:
            Failed: it was refused.
        """
        directory = self.directory / "applications" / f"{name}-{time.monotonic_ns()}"
        workspace = directory / "workspace"
        workspace.mkdir(parents=True)
        start = workspace / "start.sh"
        start.write_text(f"#!/bin/sh\n{script}\n")
        start.chmod(0o755)
        shutil.copy2(cuda_program.__file__, workspace)
        keys: dict[str, dict[str, object]] = {
            "application": {"appname": name, "user_dev_workspace_path": workspace, "user_shell_script": "start.sh"},
            "resources": {"gcores": 1, "memory": "2g"},
        }
        for section, values in sections.items():
            keys.setdefault(section, {}).update(values)
        file = directory / "application.properties"
        file.write_text(
            "".join(f"[{head}]\n" + "".join(f"{k}={v}\n" for k, v in body.items()) for head, body in keys.items())
        )
        submitted_s = time.time()
        done = self.tool("launcher", "--json", file)
        if done.code != 0:
            raise Failed((done.err.strip().splitlines() or ["no message"])[-1], {"exit": done.code})
        return Application(self, str(json.loads(done.out)["application_id"]), submitted_s)

    @contextlib.contextmanager
    def application(self, name: str, script: str, **sections: Mapping[str, object]) -> Iterator[Application]:
        """Submit an application for a block, and kill it at the end: a later check must find the GPU free."""
        found = self.submit(name, script, **sections)
        try:
            yield found
        finally:
            found.kill()

    def cuda(self, *words: object) -> str:
        """Return the line of a start script that becomes the CUDA program in a mode."""
        return f"exec '{sys.executable}' -u cuda_program.py {' '.join(map(str, words))}"

    @contextlib.contextmanager
    def foreign(self, *words: object, env: Mapping[str, str] = {}) -> Iterator[int]:
        """Run the CUDA program without dlapp in a mode, until the end of a block; yield its pid when it has memory.

        With the stub of NVML it is a process that sleeps, and the caller says that it computes (`set_stub`).
        """
        command = ["sleep", "600"] if self.stub else [sys.executable, "-u", cuda_program.__file__, *map(str, words)]
        visible = {"CUDA_VISIBLE_DEVICES": self.uuid, **env}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | visible
        )
        assert process.stdout is not None
        try:
            events: list[str] = []
            while not self.stub and not {"memory", "busy"} & set(events):
                if not (line := process.stdout.readline()):
                    raise Failed(f"the foreign process ended: {process.communicate()[1].strip()}")
                events.append(str(json.loads(line)["event"]))
            yield process.pid
        finally:
            process.kill()
            process.communicate()

    # ---- the stub of NVML ----

    def set_stub(self, **changes: Any) -> None:
        """Change the GPU that the stub of NVML shows; without arguments it is idle. Nothing on a real machine."""
        if self.stub:
            from tests.services.containers.nvml_stub import with_devices

            with_devices(self.directory / "stub", [stub_device(**changes)])

    # ---- the ledger ----

    def gpu(self) -> dict[str, Any]:
        """Return what ``dlapp-gpu list --json`` says of the GPU of the run."""
        done = self.tool("gpu", "list", "--json")
        if done.code != 0:
            raise Failed(f"dlapp-gpu list: {done.err.strip()}")
        devices = [device for host in json.loads(done.out)["hosts"] for device in host["devices"]]
        return next(dict(device) for device in devices if device["uuid"] == self.uuid)

    def expect_free(self, within_s: float = 10.0) -> None:
        """Wait until the GPU is free and not in quarantine. Raises Failed."""
        self.wait(f"{self.label} is free", lambda: self.gpu()["state"] == "free", within_s, lambda: str(self.gpu()))

    # ---- waiting ----

    def wait(
        self, what: str, look: Callable[[], T | None], timeout_s: float, more: Callable[[], str] = lambda: ""
    ) -> T:
        """Look again and again until there is something; return it.

        Args:
            what: what is waited for.
            look: returns it, or a false value.
            timeout_s: for how long [s].
            more: returns a text for the error.

        Raises:
            Failed: it did not come.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            if found := look():
                return found
            if time.monotonic() > end_s:
                raise Failed(f"not in {timeout_s:g} s: {what} {more()}".rstrip())
            time.sleep(POLL_S)

    # ---- processes ----

    def processes(self) -> list[int]:
        """Return the living processes of the run, but this one and its parent."""
        marks = {f"{name}={path}".encode() for name, path in places(self.directory).items()}
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
                with contextlib.suppress(OSError):
                    if marks & set(Path("/proc", name, "environ").read_bytes().split(b"\0")):
                        found.append(int(name))
        return found

    def pids_of(self, *words: str) -> list[int]:
        """Return the processes of the run whose command line ends with these words, or paths with their names."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
                if [word.rpartition("/")[2] for word in line][-len(words) :] == list(words):
                    found.append(pid)
        return found

    def kill_processes(self) -> list[int]:
        """Send SIGKILL to the processes of the run, until there are no new ones; return them."""
        killed: list[int] = []
        while fresh := [pid for pid in self.processes() if pid not in killed]:
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed += fresh
        return killed

    def end_applications(self, timeout_s: float = COMMAND_S) -> list[str]:
        """Kill the applications that have not ended; return their ids."""
        found = (self.directory / "state").glob("*/applications/application_*")
        left = [item for item in sorted(path.name for path in found) if not Application(self, item, 0.0).has_ended()]
        for item in left:
            self.tool("kill", item, timeout_s=timeout_s)
        return left


class Application:
    """An application of the run.

    Args:
        submitted_s: when its submission began [s since 1970].
    """

    def __init__(self, place: Workplace, id: str, submitted_s: float) -> None:
        self._place, self.id, self.submitted_s = place, id, submitted_s

    def status(self) -> dict[str, Any]:
        """Return what ``dlapp-status --json`` says, without a process, for a wait."""
        from dlapp.client import Client
        from dlapp.tools.common import whole

        with contextlib.closing(Client()) as client:
            return dict(json.loads(json.dumps(whole(client.view_of(client.resolve_text(self.id)).json))))

    def status_of_command(self) -> dict[str, Any]:
        """Return what the command ``dlapp-status --json`` prints."""
        done = self._place.tool("status", "--json", self.id)
        if done.code not in (0, 1) or not done.out:
            raise Failed(f"dlapp-status {self.id}: {done.err.strip()}")
        return dict(json.loads(done.out))

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        return self.status()["state"] in ENDED

    def running(self, timeout_s: float = START_S) -> dict[str, Any]:
        """Wait until its program runs; return the status. Raises Failed."""

        def look() -> dict[str, Any] | None:
            now = self.status()
            if now["state"] in ENDED:
                raise Failed(f"{self.id} ended: {now['diagnostics']}\n{self.printed()}")
            return now if [container["phase"] for container in now["containers"]] == ["running"] else None

        return self._place.wait(f"{self.id} runs", look, timeout_s, lambda: str(self.status()["phase"]))

    def ended(self, timeout_s: float) -> dict[str, Any]:
        """Wait for its end; return the status then. Raises Failed."""

        def look() -> dict[str, Any] | None:
            now = self.status()
            return now if now["state"] in ENDED else None

        return self._place.wait(f"the end of {self.id}", look, timeout_s, lambda: str(self.status()["phase"]))

    def succeeded(self, timeout_s: float) -> dict[str, Any]:
        """Wait for its end; return the status. Raises Failed: it did not succeed."""
        now = self.ended(timeout_s)
        if now["cause"] != "succeeded":
            raise Failed(f"{self.id}: {now['diagnostics']}\n{self.printed()}")
        return now

    def printed(self) -> str:
        """Return what its program printed."""
        return self._place.tool("logs", self.id).out

    def events(self) -> list[dict[str, Any]]:
        """Return the events that its CUDA program printed."""
        found = []
        for line in self.printed().splitlines():
            start = line.find('{"event"')
            if start >= 0:
                with contextlib.suppress(ValueError):  # the line is being written
                    found.append(json.loads(line[start:]))
        return found

    def wait_event(self, name: str, timeout_s: float = START_S) -> dict[str, Any]:
        """Wait for an event of its CUDA program. Raises Failed."""

        def look() -> dict[str, Any] | None:
            return next((event for event in self.events() if event["event"] == name), None)

        return self._place.wait(f"{self.id} prints {name!r}", look, timeout_s, lambda: self.printed()[-500:])

    def kill(self) -> None:
        """End it, whatever it does."""
        self._place.tool("kill", self.id)


def places(directory: Path) -> dict[str, str]:
    """Return the variables that mark processes of the run. dlapp's own processes keep HOME alone of them."""
    return {"XDG_STATE_HOME": str(directory / "state"), "HOME": str(directory / "home")}


def environment(directory: Path, base: Mapping[str, str], *, stub: bool) -> dict[str, str]:
    """Return the environment of the run.

    Args:
        directory: of the run.
        base: that of the caller; its settings of dlapp, and what hides GPUs, are dropped.
        stub: whether the library in ``directory/stub`` is NVML.
    """
    hides = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVML_STUB", "PYTHONPATH")
    inherited = {name: value for name, value in base.items() if not name.startswith("DLAPP_") and name not in hides}
    path = [str(directory / "site"), *([base["PYTHONPATH"]] if base.get("PYTHONPATH") else [])]
    inherited |= {
        **places(directory),
        VARIABLE: str(directory),
        "TMPDIR": str(directory / "tmp"),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",
        "DLAPP_CLUSTER": "local",
        "DLAPP_LOCAL_STATE_DIR": str(directory / "state"),
        "DLAPP_GPUID_LOCK_DIR": str(directory / "locks"),
        "DLAPP_RUNTIME_DOCKER_HOST": f"unix://{directory}/no-docker.sock",
    }
    if stub:
        inherited["LD_LIBRARY_PATH"] = str(directory / "stub")
    return inherited


def stub_device(**changes: Any) -> Any:
    """Return the GPU that the stub of NVML shows, with changes of its fields."""
    from tests.services.containers.nvml_stub import StubDevice

    fields: dict[str, Any] = {"name": "NVIDIA Test Card", "milliwatts": 60_000, "millijoules": 0, "mode": 0, "numa": 0}
    return StubDevice(**(fields | changes))
