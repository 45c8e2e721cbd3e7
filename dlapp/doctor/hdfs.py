"""Requirements of input and output, for dlapp-doctor: HDFS stores a file, and renames it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.doctor.findings import REQUEST_TIMEOUT_S, Check, CheckContext, Finding, clock_finding, failed, passed, warned
from dlapp.errors import Denied, DlappError, NotFound, Unreachable, UsageError
from dlapp.locations import NATIVE, WEBHDFS

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.locations import HdfsPlace
    from dlapp.storage.hdfs.native import NativeHdfs
    from dlapp.storage.hdfs.staging import HdfsStagingFiles


_SETTINGS = "dfs.namenode.rpc-address, dfs.namenode.http-address or dfs.http.policy"
_AT_ONCE = 16
"""Number of nameservices that are queried at a time."""


def checks(context: CheckContext) -> list[Check]:
    """Check the cluster's default file system, if there is one, and the other nameservices of its configuration."""
    if context.hdfs is None:
        return []
    found = [
        Check("hdfs", functools.partial(_hdfs, context.hdfs, on_node=context.on_node)),
        Check("hdfs.nameservices", functools.partial(_others, context)),
    ]
    if context.config.yarn.python_archive and not context.on_node:
        found.append(Check("yarn.python_archive", functools.partial(_python_archive, context.config, context.hdfs)))
    return found


def _others(context: CheckContext) -> Iterator[Finding]:
    """Yield whether each nameservice answers; all are queried in parallel, because a dead one takes its whole time
    limit.
    """
    from concurrent.futures import ThreadPoolExecutor

    place = context.hdfs
    if place is None or not place.others:
        return
    used = {place.of(one).location for one in _named(context, place)}
    with ThreadPoolExecutor(_AT_ONCE, "doctor-hdfs") as pool:
        yield from pool.map(lambda one: _answers(place.of(one.location), one.location in used), place.others)


def _named(context: CheckContext, place: HdfsPlace) -> Iterator[str]:
    """Yield the locations that the configuration itself names: targets of mount tables, and the archive of Python."""
    for table in place.mounts:
        for target in table.links.values():
            with contextlib.suppress(UsageError):
                yield place.resolve(target)
    if context.config.yarn.python_archive:
        yield place.resolve(context.config.yarn.python_archive)


def _answers(place: HdfsPlace, used: bool) -> Finding:
    from dlapp.storage.hdfs.file_system import open_hdfs

    names = (one for one in place.names if ":" not in one)
    subject = f"hdfs.{next(names, place.location.removeprefix('hdfs://'))}"
    # Two NameNodes that accept connections and do not answer are tried twice each in that time.
    with contextlib.closing(
        open_hdfs(place, patience_s=REQUEST_TIMEOUT_S, timeout_s=(REQUEST_TIMEOUT_S / 4, REQUEST_TIMEOUT_S / 4))
    ) as web:
        try:
            with contextlib.suppress(Denied):
                web.status("/")
        except DlappError as error:
            repair = f"start it, or correct {_SETTINGS}"
            if used:
                return failed(subject, str(error), repair)
            return warned(subject, str(error), f"{repair}; applications that name it cannot be submitted")
    return passed(subject, f"{place.location} answers")


def _python_archive(config: Config, place: HdfsPlace) -> Iterator[Finding]:
    """Yield whether YARN can give the configured Python to containers; each submission checks the same."""
    from dlapp.cluster.yarn.client.interpreter import archive_resource, check_archive, interpreter
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    archive = config.yarn.python_archive
    assert archive is not None
    check_archive(archive)
    path, location = interpreter(config.yarn.python, archive), place.resolve(archive)
    with contextlib.closing(HdfsStagingFiles(place, patience_s=REQUEST_TIMEOUT_S)) as files:
        found = archive_resource(files, location, public=False)
    yield passed("yarn.python_archive", f"{location}, {found.size} bytes; {path} runs dlapp")


def _hdfs(place: HdfsPlace, *, on_node: bool) -> Iterator[Finding]:
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    with contextlib.closing(HdfsStagingFiles(place, patience_s=REQUEST_TIMEOUT_S)) as files:
        yield from _writes(files, place)
    yield _protocol(place, on_node=on_node)


def _protocol(place: HdfsPlace, *, on_node: bool = False) -> Finding:
    """Return the protocol for file content, and the reason: ``storage.hdfs`` and what works here."""
    from dlapp.hadoop.hdfs.checksums import has_crc32c
    from dlapp.storage.hdfs.native import NativeHdfs

    subject, setting = "hdfs.protocol", f"storage.hdfs={place.protocol}"
    if place.protocol == WEBHDFS:
        return passed(subject, f"{setting}: files go by WebHDFS")
    with contextlib.closing(NativeHdfs(place, patience_s=REQUEST_TIMEOUT_S)) as native:
        try:
            why = native.webhdfs_reason()
            if not why:
                _transfer_natively(native, place)
                why = native.webhdfs_reason()
        except DlappError as error:
            if place.protocol == NATIVE:
                return failed(subject, f"{setting}: {error}", "set storage.hdfs to auto or webhdfs")
            why = str(error)
    if why and place.protocol == NATIVE:
        return warned(subject, f"{setting}: {why}", "set storage.hdfs to auto or webhdfs")
    if why:
        return passed(subject, f"{setting}: files go by WebHDFS: {why}")
    if not has_crc32c():
        repair = "pip install google-crc32c, in a form with its C library; it goes to the nodes with dlapp"
        if on_node:
            # What came with dlapp, if anything, is for the processor and glibc of the launcher's machine.
            repair = f"install google-crc32c, in a form with its C library, for {sys.executable} on the nodes"
        return warned(
            subject,
            f"{setting}: no library verifies CRC32C here ({os.uname().machine}), so most files are read by WebHDFS",
            repair,
        )
    return passed(subject, f"{setting}: files go by HDFS's own protocols")


def _transfer_natively(native: NativeHdfs, place: HdfsPlace) -> None:
    """Write and read a file: only this shows whether the DataNodes' data ports are open to this machine."""
    path, text = f"{place.path(place.home)}/.dlapp-doctor-{os.urandom(4).hex()}", b"a file of dlapp-doctor\n"
    # Whether a file can be written at all is a separate finding.
    with contextlib.suppress(DlappError):
        try:
            native.write(path, text, 0o600, parents=False)
            native.read_part(path, 0, len(text))
        finally:
            native.delete(path)


def _writes(files: HdfsStagingFiles, place: HdfsPlace) -> Iterator[Finding]:
    from dlapp.cluster.yarn.client.preflight import check_closed, check_home
    from dlapp.cluster.yarn.staging import StagingPaths

    home, user = files.home, place.login.user
    try:
        files.status(home)
    except Unreachable as error:
        yield failed("hdfs", str(error), f"start HDFS, or correct {_SETTINGS}")
        return
    yield passed("hdfs", f"{place.location} answers")
    path = place.path(home)
    own = f"as the superuser of HDFS: hdfs dfs -mkdir -p {path} && hdfs dfs -chown {user} {path}"
    try:
        check_home(files, user)
        found = files.status(home)
    except (NotFound, Denied) as error:
        yield failed("hdfs.home", str(error), "" if isinstance(error, NotFound) else own)
        return
    except UsageError as error:
        yield failed(
            "hdfs.home", str(error), "let the operator of the router mount home directories on one nameservice"
        )
        return
    except DlappError as error:
        yield failed("hdfs.write", str(error), "are NameNode and DataNodes up, and reachable from here?")
        return
    try:
        check_closed(home, found)
    except Denied as error:
        yield failed("hdfs.home", str(error))
        return
    if found is not None and found.owner != user:
        yield warned("hdfs.home", f"{home} is {found.owner}'s, who can replace what you keep there", own)
    else:
        yield passed("hdfs.home", f"{home}, mode {found.mode:o}" if found is not None else home)
    name, text = f"{StagingPaths(home).directory}/.dlapp-doctor-{os.urandom(4).hex()}", b"a file of dlapp-doctor\n"
    try:
        began = time.time()
        files.write(name, text, 0o600)
        ended = time.time()
        there = files.status(name)
        good = files.read(name, max_bytes=len(text)) == text and not files.write(name, b"", 0o600, once=True)
    except Denied as error:
        yield failed("hdfs.write", str(error), f"let {user} write to {home}")
        return
    except DlappError as error:
        yield failed("hdfs.write", str(error), "are NameNode and DataNodes up, and reachable from here?")
        return
    finally:
        with contextlib.suppress(DlappError):  # the problem is already reported
            files.remove(name)
    if good and there is not None:
        yield passed("hdfs.write", f"a file is written, renamed, read and removed in {ended - began:.2f} s")
        yield clock_finding("clock.hdfs", "the NameNode's", there.modified_ms / 1000, began, ended)
    else:
        yield failed("hdfs.write", f"{name} was not what was written", "report this with the version of Hadoop")
