"""A Hadoop to measure on, and what its logs and processes tell of the applications that ran there.

Programs that containers run, Java for the peers and Python for us, are started by way of a small bash script that
notes when the program began and what processor time it took: of an ApplicationMaster nothing is left to look at after
its end, and what a sampler sees of its last moments depends on luck.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from dlapp.cluster.yarn.client.rest import AppReport, YarnRest
from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from tests.services.hadoop import Hadoop, java, library

# As many containers as are asked for run at once, on however small a machine.
SETTINGS = {
    "yarn-site.xml": {
        "yarn.nodemanager.resource.memory-mb": "65536",
        "yarn.nodemanager.resource.cpu-vcores": "512",
        "yarn.scheduler.maximum-allocation-mb": "8192",
    }
}

PATIENCE_S = 600.0
"""Two hundred containers take minutes to start on two cores."""

RECORDER = """#!/bin/bash
# Of a container that says who it is, and does not run this role of ours, it is noted what its program took.
case "${{CONTAINER_ID-}} $*" in
    " "* | *" {skipped} "*) exec {program} "$@" ;;
esac
trap : TERM
began=$EPOCHREALTIME
{program} "$@"
code=$?
{{ echo "$began"; times; }} >"{records}/.$CONTAINER_ID" && mv "{records}/.$CONTAINER_ID" "{records}/$CONTAINER_ID"
exit $code
"""
_REGISTERED = re.compile(r"^(\S+ \S+) INFO .*OPERATION=Register App Master.*APPID=(\S+)", re.MULTILINE)
_CONTAINER = re.compile(r"container_[0-9_]+")
_TIMES = re.compile(r"(\d+)m([\d.]+)s")


class Began(NamedTuple):
    """An ApplicationMaster that has ended: from its process's start to registered, and its processor time [s]."""

    registered_s: float
    cpu_s: float


class Bed:
    """A cluster, and the programs that run on it.

    Args:
        root: for what is written.
        python: what runs dlapp on a node.
        task_python: the same, with a record of each task instead of the ApplicationMaster.
    """

    def __init__(self, cluster: Hadoop, root: Path, records: Path, python: Path, task_python: Path) -> None:
        self.cluster, self.root, self._records, self.python = cluster, root, records, python
        self.task_python = task_python
        self.user = os.environ.get("HADOOP_USER_NAME") or _user()
        self.rest = YarnRest([cluster.rm_url], Login(self.user))
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("DLAPP_", "XDG_", "JAVA_HOME"))
        } | {
            "HOME": str(root),
            "HADOOP_CONF_DIR": str(cluster.configuration),
            "DLAPP_CLUSTER": "yarn",
            "DLAPP_YARN_PYTHON": str(python),
        }

    # ---- waiting ----

    def last(self, kind: str | None = None) -> ApplicationId:
        """The application that was submitted last."""
        return self.rest.reports(kind=kind)[-1].application_id

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait. Raises SystemExit: in vain."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() >= deadline:
                raise SystemExit(f"Error: {what}: not so after {PATIENCE_S:g} s")
            time.sleep(0.1)

    def settled(self) -> None:
        """Wait until no application is left, and no container: what comes next has the machine for itself."""

        def is_idle() -> bool:
            metrics = self.cluster.get(f"{self.cluster.rm_url}/ws/v1/cluster/metrics")["clusterMetrics"]
            return not metrics["containersAllocated"] and not metrics["appsRunning"] and not metrics["appsPending"]

        self.until("the cluster is idle", lambda: is_idle() and not self._in_containers())
        time.sleep(0.3)  # the NodeManagers' own cleaning up

    def ended(self, application_id: ApplicationId) -> AppReport:
        """Wait for an application's end, which must be a success."""
        self.until(f"{application_id} has ended", lambda: self.rest.report(application_id).state.ended)
        report = self.rest.report(application_id)
        if report.final_status.value != "SUCCEEDED":
            raise SystemExit(f"Error: {application_id} was no success: {report.diagnostics}")
        return report

    def running(self, application_id: ApplicationId, containers: int) -> None:
        """Wait until so many containers run beside the ApplicationMaster's, and so many ``sleep`` in them."""

        def all_run() -> bool:
            return sum(name == "sleep" for _, name in self.processes(application_id)) >= containers

        self.until(f"{application_id} runs {containers} containers", all_run)

    def kill(self, application_id: ApplicationId) -> None:
        """End an application."""
        self.rest.kill(application_id, timeout_s=PATIENCE_S)
        self.settled()

    # ---- looking ----

    def took(self, application_id: ApplicationId) -> Began:
        """Record of an application's first ApplicationMaster."""
        place = self._records / f"{_first_container(application_id)}"
        # Epoch and attempts beyond the first do not occur here.
        self.until(f"{place} is there", place.exists)
        began, _, children = place.read_text().splitlines()
        registered = [
            datetime.strptime(when.replace(",", ".") + "000", "%Y-%m-%d %H:%M:%S.%f").timestamp()
            for when, name in _REGISTERED.findall(self.cluster.log("rm"))
            if name == str(application_id)
        ]
        return Began(registered[0] - float(began), _children_s(children))

    def task_cpu_s(self, application_id: ApplicationId, containers: int) -> list[float]:
        """Processor time of each task of an application that has ended, with all processes below it [s]."""
        pattern = f"container_{str(application_id).partition('_')[2]}_*"
        self.until("each task is on record", lambda: len(list(self._records.glob(pattern))) >= containers)
        return [_children_s(record.read_text().splitlines()[2]) for record in self._records.glob(pattern)]

    def processes(self, application_id: ApplicationId) -> list[tuple[int, str]]:
        """Process ids and names of all that runs in an application's containers."""
        number = str(application_id).partition("_")[2]
        return [(pid, name) for pid, name, container in self._in_containers() if f"_{number}_" in container]

    def masters(self, application_id: ApplicationId) -> int:
        """The process id of its ApplicationMaster: the largest process in its container."""
        first = _first_container(application_id)
        return max(
            (pid for pid, _, container in self._in_containers() if container == first),
            key=lambda pid: resident_mib(pid),
        )

    def _in_containers(self) -> list[tuple[int, str, str]]:
        """Process id, name and container of whatever a container of this cluster started: it began in its directory."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                name = (place / "comm").read_text().strip()
                here = os.readlink(place / "cwd")
            except OSError:
                continue
            container = _CONTAINER.search(here)
            if container is not None and here.startswith(f"{self.cluster.directory}/"):
                found.append((int(place.name), name, container[0]))
        return found


def resident_mib(pid: int) -> float:
    """VmRSS of a process [MiB]; 0: it has ended."""
    return _mib(f"/proc/{pid}/status", "VmRSS:")


def private_mib(pid: int) -> float:
    """Return what a process has in memory that no other has [MiB]; 0: it has ended."""
    return _mib(f"/proc/{pid}/smaps_rollup", "Private_")


def _mib(path: str, name: str) -> float:
    try:
        with open(path, encoding="utf-8") as file:
            return sum(int(line.split()[1]) / 1024 for line in file if line.startswith(name))
    except OSError:
        return 0.0


def cpu_s(pid: int) -> float:
    """Processor time of a process until now."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def bed(root: Path) -> Iterator[Bed]:
    """A cluster in ``root`` that ends with the block."""
    runtime, records = java(), root / "records"
    records.mkdir()
    home = root / "java"
    (home / "bin").mkdir(parents=True)
    _recorder(home / "bin" / "java", os.path.realpath(shutil.which(runtime) or runtime), records)
    python, task_python = root / "python3", root / "task-python3"
    # As on a node: not the virtual environment's, with what is installed there.
    _recorder(python, os.path.realpath(sys.executable), records)
    _recorder(task_python, os.path.realpath(sys.executable), records, skipped="am")
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    directory = root / "cluster"
    settings = {name: dict(properties) for name, properties in SETTINGS.items()}
    settings["yarn-site.xml"]["yarn.application.classpath"] = f"{directory / 'conf'},{library()}/*"
    try:
        with Hadoop.start(directory, settings=settings) as cluster:
            yield Bed(cluster, root, records, python, task_python)
    finally:
        os.environ.pop("JAVA_HOME")
        if before is not None:
            os.environ["JAVA_HOME"] = before


def _recorder(path: Path, program: str, records: Path, *, skipped: str = "task") -> None:
    path.write_text(RECORDER.format(program=program, records=records, skipped=skipped))
    path.chmod(0o755)


def _children_s(line: str) -> float:
    """Processor time in the second line of bash's `times`, that of its children [s]."""
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in _TIMES.findall(line))


def _first_container(application_id: ApplicationId) -> str:
    return f"container_{str(application_id).partition('_')[2]}_01_000001"


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
