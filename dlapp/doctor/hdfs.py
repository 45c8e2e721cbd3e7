"""Requirements of input and output, for dlapp-doctor: that HDFS takes a file, and moves it."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.doctor.findings import ASK_S, Check, CheckContext, Finding, failed, passed, warned
from dlapp.errors import Denied, DlappError, Unreachable

if TYPE_CHECKING:
    from dlapp.locations import HdfsPlace
    from dlapp.storage.hdfs_staging import HdfsStagingFiles

CLOCKS_APART_S = 30.0
"""Times of two machines are compared to the minute at the most; Kerberos gives up at five minutes."""


def checks(ground: CheckContext) -> list[Check]:
    """The default file system of the cluster, where there is one."""
    if ground.hdfs is None:
        return []
    return [Check("hdfs", functools.partial(_hdfs, ground.hdfs))]


def _hdfs(place: HdfsPlace) -> Iterator[Finding]:
    from dlapp.storage.hdfs_staging import HdfsStagingFiles

    files = HdfsStagingFiles(place, patience_s=ASK_S)
    try:
        yield from _writes(files, place)
    finally:
        files.close()


def _writes(files: HdfsStagingFiles, place: HdfsPlace) -> Iterator[Finding]:
    home, user = files.home, place.login.user
    try:
        found = files.look(home)
    except Unreachable as error:
        yield failed("hdfs", str(error), "start HDFS, or correct dfs.namenode.http-address or dfs.http.policy")
        return
    yield passed("hdfs", f"{place.location} answers by WebHDFS at {', '.join(place.web)}")
    if found is None:
        yield failed(
            "hdfs.home",
            f"{home} is not there",
            f"as the superuser of HDFS: hdfs dfs -mkdir -p /user/{user} && hdfs dfs -chown {user} /user/{user}",
        )
        return
    if found.owner != user:
        yield warned(
            "hdfs.home", f"{home} is {found.owner}'s", f"as the superuser of HDFS: hdfs dfs -chown {user} /user/{user}"
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
        yield _clock(there.modified_ms / 1000, began, ended)
    else:
        yield failed("hdfs.write", f"{name} was not what was written", "report this with the version of Hadoop")


def _clock(theirs_s: float, began_s: float, ended_s: float) -> Finding:
    """The NameNode's clock: it stamped a file between two moments of ours."""
    apart = max(began_s - theirs_s, theirs_s - ended_s, 0.0)
    if apart > CLOCKS_APART_S:
        return warned("clock.hdfs", f"the NameNode's clock is {apart:.0f} s from this machine's", "run NTP on both")
    return passed("clock.hdfs", f"the NameNode's clock is within {apart + ended_s - began_s:.1f} s of this machine's")
