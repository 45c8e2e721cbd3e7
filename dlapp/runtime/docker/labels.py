"""Labels of containers: the owner of each, and the path of its task's log, which the task locks while it lives.

Containers of dead tasks are found and removed by their labels, also those that were never started.
"""

from __future__ import annotations

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
    """Return the labels of all of dlapp's containers."""
    return {
        LABEL_CONTAINER: container_id,
        LABEL_DIRECTORY: directory,
        LABEL_GPUS: ",".join(device.uuid for device in devices),
        LABEL_HOST: os.uname().nodename,
        LABEL_UID: str(os.getuid()),
    }


def remove_leftover_containers(
    docker: Dockerd, note: Callable[[str], None], *, application: str = "", but: str = ""
) -> bool:
    """Remove our user's containers on this host whose tasks are dead; return whether none of them is left.

    Args:
        docker: the daemon of this machine.
        note: called with a line for each removed container.
        application: remove only its containers; empty for all.
        but: a container's directory to skip.
    """
    labels = [f"{LABEL_UID}={os.getuid()}", f"{LABEL_HOST}={os.uname().nodename}"]
    if application:
        labels.append(f"{LABEL_APP}={application}")
    is_done = True
    for found in docker.labelled(labels):
        directory = found.labels.get(LABEL_DIRECTORY, "")
        if (but and directory == but) or not is_task_dead(directory):
            continue
        note(f"removing container {found.name} ({found.state}): its task is dead")
        try:
            docker.remove(found.id)
        except DockerRefused:  # another task may be doing the same
            is_done = False
    return is_done


def is_task_dead(directory: str) -> bool:
    """Return whether the task of a container's directory is dead; False if unknown."""
    try:
        fd = os.open(os.path.join(directory, "dlapp.log"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    with closing_fd(fd):
        return not locks.is_write_locked(fd)
