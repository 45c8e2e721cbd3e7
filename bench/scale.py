"""One ApplicationMaster of 10,000 containers on 10,000 nodes, with HDFS: what it costs, and how it comes back.

The ApplicationMaster is a real process, started as a NodeManager starts it, and HDFS is a real one. The ResourceManager
and the NodeManagers are `bench._scale_cluster`, the tasks `bench._scale_tasks`: real links without payloads. It is
killed three times: it comes back after 10 s, after two minutes, and when its journal has a result of all containers but
one.

A figure here is no ratio: the field ``ratio`` has the value in the unit that ``conditions`` names.
``DLAPP_BENCH_SCALE`` is the number of containers and of nodes: each node has one.
"""

from __future__ import annotations

import getpass
import json
import os
import tempfile
import time
import urllib.request
from pathlib import Path

from bench import Row
from bench._on_yarn import cpu_s, resident_mib
from bench._scale_application import HELPERS, START_LIMIT_S, Application, figure, say
from bench._scale_cluster import host_names
from dlapp.cluster.yarn.am import node_list
from dlapp.cluster.yarn.staging import StagingPaths
from tests.services.hadoop import Hadoop

NEEDS = ("java", "mvn")
SCALE = int(os.environ.get("DLAPP_BENCH_SCALE", "10000"))
SETTLE_S, STEADY_S = 20.0, 60.0
AWAY_S, LONG_AWAY_S, OPERATIONS_S = 10.0, 120.0, 60.0
RESULTS_S = 120.0
HEARD_LIMIT_S = 240.0
NODES, DEAD = 1000, 40
"""Of the application that starts where some nodes are dead."""


def rows() -> list[Row]:
    """Start it, let it be, kill it three times."""
    with tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name, Hadoop.start(parts=("nn", "dn")) as hadoop:
        root = Path(name)
        found = _dead_nodes(hadoop, root)
        with _Measured(hadoop, root, 1, containers=SCALE, nodes=host_names(SCALE)) as one:
            found += one.figures()
        return found


class _Measured(Application):
    """An application and what it costs."""

    def figures(self) -> list[Row]:
        """The figures of the large application."""
        self.start_helpers()
        began = time.monotonic()
        self.start()
        self.until("running", lambda: len(self.running) == self.containers, START_LIMIT_S)
        all_run_s = time.monotonic() - began
        say(f"{self.containers} containers run after {all_run_s:.0f} s")
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
            figure("am-memory-10000", memory, 200, "MiB", conditions),
            figure("am-cpu-10000", share, 0.4, "cores", conditions | {"seconds": STEADY_S}),
            figure(
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
        say(f"attempt {attempt}: registered after {register_s:.1f} s, the last task after {after_s[-1]:.1f} s")
        return figure(
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
        operations = figure("nn-ops-no-am", rate, 300, "/s", {"tasks": self.containers, "seconds": OPERATIONS_S})
        return operations, self._heard_again("reheard-10000-late", 75.0, killed)

    def _namenode_operations(self) -> int:
        url = f"{self.hadoop.hdfs_url}/jmx?qry=Hadoop:service=NameNode,name=NameNodeActivity"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(json.load(answer)["beans"][0]["TotalFileOps"])

    def _results(self) -> list[Row]:
        """All containers but one end, one after another; then the ApplicationMaster is killed once more."""
        time.sleep(SETTLE_S)
        each = [list(self.of_helper.values()).count(helper) for helper in range(HELPERS)]
        each[0] -= 1
        for helper, count in enumerate(each):
            self.helpers[helper].tell({"results": count, "every_s": RESULTS_S / max(1, count)})
        self.until("ended", lambda: len(self.ended) == sum(each), RESULTS_S + HEARD_LIMIT_S)
        files = self._journal_files()
        self.kill()
        register_s = self.start()
        conditions = {"results": sum(each), "results_per_s": sum(each) / RESULTS_S, "journal_files": files}
        return [
            figure("journal-files", files, 100, "files", conditions),
            figure("recovery-before-register", register_s, 2, "s", conditions),
        ]

    def _journal_files(self) -> int:
        home = f"/user/{getpass.getuser()}"
        path = StagingPaths(home).staging(self.application)
        url = f"{self.hadoop.hdfs_url}/webhdfs/v1{path}?op=LISTSTATUS&user.name={getpass.getuser()}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            names = [one["pathSuffix"] for one in json.load(answer)["FileStatuses"]["FileStatus"]]
        return len([name for name in names if name not in ("am.json", "addresses", "view.json", "submission.json")])


def _dead_nodes(hadoop: Hadoop, root: Path) -> list[Row]:
    """An application with a container on each of its nodes, the first of which are dead."""
    with _Measured(hadoop, root, 2, containers=NODES, nodes=host_names(NODES), dead=DEAD) as one:
        one.start()
        one.until("started", lambda: len(one.cluster.started) >= NODES - DEAD, START_LIMIT_S)
        last_s = sorted(one.cluster.started.values())[NODES - DEAD - 1] - one.cluster.granted
    say(f"{NODES - DEAD} containers were started in {last_s:.1f} s, {DEAD} nodes are dead")
    return [figure("dead-nodes-last-start", last_s, 15, "s", {"nodes": NODES, "dead": DEAD})]
