"""An ApplicationMaster of thousands of containers: a real process with a real HDFS, without nodes and payloads.

The ResourceManager and the NodeManagers are `bench._scale_cluster`, the tasks `bench._scale_tasks`: real links without
payloads.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from bench import Row
from bench._scale_cluster import TOKEN, FakeCluster
from dlapp.cluster.yarn.am_plan import AmPlan
from dlapp.cluster.yarn.bundle import packed
from dlapp.cluster.yarn.values import Cluster
from dlapp.hadoop.tokens import Credentials
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.system.clock import now_ms
from dlapp.values.access import new_secret
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.spec import AppSpec, Gang, OutputSpec, Resources, RoleSpec, Secrets, Submission
from tests.services.hadoop import Hadoop

if TYPE_CHECKING:
    from typing import Self

HELPERS = 4
START_LIMIT_S = 900.0


class Application:
    """An application on a cluster of its own.

    Args:
        hadoop: has its HDFS.
        number: of the application.
        nodes: names of the cluster's nodes, the dead ones first.
        in_gang: its containers start together, and each has a port.

    Attributes:
        ready: container -> when its task was ready for the gate, by the clock of this machine [s].
        met: container -> when its task had the roster.
    """

    def __init__(
        self,
        hadoop: Hadoop,
        root: Path,
        number: int,
        *,
        containers: int,
        nodes: list[str],
        dead: int = 0,
        in_gang: bool = False,
    ) -> None:
        self.hadoop, self.containers, self._in_gang = hadoop, containers, in_gang
        self.root = root / str(number)
        self.root.mkdir()
        self.application = ApplicationId(now_ms(), number)
        self.secret = new_secret()
        self._bundle = packed(str(root / "bundle"))[0]
        self._stack = contextlib.ExitStack()
        self.attempts = 0
        self.master: subprocess.Popen[bytes] | None = None
        self.running: set[str] = set()
        self.ended: set[str] = set()
        self.lost: list[dict[str, Any]] = []
        self.heard: dict[int, list[float]] = defaultdict(list)
        self.ready: dict[str, float] = {}
        self.met: dict[str, float] = {}
        self.helpers: list[Helper] = []
        self.of_helper: dict[str, int] = {}
        self.cluster = FakeCluster(self.application, nodes, nodes[:dead], self._start_task, self._stop_task)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.cluster)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for helper in self.helpers:
            helper.close()
        self._stack.close()

    def start_helpers(self) -> None:
        """Start the processes of the tasks."""
        self.helpers = [Helper(self._take, self._allow_open_files) for _ in range(HELPERS)]

    def start(self) -> float:
        """Start the next attempt, as a NodeManager does; until it has registered [s]."""
        self.attempts += 1
        environment = {
            "PATH": os.environ["PATH"],
            "NM_HOST": "127.0.0.1",
            "CONTAINER_ID": str(ContainerId(self.application, self.attempts, 1)),
            "HADOOP_TOKEN_FILE_LOCATION": str(self._credentials()),
        }
        # As on a node: not the virtual environment's Python, with what is installed there.
        command = [os.path.realpath(sys.executable), "-I", "-S", self._bundle, "am", "--engine", "yarn"]
        began = time.monotonic()
        with open(self.root / f"am-{self.attempts}.log", "wb") as log:
            self.master = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=log, stderr=log, preexec_fn=self._allow_open_files
            )
        self.until("registered", lambda: len(self.cluster.registered) == self.attempts, START_LIMIT_S)
        return self.cluster.registered[-1] - began

    def kill(self) -> None:
        """End the ApplicationMaster by SIGKILL."""
        if self.master is not None:
            self.master.send_signal(signal.SIGKILL)
            self.master.wait()
            self.master = None

    def until(self, what: str, condition: Callable[[], object], timeout_s: float) -> None:
        """Wait for a condition.

        Raises:
            SystemExit: it does not come true, or the ApplicationMaster has ended.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.master is not None and self.master.poll() is not None:
                raise SystemExit(f"Error: the ApplicationMaster has ended: {self._log()}")
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"Error: not {what} after {timeout_s:g} s: {len(self.running)} of {self.containers} run, "
                    f"{len(self.ended)} have ended, {len(self.lost)} were stopped {self.lost[:2]}: {self._log()}"
                )
            time.sleep(0.02)

    def _log(self) -> str:
        return (self.root / f"am-{self.attempts}.log").read_text(errors="replace")[-2000:]

    def _credentials(self) -> Path:
        login = Login(getpass.getuser())
        hdfs = HdfsPlace(f"hdfs://127.0.0.1:{self.hadoop.ports['nn']}", (self.hadoop.hdfs_url,), login)
        spec = AppSpec(
            username=login.user,
            appname="scale",
            workspace="/workspace",
            script="start.sh",
            roles=(
                RoleSpec(
                    instances=self.containers,
                    resources=Resources(memory_mib=1024, vcores=1),
                    ports=1 if self._in_gang else 0,
                ),
            ),
            gang=Gang.ALL if self._in_gang else Gang.NONE,
            outputs=(OutputSpec(output_path="output", target=f"{hdfs.home}/results"),),
        )
        plan = AmPlan(
            submission=Submission(
                spec=spec,
                workspace_archive=f"{hdfs.home}/workspace.tar.gz",
                workspace_digest="sha256-0",
                submitter=login.user,
                submitted_ms=now_ms(),
            ),
            secrets=Secrets(control_secret=self.secret),
            cluster=Cluster(
                schedulers=(f"127.0.0.1:{self.cluster.scheduler.address[1]}",),
                clients=(f"127.0.0.1:{self.cluster.lister.address[1]}",),
                login=login,
            ),
            home=hdfs.home,
            python="python3",
            hdfs=hdfs,
            docker=DockerSettings(host="", network="bridge"),
        ).to_credentials()
        path = self.root / "credentials"
        path.write_bytes(Credentials({"": TOKEN}, plan.secrets).encode())
        return path

    def _allow_open_files(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = max(soft, 2 * self.containers + 1000)
        # More than the hard limit only root may have; a real task has a process of its own.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    # ---- tasks ----

    def _start_task(self, launch: dict[str, Any]) -> None:
        if self.helpers:
            name = launch["container_id"]
            helper = self.of_helper[name] = len(self.of_helper) % HELPERS
            self.helpers[helper].tell({"start": launch})

    def _stop_task(self, container: str) -> None:
        if container in self.of_helper:
            self.helpers[self.of_helper[container]].tell({"stop": container})

    def _take(self, said: dict[str, Any]) -> None:
        """Take what a process of tasks says."""
        if "runs" in said:
            self.running.add(said["runs"])
        elif "ready" in said:
            self.ready[said["ready"]] = said["at"]
        elif "met" in said:
            self.met[said["met"]] = said["at"]
        elif "heard" in said:
            self.heard[said["heard"]].append(said["at"])
        elif "ended" in said:
            self.ended.add(said["ended"])
            self.cluster.ended(ContainerId.from_text(said["ended"]), 0)
        else:
            self.lost.append(said)


class Helper:
    """A process of tasks. What it is told waits in a queue, so that no NodeManager's answer waits for the process.

    Args:
        take: called, from a thread of ours, with each thing that the process says.
        prepare: called in the process before its program begins.
    """

    def __init__(self, take: Callable[[dict[str, Any]], None], prepare: Callable[[], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench._scale_tasks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,
        )
        self._take = take
        self._commands: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def tell(self, command: dict[str, Any]) -> None:
        """Give the process a command. Returns at once."""
        self._commands.put(command)

    def close(self) -> None:
        """End the process."""
        self._commands.put(None)
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was ended
            while (command := self._commands.get()) is not None:
                self._process.stdin.write(json.dumps(command) + "\n")
                self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(json.loads(line))


def figure(name: str, value: float, goal: float, unit: str, conditions: dict[str, Any]) -> Row:
    """Make a figure, and print it: the others come minutes later, or not at all."""
    load = os.getloadavg()[0]
    found = Row(
        name=name, ratio=value, goal=goal, better="lower", conditions={"unit": unit, **conditions, "load_average": load}
    )
    say(f"{name}: {value:.4g} {unit}, {'at most' if found.met else 'MISSED:'} {goal:g}  {json.dumps(found.conditions)}")
    return found


def say(line: str) -> None:
    print(line, flush=True)
