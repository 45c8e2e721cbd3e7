"""Records of a feed (``mode=feed``), against fetching all of the input first, and against WebDataset.

feed-tar           10,000 samples of 100 KiB in 10 tar files: their rate, of that at which the files are fetched
feed-files         10,000 files of 100 KiB: likewise
feed-webdataset    the samples again: how many times as fast as WebDataset with its own ``pipe:hdfs dfs -cat``

One NameNode and one DataNode, real ones, in this run; the peers take turns, and times are medians, from the start of
all processes to the last record. What is fetched is not read. All is what ``hdfs dfs -put`` wrote, CRC32C verified.
DLAPP_BENCH_DATA=small makes everything a tenth as large, to see that it works.
"""

from __future__ import annotations

import getpass
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import Row, alternately, median_ratio
from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.task.feed.feeds import TaskFeed
from dlapp.task.feed.process import FeedSettings
from dlapp.values.serialization import to_json
from dlapp.values.spec import FeedFormat, FeedSpec, InputSpec
from tests.services.hadoop import Hadoop, NoHadoop, java, library

SCALE = 10 if os.environ.get("DLAPP_BENCH_DATA") == "small" else 1
RECORDS, RECORD_BYTES, SHARDS, ROUNDS = 10_000 // SCALE, 100 << 10, 10, 3

_GET = """
import json, sys
from dlapp.locations import HdfsPlace
from dlapp.values.serialization import from_json
from dlapp.storage.open import plan_fetch
settings, here, there = sys.argv[1:4]
plan_fetch([there], here, hdfs=from_json(HdfsPlace, json.loads(settings))).fetch()
"""
_READ = """
import sys
from dlapp.feed import Feed
count = size = 0
for record in Feed(sys.argv[1], start={}):
    count += 1
    size += len(record["bin"] if isinstance(record, dict) else record.read())
print(count, size)
"""
_WEBDATASET = """
import sys
import webdataset
count = size = 0
for record in webdataset.WebDataset(sys.argv[1:], shardshuffle=False):
    count += 1
    size += len(record["bin"])
print(count, size)
"""


def rows() -> list[Row]:
    """All figures."""
    try:
        with tempfile.TemporaryDirectory(prefix="dlapp-bench-feed-") as name, Hadoop.start(parts=("nn", "dn")) as one:
            return _Bench(Path(name), one).rows()
    except NoHadoop as missing:
        raise SystemExit(f"Error: no Hadoop to measure with: {missing}") from missing


class _Bench:
    def __init__(self, here: Path, cluster: Hadoop) -> None:
        self._here = here
        location = f"hdfs://127.0.0.1:{cluster.ports['nn']}"
        self._home = f"{location}/bench"
        self._place = HdfsPlace(location, (cluster.hdfs_url,), Login(getpass.getuser()), protocol=NATIVE)
        self._java = [java(), "-Djava.net.preferIPv4Stack=true", "-cp", f"{cluster.configuration}:{library()}/*"]
        self._java.append("org.apache.hadoop.fs.FsShell")

    def rows(self) -> list[Row]:
        self._put()
        peers: dict[str, Callable[[], float]] = {
            "get-tar": lambda: self._get("tar"),
            "feed-tar": lambda: self._feed("tar", FeedFormat.TAR),
            "get-files": lambda: self._get("files"),
            "feed-files": lambda: self._feed("files", FeedFormat.FILES),
        }
        if importlib.util.find_spec("webdataset") is not None:
            peers["webdataset"] = self._webdataset
        taken = dict(zip(peers, alternately(list(peers.values()), ROUNDS), strict=True))
        conditions: dict[str, float] = {"records": RECORDS, "bytes_each": RECORD_BYTES, "rounds": ROUNDS}
        conditions |= {f"{name}_s": statistics.median(times) for name, times in taken.items()}
        found = [
            Row(
                name=f"feed-{kind}",
                ratio=median_ratio(taken[f"get-{kind}"], taken[f"feed-{kind}"]),
                goal=0.9,
                better="higher",
                conditions=conditions,
            )
            for kind in ("tar", "files")
        ]
        if "webdataset" in taken:
            ratio = median_ratio(taken["webdataset"], taken["feed-tar"])
            found.append(Row(name="feed-webdataset", ratio=ratio, goal=3.0, better="higher", conditions=conditions))
        return found

    def _put(self) -> None:
        """Put the samples, as tar files and as files of their own."""
        piece = os.urandom(RECORD_BYTES)
        for kind in ("tar", "files"):
            (self._here / kind).mkdir()
        for shard in range(SHARDS):
            with tarfile.open(self._here / "tar" / f"{shard:05d}.tar", "w") as tar:
                for number in range(shard, RECORDS, SHARDS):
                    info = tarfile.TarInfo(f"{number:07d}.bin")
                    info.size = RECORD_BYTES
                    tar.addfile(info, io.BytesIO(piece))
                    (self._here / "files" / info.name).write_bytes(piece)
        subprocess.run([*self._java, "-mkdir", "-p", self._home], check=True, capture_output=True)
        for kind in ("tar", "files"):
            put = [*self._java, "-put", "-t", "8", str(self._here / kind), self._home]
            subprocess.run(put, check=True, capture_output=True)
            shutil.rmtree(self._here / kind)

    def _get(self, kind: str) -> float:
        got = self._here / "got"
        settings = json.dumps(to_json(self._place))
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", _GET, settings, str(got), f"{self._home}/{kind}"], check=True)
        seconds = time.perf_counter() - began
        shutil.rmtree(got)
        return seconds

    def _feed(self, kind: str, form: FeedFormat) -> float:
        with tempfile.TemporaryDirectory(dir=self._here) as home:
            os.mkdir(f"{home}/run", 0o700)
            os.mkdir(f"{home}/feed", 0o700)
            section = InputSpec(sources=(f"{self._home}/{kind}",), input_path="in", feed=FeedSpec(format=form))
            settings = FeedSettings(
                section=section,
                hdfs=self._place,
                index=0,
                size=1,
                directory=f"{home}/feed",
                patience_s=0.0,
                has_fifos=False,
                in_memory=True,
            )
            began = time.perf_counter()
            feed = TaskFeed(section, settings, home, print)
            try:
                _count([sys.executable, "-c", _READ, f"{home}/run/{feed.socket_name}"])
                return time.perf_counter() - began
            finally:
                feed.close()

    def _webdataset(self) -> float:
        cat = " ".join([*self._java, "-cat"])
        shards = [f"pipe:{cat} {self._home}/tar/{shard:05d}.tar" for shard in range(SHARDS)]
        began = time.perf_counter()
        _count([sys.executable, "-c", _WEBDATASET, *shards])
        return time.perf_counter() - began


def _count(words: list[str]) -> None:
    """Run a reader to its end. Raises SystemExit: it has not read all records."""
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode or done.stdout.split()[-2:] != [str(RECORDS), str(RECORDS * RECORD_BYTES)]:
        raise SystemExit(f"Error: {words[-1]}: {done.stdout}{done.stderr[-2000:]}")


if __name__ == "__main__":
    raise SystemExit(f"run it as: make bench NAME={Path(__file__).stem}")
