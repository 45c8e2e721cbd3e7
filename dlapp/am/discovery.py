"""Discovery of an ApplicationMaster by Prometheus: a file of ``file_sd_configs``, while it runs.

The file has the secret path of the metrics, so only its owner and the directory's group may read it. The operator makes
the directory, with the group of Prometheus and the setgid bit, which hands that group down.

Source: prometheus.io/docs/prometheus/latest/configuration/configuration, file_sd_config.
"""

from __future__ import annotations

import contextlib
import json
import os
from urllib.parse import urlsplit

from dlapp.id_text import is_application_id
from dlapp.system import files
from dlapp.system.logs import log
from dlapp.system.processes.proc import start_time
from dlapp.values.ids import ApplicationId

_MODE = 0o640
_MAX_NAMES = 10_000
_MAX_BYTES = 16 << 10


class MetricsTarget:
    """The file of one ApplicationMaster, in the directory of all these files on this machine. A failure to write it has
    no further effect.
    """

    def __init__(self, directory: str, application_id: ApplicationId) -> None:
        self._directory, self._name = directory, f"{application_id}.json"
        self._application_id = application_id

    def write(self, url: str, path: str) -> None:
        """Write the file with the process's URL, ``http://host:port``, and the path of its metrics; remove those of
        processes of this user that were killed.
        """
        pid = os.getpid()
        # Labels that begin with __ are dropped after relabelling. The process is for the cleanup of leftover files.
        labels = {
            "__metrics_path__": path,
            "__meta_dlapp_application": str(self._application_id),
            "__meta_dlapp_host": os.uname().nodename,
            "__meta_dlapp_process": f"{pid} {start_time(pid) or 0}",
        }
        data = json.dumps([{"targets": [urlsplit(url).netloc], "labels": labels}]).encode()
        try:
            with files.closing_fd(files.open_directory(self._directory)) as fd:
                self._remove_left(fd)
                temporary = f".{self._name}.{pid}"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with files.closing_fd(os.open(temporary, flags, 0o600, dir_fd=fd)) as written:
                    os.fchmod(written, _MODE)  # whatever the umask is
                    files.write_all(written, data)
                os.rename(temporary, self._name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            log.warning(f"{self._directory}: Prometheus cannot discover this ApplicationMaster: {error}")

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._directory, self._name))

    def _remove_left(self, fd: int) -> None:
        for name in files.list_names(fd, limit=_MAX_NAMES):
            if not is_application_id(name.removesuffix(".json")):
                continue
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                data = files.read_file(name, dir_fd=fd, owners={os.geteuid()}, max_bytes=_MAX_BYTES)
                labels = json.loads(data)[0]["labels"]
                pid, started = (int(word) for word in labels["__meta_dlapp_process"].split())
                if labels["__meta_dlapp_host"] == os.uname().nodename and start_time(pid) != started:
                    os.unlink(name, dir_fd=fd)
