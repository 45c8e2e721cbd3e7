"""A real HDFS, one NameNode and three DataNodes, for the tests that need it: started once, for the first that asks."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from dlapp.login import Login
from dlapp.storage import HdfsPlace
from dlapp.storage.hdfs import HdfsFiles
from tests.services.hadoop import DATANODES, JAVA_OPTIONS, Hadoop, NoHadoop, java, library

# A cluster of its own, and a minute: only where every fault is injected.
collect_ignore = [] if os.environ.get("DLAPP_FAULTS") == "full" else ["test_hdfs_two_namenodes.py"]

# Files have one replica where a test asks for no more. A DataNode that is silent is avoided after 3 s, dead after 12 s.
QUICK_TO_NOTICE = {
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "1000",
    "dfs.namenode.stale.datanode.interval": "3000",
    "dfs.namenode.avoid.read.stale.datanode": "true",
    "dfs.namenode.avoid.write.stale.datanode": "true",
    "dfs.namenode.redundancy.interval.seconds": "1s",
    "dfs.client.retry.window.base": "100",
}


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "hadoop: needs Java and an HDFS, which the tests start themselves")


@pytest.fixture(scope="session")
def hadoop() -> Iterator[Hadoop]:
    """HDFS alone; a test that harms a part brings it back."""
    try:
        with Hadoop.start(parts=("nn", *DATANODES), settings={"hdfs-site.xml": QUICK_TO_NOTICE}) as cluster:
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def place(hadoop: Hadoop) -> HdfsPlace:
    """The HDFS, as the user of the tests, who is its superuser."""
    return HdfsPlace(f"hdfs://127.0.0.1:{hadoop.ports['nn']}", (hadoop.hdfs_url,), Login(getpass.getuser()))


@pytest.fixture
def files(place: HdfsPlace) -> HdfsFiles:
    return HdfsFiles(place)


@pytest.fixture
def base(files: HdfsFiles) -> Iterator[str]:
    """A directory on HDFS of this test alone, as a location."""
    there = f"{files.place.location}/tests/{os.urandom(6).hex()}"
    files.make_directory(there)
    yield there
    files.remove(there)


@pytest.fixture
def admin(hadoop: Hadoop) -> Callable[..., None]:
    """Hadoop's own ``hdfs dfsadmin``."""

    def run(*arguments: str) -> None:
        class_path = f"{hadoop.configuration}:{library()}/*"
        command = [java(), *JAVA_OPTIONS, "-cp", class_path, "org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)

    return run
