"""Trees to and from HDFS: dlapp's storage, natively and by WebHDFS, against Hadoop's own ``hdfs dfs`` and the Python
package hdfs.

put-1g, get-1g              one file of 1 GiB, whole processes: how many times as fast as ``hdfs dfs``, natively
put-1000, get-1000          1,000 files of 100 KiB, against ``hdfs dfs -t 8``
put-10000, get-10000        10,000 files of 4 KiB, likewise
...-webhdfs                 the same by WebHDFS
get-1g-cpu, ...-memory      what the client takes of processor time and memory, natively, against ``hdfs dfs``
nn-ops-read                 calls to the NameNode for each file of get-1000, natively
cache-hit                   the staging of 1 GiB that is on the node, against fetching it: for a container, which
                            sees it mounted; the conditions have the copy that a plain process gets

One NameNode and one DataNode, real ones, in this run; the peers take turns, and times are medians. ``hdfs dfs`` is
Hadoop's FsShell in a JVM with its defaults. All get what ``hdfs dfs`` put; the conditions have as ``own_s`` what the
native way takes for what it put itself. What was got is compared with what was put, byte by byte, once each.

Small files, here and on HDFS, are removed only when all is measured. ext4 without a journal passes over the inodes of
files that were removed in the last minutes, one by one for each new file: with 10,000 just removed, making a file takes
260 us instead of 27, and the peer that fetches first would be the fastest.
DLAPP_BENCH_DATA=small makes everything a tenth as large, to see that it works.
"""

from __future__ import annotations

import filecmp
import getpass
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import Row, median_ratio
from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.values.serialization import to_json
from tests.services.hadoop import Hadoop, NoHadoop, java, library

SCALE = 10 if os.environ.get("DLAPP_BENCH_DATA") == "small" else 1
ROUNDS = 3
MIB = 1 << 20

_OURS = """
import json, sys
from dlapp.locations import HdfsPlace
from dlapp.values.serialization import from_json
from dlapp.storage.open import open_location, plan_fetch
do, settings, here, there = sys.argv[1:5]
place = from_json(HdfsPlace, json.loads(settings))
if do == "put":
    open_location(there, place).store(here, there)
else:
    plan_fetch([there], here, hdfs=place).fetch()
"""
_PACKAGE = """
import json, sys
import hdfs
do, settings, here, there = sys.argv[1:5]
settings = json.loads(settings)
client = hdfs.InsecureClient(settings["web"][0], user=settings["login"]["user"])
path = there.removeprefix(settings["location"])
if do == "put":
    client.upload(path, here, n_threads=8)
else:
    client.download(path, here, n_threads=8)
"""
_STAGE = """
import json, sys, time
from dlapp.locations import HdfsPlace
from dlapp.values.serialization import from_json
from dlapp.storage.cache.store import InputCache
from dlapp.storage.cache.entry import CacheLocation
from dlapp.storage.cache.fetch import fetch
from dlapp.storage.open import plan_fetch
how, settings, here, there, directory = sys.argv[1:6]
place = from_json(HdfsPlace, json.loads(settings))
began = time.perf_counter()
plan = plan_fetch([there], here, hdfs=place)
cache = None if how == "fetch" else InputCache(CacheLocation(directory, 1 << 40, 86400.0))
brought = fetch(plan, cache, may_mount=how == "mount")
print(time.perf_counter() - began, brought.hits.files)
"""
_MEASURE = """
import os, sys, time
began = time.perf_counter()
child = os.fork()
if child == 0:
    os.dup2(2, 1)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Taken(NamedTuple):
    """Use of a process; ``memory`` is the most that was resident [bytes]."""

    seconds: float
    cpu_s: float
    memory: int


def rows() -> list[Row]:
    """All figures."""
    try:
        return _rows()
    except NoHadoop as missing:
        raise SystemExit(f"Error: no Hadoop to measure with: {missing}") from missing


def _rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="dlapp-bench-data-") as name, Hadoop.start(parts=("nn", "dn")) as cluster:
        bench = _Bench(Path(name), cluster)
        found = bench.transfer("1g", 1, 1024 * MIB // SCALE, ROUNDS, {"put": (1.6, 1.8), "get": (1.7, 1.5)})
        found += bench.transfer("1000", 1000 // SCALE, 100 << 10, ROUNDS, {"put": (2.4, 1.5), "get": (9.0, 4.0)})
        found += bench.transfer("10000", 10_000 // SCALE, 4 << 10, 1, {"put": (1.8, 1.1), "get": (8.0, 4.0)}, warm_up=0)
        return [*found, bench.cache_hit()]


class _Bench:
    """A place to work in, and the clients."""

    def __init__(self, here: Path, cluster: Hadoop) -> None:
        self._here, self._cluster = here, cluster
        location = f"hdfs://127.0.0.1:{cluster.ports['nn']}"
        self._home = f"{location}/bench"
        place = HdfsPlace(location, (cluster.hdfs_url,), Login(getpass.getuser()))
        self._settings = json.dumps(to_json(place))
        self._settings_native = json.dumps(to_json(place._replace(protocol=NATIVE)))
        self._java = [java(), "-Djava.net.preferIPv4Stack=true", "-cp", f"{cluster.configuration}:{library()}/*"]
        self._java.append("org.apache.hadoop.fs.FsShell")
        # Hadoop's own client is first: all get what it put.
        self._peers: dict[str, Callable[[str, Path, str], list[str]]] = {
            "java": self._fs_shell,
            "native": self._native,
            "webhdfs": self._ours,
        }
        if importlib.util.find_spec("hdfs") is not None:
            self._peers["package"] = self._package
        subprocess.run([*self._java, "-mkdir", "-p", self._home], check=True, capture_output=True)

    def transfer(
        self, name: str, files: int, size: int, rounds: int, goals: dict[str, tuple[float, float]], *, warm_up: int = 1
    ) -> list[Row]:
        """Rows for a tree of so many files of a size, put and got.

        Args:
            goals: for each of both, natively and by WebHDFS.
            warm_up: rounds before those that count: for caches, and the servers' own compilers.
        """
        source = self._here / f"source-{name}"
        source.mkdir()
        piece = os.urandom(MIB)
        for number in range(files):
            with open(source / f"{number:05d}", "wb") as file:
                for at in range(0, size, MIB):
                    file.write(piece[: min(MIB, size - at)])
        what = source if files > 1 else source / "00000"
        taken: dict[tuple[str, str], list[Taken]] = {}
        calls = 0
        for round_ in range(warm_up + rounds):
            for do in ("put", "get"):
                peers = self._peers if do == "put" else {**self._peers, "own": self._native}
                for peer, words in peers.items():
                    owner = peer if do == "put" else "native" if peer == "own" else "java"
                    there = f"{self._home}/{owner}-{what.name}{'' if files == 1 else f'-{round_}'}"
                    got = self._here / "got" / name / str(round_) / peer
                    if do == "get":
                        got.mkdir(parents=True)
                    elif files == 1:
                        self._remove(there)
                    asked = self._namenode_calls()
                    one = _run(words(do, what if do == "put" else got, there))
                    if (do, peer) == ("get", "native"):
                        calls = self._namenode_calls() - asked
                    if round_ >= warm_up:
                        taken.setdefault((do, peer), []).append(one)
                    if do == "get" and round_ == 0:
                        _check_same(what, got / there.rpartition("/")[2])
                    if do == "get" and files == 1:
                        shutil.rmtree(got)
        if files == 1:
            shutil.rmtree(source)
        found = self._rows_of(name, files, size, rounds, goals, taken)
        if name == "1000":
            conditions = {"files": float(files), "calls": float(calls)}
            found.append(Row(name="nn-ops-read", ratio=calls / files, goal=0.1, better="lower", conditions=conditions))
        return found

    def _rows_of(
        self,
        name: str,
        files: int,
        size: int,
        rounds: int,
        goals: dict[str, tuple[float, float]],
        taken: dict[tuple[str, str], list[Taken]],
    ) -> list[Row]:
        found = []
        for do, of_ways in goals.items():
            seconds = {peer: [one.seconds for one in taken[how, peer]] for how, peer in taken if how == do}
            conditions: dict[str, float] = {"files": files, "bytes_each": size, "rounds": rounds}
            for peer, times in seconds.items():
                conditions[f"{peer}_s"] = statistics.median(times)
            for (way, end), goal in zip((("native", ""), ("webhdfs", "-webhdfs")), of_ways, strict=True):
                ratio = median_ratio(seconds["java"], seconds[way])
                row = f"{do}-{name}{end}"
                found.append(Row(name=row, ratio=ratio, goal=goal, better="higher", conditions=conditions))
        if files == 1:
            for do, limits in (("get", (0.7, 0.2)), ("put", (None, 0.3))):
                ours, theirs = taken[do, "native"], taken[do, "java"]
                if limits[0] is not None:
                    cpu = [one.cpu_s for one in ours], [one.cpu_s for one in theirs]
                    found.append(_less(f"{do}-{name}-cpu", limits[0], cpu, "cpu_s", 1))
                memory = [float(one.memory) for one in ours], [float(one.memory) for one in theirs]
                found.append(_less(f"{do}-{name}-memory", limits[1], memory, "mib", MIB))
        return found

    def cache_hit(self) -> Row:
        """Compare what is there, mounted or copied, with what is fetched."""
        size = 1024 * MIB // SCALE
        source = self._here / "train"
        with open(source, "wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
        there, cache = f"{self._home}/train", self._here / "cache"
        _run(self._ours("put", source, there))
        seconds: dict[str, list[float]] = {"fetch": [], "mount": [], "copy": []}
        for round_ in range(ROUNDS + 1):
            for how in seconds:
                got = self._here / "staged"
                words = [sys.executable, "-c", _STAGE, how, self._settings, str(got), there, str(cache)]
                done = subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                took, hits = done.stdout.split()
                if round_:
                    assert int(hits) == (how != "fetch")
                    seconds[how].append(float(took))
                shutil.rmtree(got)
        medians = {f"{how}_s": statistics.median(times) for how, times in seconds.items()}
        ratio = median_ratio(seconds["mount"], seconds["fetch"])
        return Row(name="cache-hit", ratio=ratio, goal=0.05, better="lower", conditions={"bytes": size, **medians})

    # ---- clients ----

    def _ours(self, do: str, here: Path, there: str) -> list[str]:
        return [sys.executable, "-c", _OURS, do, self._settings, str(here), there]

    def _native(self, do: str, here: Path, there: str) -> list[str]:
        return [sys.executable, "-c", _OURS, do, self._settings_native, str(here), there]

    def _package(self, do: str, here: Path, there: str) -> list[str]:
        return [sys.executable, "-c", _PACKAGE, do, self._settings, str(here), there]

    def _fs_shell(self, do: str, here: Path, there: str) -> list[str]:
        threads = ["-t", "8"]
        return [*self._java, f"-{do}", *threads, *((str(here), there) if do == "put" else (there, str(here)))]

    def _namenode_calls(self) -> int:
        """Return how often clients called the NameNode, as its audit log has it."""
        return self._cluster.log("nn").count(" FSNamesystem.audit: ")

    def _remove(self, there: str) -> None:
        url = f"{self._cluster.hdfs_url}/webhdfs/v1/{there.split('/', 3)[3]}"
        self._cluster.get(f"{url}?op=DELETE&recursive=true&user.name={getpass.getuser()}", method="DELETE")


def _less(name: str, goal: float, taken: tuple[list[float], list[float]], unit: str, divisor: int) -> Row:
    ours, theirs = (statistics.median(one) / divisor for one in taken)
    conditions = {f"ours_{unit}": ours, f"java_{unit}": theirs}
    return Row(name=name, ratio=ours / theirs, goal=goal, better="lower", conditions=conditions)


def _run(words: list[str]) -> Taken:
    """Run a process to its end.

    A process inherits what its parent's memory was when it was forked: so a small one is between.

    Raises:
        SystemExit: it failed.
    """
    with tempfile.TemporaryFile() as said:
        measured = [sys.executable, "-I", "-S", "-c", _MEASURE, *words]
        done = subprocess.run(measured, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
        if done.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"Error: {' '.join(words[-4:])} ended with {done.returncode}\n{text}")
    seconds, cpu_s, memory_kib = done.stdout.split()
    return Taken(float(seconds), float(cpu_s), int(memory_kib) << 10)


def _check_same(source: Path, got: Path) -> None:
    pairs = [(source, got)]
    if source.is_dir():
        names = os.listdir(source)
        if sorted(names) != sorted(os.listdir(got)):
            raise SystemExit(f"Error: {got} has other files than {source}")
        pairs = [(source / name, got / name) for name in names]
    for one, other in pairs:
        if not filecmp.cmp(one, other, shallow=False):
            raise SystemExit(f"Error: {other} is not {one}")


if __name__ == "__main__":
    raise SystemExit(f"run it as: make bench NAME={Path(__file__).stem}")
