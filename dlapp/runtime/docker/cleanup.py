"""Process that removes an ended application's Docker containers: ``cleanup --application ID --host unix://...``.

The embedded engine starts it after the end of an application that used an image. The next Docker task on this host
would do the same, so it may fail, and it exits if dockerd does not answer.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

DEADLINE_S = 60
_CALL_TIMEOUT_S = 20.0


def main(argv: Sequence[str]) -> int:
    """Remove the containers; print what was done, or why not, for the runner's log."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE_S)
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    application, host = options["--application"], options["--host"]
    from dlapp.errors import DlappError
    from dlapp.net.dockerd import Dockerd, DockerRefused, DockerSilent
    from dlapp.runtime.docker.labels import remove_leftover_containers

    try:
        docker = Dockerd(host, _CALL_TIMEOUT_S)
        remove_leftover_containers(
            docker, lambda line: print(f"{application}: {line}", flush=True), application=application
        )
    except (DockerRefused, DockerSilent, DlappError) as error:
        print(f"{application}: Docker at {host} did not list its containers: {error}", flush=True)
        return 1
    return 0
