"""Aggregated logs of an ended application on HDFS, for clusters without a log server.

The directory of an application has one file for each of its nodes (`dlapp.cluster.yarn.logs.tfile`):

    <remote-app-log-dir>/<user>/bucket-<suffix>-tfile/<number modulo 10000>/<application id>/<host>_<port>   Hadoop 3.3
    <remote-app-log-dir>/<user>/<suffix>/<application id>/<host>_<port>                                      before

Source: LogAggregationUtils, LogAggregationFileController; files of 3.4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dlapp.cluster.yarn.logs import tfile
from dlapp.cluster.yarn.staging import StagingFiles
from dlapp.errors import Denied, DlappError
from dlapp.hadoop.configuration import HadoopConfiguration
from dlapp.locations import HdfsPlace
from dlapp.values.ids import ApplicationId

_ROOT = ("yarn.nodemanager.remote-app-log-dir", "/tmp/logs")
_SUFFIX = ("yarn.nodemanager.remote-app-log-dir-suffix", "logs")
_UNFINISHED = ".tmp"


class AggregatedLogs(NamedTuple):
    """Aggregated logs of one application.

    Args:
        hdfs: the HDFS of the cluster.
        user: the owner of the application.
    """

    files: StagingFiles
    site: HadoopConfiguration
    hdfs: HdfsPlace
    user: str
    application_id: ApplicationId

    def log(self, container: str, name: str, host: str = "") -> Iterator[bytes] | None:
        """Return one log file of one container; None: it does not exist, or not yet.

        Args:
            host: its node, if known; the file of this node is read first.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """
        for directory in (self._bucket("tfile"), f"{self._of_user()}/{self._suffix()}/{self.application_id}"):
            names = [one for one in self.files.names(directory) if not one.endswith(_UNFINISHED)]
            for one in sorted(names, key=lambda name: not (host and name.startswith(f"{host}_"))):
                if (found := self._in_file(f"{directory}/{one}", container, name)) is not None:
                    return found
        if self.files.names(self._bucket("ifile")):
            raise DlappError(
                f"{self._bucket('ifile')}: logs are collected in the indexed format, which only Hadoop's log server "
                "reads: set yarn.log.server.url"
            )
        return None

    def _bucket(self, kind: str) -> str:
        number = self.application_id.number % 10_000
        return f"{self._of_user()}/bucket-{self._suffix()}-{kind}/{number:04d}/{self.application_id}"

    def _of_user(self) -> str:
        path = self.site.get(_ROOT[0]) or _ROOT[1]
        if not path.startswith(("/", "hdfs:/", "viewfs:/")):
            raise DlappError(f"{_ROOT[0]} is {path}, where only Hadoop's log server reads: set yarn.log.server.url")
        return f"{self.hdfs.resolve(path).rstrip('/')}/{self.user}"

    def _suffix(self) -> str:
        return self.site.get(_SUFFIX[0]) or _SUFFIX[1]

    def _in_file(self, location: str, container: str, name: str) -> Iterator[bytes] | None:
        there = self.files.status(location)
        if there is None:
            return None

        def read_at(offset: int, count: int) -> bytes:
            return self.files.read_part(location, offset, min(count, there.size_bytes - offset))

        try:
            return tfile.log_of(read_at, there.size_bytes, container, name)
        except Denied:
            raise
        except tfile.NotReadable as error:
            raise DlappError(f"{location}: {error}") from error
