"""The labels of containers: whose each is, and where its task's log lies, which the task locks for as long as it lives.

By them the containers of dead tasks are found and removed, also those that were never started.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from dlapp.net.dockerd import Dockerd, DockerRefused
from dlapp.runtime.payload import PayloadDevice
from dlapp.system import locks
from dlapp.system.files import closing_fd

LABEL_APP = "dlapp.app"
LABEL_CONTAINER = "dlapp.container"
LABEL_GPUS = "dlapp.gpus"
LABEL_DIRECTORY = "dlapp.directory"
LABEL_HOST = "dlapp.host"
LABEL_UID = "dlapp.uid"
LABEL_IMAGE = "dlapp.image"


def labels_of(container_id: str, directory: str, devices: Sequence[PayloadDevice]) -> dict[str, str]:
    """Return what every container of ours is labelled with."""
    return {
        LABEL_CONTAINER: container_id,
        LABEL_DIRECTORY: directory,
        LABEL_GPUS: ",".join(device.uuid for device in devices),
        LABEL_HOST: os.uname().nodename,
        LABEL_UID: str(os.getuid()),
    }


def remove_what_is_left(docker: Dockerd, note: Callable[[str], None], *, application: str = "", but: str = "") -> None:
    """Remove our user's containers on this host whose task is dead.

    Args:
        docker: the daemon of this machine.
        note: told, in a line each, what is removed.
        application: only of this one; empty: of all.
        but: a container's directory, which is left alone.
    """
    labels = [f"{LABEL_UID}={os.getuid()}", f"{LABEL_HOST}={os.uname().nodename}"]
    if application:
        labels.append(f"{LABEL_APP}={application}")
    for found in docker.labelled(labels):
        directory = found.labels.get(LABEL_DIRECTORY, "")
        if (but and directory == but) or not task_is_gone(directory):
            continue
        note(f"removing container {found.name} ({found.state}): its task is dead")
        with contextlib.suppress(DockerRefused):  # another task may be at it too
            docker.remove(found.id)


def task_is_gone(directory: str) -> bool:
    """Return whether the task of a container's directory is dead; what cannot be known counts as alive."""
    try:
        fd = os.open(os.path.join(directory, "dlapp.log"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    with closing_fd(fd):
        return not locks.is_write_locked(fd)
