"""Process that removes an ended application's Docker containers: ``cleanup --application ID --host unix://...``.

The embedded engine starts it after the end of an application that used an image. It waits while dockerd is restarted,
and tries again what dockerd refuses: a dockerd that is killed during a removal leaves a container in state dead. The
next Docker task on this host would do the same, so it may fail.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

DEADLINE_S = 60
_AGAIN_S = 1.0
_CALL_TIMEOUT_S = 20.0


def main(argv: Sequence[str]) -> int:
    """Remove the containers; print what was done, or why not, for the runner's log."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE_S)
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    application, host = options["--application"], options["--host"]
    from dlapp.net.dockerd import Dockerd, DockerNotLocal, DockerRefused, DockerSilent
    from dlapp.runtime.docker.labels import remove_leftover_containers

    until = time.monotonic() + DEADLINE_S - _CALL_TIMEOUT_S
    noted: set[str] = set()

    def note(line: str) -> None:
        if line not in noted:
            noted.add(line)
            print(f"{application}: {line}", flush=True)

    while True:
        problem, is_final = "Docker refuses to remove a container", False
        try:
            if remove_leftover_containers(Dockerd(host, _CALL_TIMEOUT_S), note, application=application):
                return 0
        except DockerNotLocal as error:
            problem, is_final = str(error), True
        except (DockerRefused, DockerSilent) as error:
            problem = f"Docker at {host} did not list its containers: {error}"
            is_final = isinstance(error, DockerSilent) and error.denied
        if is_final or time.monotonic() >= until:
            note(problem)
            return 1
        time.sleep(_AGAIN_S)
