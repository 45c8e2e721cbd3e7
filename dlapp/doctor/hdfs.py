"""Requirements of input and output, for dlapp-doctor: that HDFS takes a file, and moves it."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.doctor.findings import ASK_S, Check, CheckContext, Finding, clock_finding, failed, passed, warned
from dlapp.errors import Denied, DlappError, Unreachable

if TYPE_CHECKING:
    from dlapp.locations import HdfsPlace
    from dlapp.storage.hdfs_staging import HdfsStagingFiles


def checks(ground: CheckContext) -> list[Check]:
    """The default file system of the cluster, where there is one."""
    if ground.hdfs is None:
        return []
    return [Check("hdfs", functools.partial(_hdfs, ground.hdfs))]


def _hdfs(place: HdfsPlace) -> Iterator[Finding]:
    from dlapp.storage.hdfs_staging import HdfsStagingFiles

    with contextlib.closing(HdfsStagingFiles(place, patience_s=ASK_S)) as files:
        yield from _writes(files, place)


def _writes(files: HdfsStagingFiles, place: HdfsPlace) -> Iterator[Finding]:
    home, user = files.home, place.login.user
    try:
        found = files.look(home)
    except Unreachable as error:
        yield failed("hdfs", str(error), "start HDFS, or correct dfs.namenode.http-address or dfs.http.policy")
        return
    yield passed("hdfs", f"{place.location} answers by WebHDFS at {', '.join(place.web)}")
    path = place.path(home)
    if found is None:
        yield failed(
            "hdfs.home",
            f"{home} is not there",
            f"as the superuser of HDFS: hdfs dfs -mkdir -p {path} && hdfs dfs -chown {user} {path}",
        )
        return
    if found.owner != user:
        yield warned(
            "hdfs.home", f"{home} is {found.owner}'s", f"as the superuser of HDFS: hdfs dfs -chown {user} {path}"
        )
    else:
        yield passed("hdfs.home", f"{home}, mode {found.mode:o}")
    name, text = f"{home}/.dlapp-doctor-{os.urandom(4).hex()}", b"a file of dlapp-doctor\n"
    try:
        began = time.time()
        files.write(name, text, 0o600)
        ended = time.time()
        there = files.look(name)
        good = files.read(name, max_bytes=len(text)) == text and not files.write(name, b"", 0o600, once=True)
    except Denied as error:
        yield failed("hdfs.write", str(error), f"let {user} write to {home}")
        return
    except DlappError as error:
        yield failed("hdfs.write", str(error), "are NameNode and DataNodes up, and reachable from here?")
        return
    finally:
        with contextlib.suppress(DlappError):  # what is wrong is said already
            files.remove(name)
    if good and there is not None:
        yield passed("hdfs.write", f"a file is written, renamed, read and removed in {ended - began:.2f} s")
        yield clock_finding("clock.hdfs", "the NameNode's", there.modified_ms / 1000, began, ended)
    else:
        yield failed("hdfs.write", f"{name} was not what was written", "report this with the version of Hadoop")
