"""One ApplicationMaster of 10,000 containers on 10,000 nodes, with HDFS: what it costs, and how it comes back.

The ApplicationMaster is a real process, started as a NodeManager starts it, and HDFS is a real one. The ResourceManager
and the NodeManagers are `bench._scale_cluster`, the tasks `bench._scale_tasks`: real links without payloads. It is
killed three times: it comes back after 10 s, after two minutes, and when its journal has a result of all containers but
one.

A figure here is no ratio: the field ``ratio`` has the value in the unit that ``conditions`` names.
``DLAPP_BENCH_SCALE`` is the number of containers and of nodes: each node has one.
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
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench import Row
from bench._on_yarn import cpu_s, resident_mib
from bench._scale_cluster import TOKEN, FakeCluster, host_names
from dlapp.cluster.yarn.am import node_list
from dlapp.cluster.yarn.am_plan import AmPlan
from dlapp.cluster.yarn.bundle import packed
from dlapp.cluster.yarn.staging import StagingPaths
from dlapp.cluster.yarn.values import Cluster
from dlapp.hadoop.tokens import Credentials
from dlapp.ids import ApplicationId, ContainerId
from dlapp.launch_spec import DockerSettings
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.messages import new_secret
from dlapp.spec import AppSpec, OutputSpec, Resources, RoleSpec, Secrets, Submission
from dlapp.system.clock import now_ms
from tests.services.hadoop import Hadoop

NEEDS = ("java", "mvn")
SCALE = int(os.environ.get("DLAPP_BENCH_SCALE", "10000"))
HELPERS = 4
OPEN_FILES = 2 * SCALE + 1000
SETTLE_S, STEADY_S = 20.0, 60.0
AWAY_S, LONG_AWAY_S, OPERATIONS_S = 10.0, 120.0, 60.0
RESULTS_S = 120.0
START_LIMIT_S, HEARD_LIMIT_S = 900.0, 240.0
NODES, DEAD = 1000, 40
"""Of the application that starts where some nodes are dead."""


def rows() -> list[Row]:
    """Start it, let it be, kill it three times."""
    with tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name, Hadoop.start(parts=("nn", "dn")) as hadoop:
        root = Path(name)
        found = _dead_nodes(hadoop, root)
        with _Application(hadoop, root, 1, containers=SCALE, nodes=host_names(SCALE)) as one:
            found += one.figures()
        return found


# ---- the application ----


class _Application:
    """An application on a cluster of its own.

    Args:
        hadoop: has its HDFS.
        number: of the application.
        nodes: names of the cluster's nodes, the dead ones first.
    """

    def __init__(
        self, hadoop: Hadoop, root: Path, number: int, *, containers: int, nodes: list[str], dead: int = 0
    ) -> None:
        self.hadoop, self.containers = hadoop, containers
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
        self._helpers: list[_Helper] = []
        self._of_helper: dict[str, int] = {}
        self.cluster = FakeCluster(self.application, nodes, nodes[:dead], self._start_task, self._stop_task)

    def __enter__(self) -> _Application:
        self._stack.enter_context(self.cluster)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for helper in self._helpers:
            helper.close()
        self._stack.close()

    def start_helpers(self) -> None:
        """Start the processes of the tasks."""
        self._helpers = [_Helper(self._take) for _ in range(HELPERS)]

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
                command, cwd=self.root, env=environment, stdout=log, stderr=log, preexec_fn=_allow_open_files
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
            roles=(RoleSpec(instances=self.containers, resources=Resources(memory_mib=1024, vcores=1)),),
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

    # ---- tasks ----

    def _start_task(self, launch: dict[str, Any]) -> None:
        if self._helpers:
            name = launch["container_id"]
            helper = self._of_helper[name] = len(self._of_helper) % HELPERS
            self._helpers[helper].tell({"start": launch})

    def _stop_task(self, container: str) -> None:
        if container in self._of_helper:
            self._helpers[self._of_helper[container]].tell({"stop": container})

    def _take(self, said: dict[str, Any]) -> None:
        """Take what a process of tasks says."""
        if "runs" in said:
            self.running.add(said["runs"])
        elif "heard" in said:
            self.heard[said["heard"]].append(said["at"])
        elif "ended" in said:
            self.ended.add(said["ended"])
            self.cluster.ended(ContainerId.from_text(said["ended"]), 0)
        else:
            self.lost.append(said)

    # ---- what is measured ----

    def figures(self) -> list[Row]:
        """The figures of the large application."""
        self.start_helpers()
        began = time.monotonic()
        self.start()
        self.until("running", lambda: len(self.running) == self.containers, START_LIMIT_S)
        all_run_s = time.monotonic() - began
        _say(f"{self.containers} containers run after {all_run_s:.0f} s")
        time.sleep(SETTLE_S)
        found = self._steady(all_run_s)
        first = self._come_back("reheard-10000", AWAY_S, 30.0)
        operations, second = self._without()
        files = self._results()
        return [*found, first, operations, second, *files]

    def _steady(self, all_run_s: float) -> list[Row]:
        assert self.master is not None
        conditions = {"containers": self.containers, "until_all_ran_s": all_run_s}
        rm, list_bytes = self.cluster.scheduler, self.cluster.list_bytes
        lists, reports_before = self.cluster.lists, self._report_bytes()
        before, bytes_before, at = cpu_s(self.master.pid), rm.traffic_bytes, time.monotonic()
        time.sleep(STEADY_S)
        minutes = (time.monotonic() - at) / 60
        share = (cpu_s(self.master.pid) - before) / (60 * minutes)
        heartbeat_mb = (rm.traffic_bytes - bytes_before) / 1e6 / minutes
        report_mb = (self._report_bytes() - reports_before) / 1e6 / minutes
        # Between two lists of the nodes pass minutes, so that a minute's share of one counts even where none came.
        listed = max(
            (self.cluster.lists - lists) / minutes, 60 / max(node_list.EVERY_S, SCALE * node_list.EVERY_S_EACH)
        )
        memory = resident_mib(self.master.pid)
        return [
            _row("am-memory-10000", memory, 200, "MiB", conditions),
            _row("am-cpu-10000", share, 0.4, "cores", conditions | {"seconds": STEADY_S}),
            _row(
                "rm-bytes-minute",
                heartbeat_mb + report_mb + listed * list_bytes / 1e6,
                0.2,
                "MB",
                {
                    "nodes": SCALE,
                    "heartbeats_mb": heartbeat_mb,
                    "reports_mb": report_mb,
                    "node_list_mb": list_bytes / 1e6,
                    "node_lists": listed,
                },
            ),
        ]

    def _report_bytes(self) -> int:
        """Return the bytes of what was said to the lister but for lists of the nodes."""
        return self.cluster.lister.traffic_bytes - self.cluster.lists * self.cluster.list_bytes

    def _come_back(self, name: str, away_s: float, goal_s: float) -> Row:
        """Kill the ApplicationMaster, and start the next attempt so long after that."""
        killed = time.monotonic()
        self.kill()
        time.sleep(away_s)
        return self._heard_again(name, goal_s, killed)

    def _heard_again(self, name: str, goal_s: float, killed: float) -> Row:
        register_s = self.start()
        attempt, back = self.attempts, self.cluster.registered[-1]
        wanted = len(self.running) - len(self.ended)
        self.until("heard again", lambda: len(self.heard[attempt]) >= wanted, HEARD_LIMIT_S)
        after_s = sorted(at - back for at in self.heard[attempt])
        _say(f"attempt {attempt}: registered after {register_s:.1f} s, the last task after {after_s[-1]:.1f} s")
        return _row(
            name,
            after_s[min(len(after_s) - 1, len(after_s) * 99 // 100)],
            goal_s,
            "s",
            {
                "tasks": len(after_s),
                "away_s": back - killed,
                "median_s": after_s[len(after_s) // 2],
                "last_s": after_s[-1],
                "until_registered_s": register_s,
                "stopped": len(self.lost),
            },
        )

    def _without(self) -> tuple[Row, Row]:
        killed = time.monotonic()
        self.kill()
        time.sleep(LONG_AWAY_S - OPERATIONS_S)
        before, at = self._namenode_operations(), time.monotonic()
        time.sleep(OPERATIONS_S)
        rate = (self._namenode_operations() - before) / (time.monotonic() - at)
        operations = _row("nn-ops-no-am", rate, 300, "/s", {"tasks": self.containers, "seconds": OPERATIONS_S})
        return operations, self._heard_again("reheard-10000-late", 75.0, killed)

    def _namenode_operations(self) -> int:
        url = f"{self.hadoop.hdfs_url}/jmx?qry=Hadoop:service=NameNode,name=NameNodeActivity"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(json.load(answer)["beans"][0]["TotalFileOps"])

    def _results(self) -> list[Row]:
        """All containers but one end, one after another; then the ApplicationMaster is killed once more."""
        time.sleep(SETTLE_S)
        each = [list(self._of_helper.values()).count(helper) for helper in range(HELPERS)]
        each[0] -= 1
        for helper, count in enumerate(each):
            self._helpers[helper].tell({"results": count, "every_s": RESULTS_S / max(1, count)})
        self.until("ended", lambda: len(self.ended) == sum(each), RESULTS_S + HEARD_LIMIT_S)
        files = self._journal_files()
        self.kill()
        register_s = self.start()
        conditions = {"results": sum(each), "results_per_s": sum(each) / RESULTS_S, "journal_files": files}
        return [
            _row("journal-files", files, 100, "files", conditions),
            _row("recovery-before-register", register_s, 2, "s", conditions),
        ]

    def _journal_files(self) -> int:
        home = f"/user/{getpass.getuser()}"
        path = StagingPaths(home).staging(self.application)
        url = f"{self.hadoop.hdfs_url}/webhdfs/v1{path}?op=LISTSTATUS&user.name={getpass.getuser()}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            names = [one["pathSuffix"] for one in json.load(answer)["FileStatuses"]["FileStatus"]]
        return len([name for name in names if name not in ("am.json", "view.json", "submission.json")])


class _Helper:
    """A process of tasks. What it is told waits in a queue, so that no NodeManager's answer waits for the process.

    Args:
        take: called, from a thread of ours, with each thing that the process says.
    """

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench._scale_tasks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_allow_open_files,
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


def _dead_nodes(hadoop: Hadoop, root: Path) -> list[Row]:
    """An application with a container on each of its nodes, the first of which are dead."""
    with _Application(hadoop, root, 2, containers=NODES, nodes=host_names(NODES), dead=DEAD) as one:
        one.start()
        one.until("started", lambda: len(one.cluster.started) >= NODES - DEAD, START_LIMIT_S)
        last_s = sorted(one.cluster.started.values())[NODES - DEAD - 1] - one.cluster.granted
    _say(f"{NODES - DEAD} containers were started in {last_s:.1f} s, {DEAD} nodes are dead")
    return [_row("dead-nodes-last-start", last_s, 15, "s", {"nodes": NODES, "dead": DEAD})]


def _row(name: str, value: float, goal: float, unit: str, conditions: dict[str, Any]) -> Row:
    """Make a figure, and print it: the others come minutes later, or not at all."""
    load = os.getloadavg()[0]
    row = Row(
        name=name, ratio=value, goal=goal, better="lower", conditions={"unit": unit, **conditions, "load_average": load}
    )
    _say(f"{name}: {value:.4g} {unit}, {'at most' if row.met else 'MISSED:'} {goal:g}  {json.dumps(row.conditions)}")
    return row


def _say(line: str) -> None:
    print(line, flush=True)


def _allow_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, OPEN_FILES)
    # More than the hard limit only root may have; a real task has a process of its own.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
