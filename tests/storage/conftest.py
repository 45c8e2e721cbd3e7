"""A real HDFS, one NameNode and three DataNodes, for the tests that need it."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from tests.services.hadoop import JAVA_OPTIONS, Hadoop, java, library
from tests.tiers import FULL

# A cluster of its own, and a minute: only where every fault is injected.
collect_ignore = [] if FULL else ["test_hdfs_two_namenodes.py"]

# Read at import: no test sees the caller's DLAPP_*.
WAY = os.environ.get("DLAPP_TEST_HDFS", NATIVE)


@pytest.fixture(scope="session")
def hadoop(hadoop: Hadoop) -> Hadoop:
    """The cluster of all tests, with two more DataNodes; a test that harms a part brings it back."""
    hadoop.start_datanodes()
    return hadoop


@pytest.fixture
def place(hadoop: Hadoop) -> HdfsPlace:
    """The HDFS, as the user of the tests, who is its superuser.

    It is used natively, and never in another way unseen; ``DLAPP_TEST_HDFS=webhdfs`` lets all of these tests go by
    WebHDFS, and ``auto`` by the way that dlapp finds.
    """
    location = f"hdfs://127.0.0.1:{hadoop.ports['nn']}"
    return HdfsPlace(location, (hadoop.hdfs_url,), Login(getpass.getuser()), protocol=WAY)


@pytest.fixture
def files(place: HdfsPlace) -> HdfsFiles:
    return HdfsFiles(place)


@pytest.fixture
def base(files: HdfsFiles) -> Iterator[str]:
    """A directory on HDFS of this test alone, as a location."""
    location = f"{files.place.location}/tests/{os.urandom(6).hex()}"
    files.make_directory(location)
    yield location
    files.remove(location)


@pytest.fixture
def admin(hadoop: Hadoop) -> Callable[..., None]:
    """Hadoop's own ``hdfs dfsadmin``."""

    def run(*arguments: str) -> None:
        class_path = f"{hadoop.configuration}:{library()}/*"
        command = [java(), *JAVA_OPTIONS, "-cp", class_path, "org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)

    return run
