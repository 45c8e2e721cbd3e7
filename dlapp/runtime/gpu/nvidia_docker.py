"""Creating a container by the host command ``nvidia-docker``, which adds the GPUs; docker starts it.

Version 1 (2017) adds device nodes and a volume with the driver, if the image has the label for it. Version 2 is a
script that adds the runtime nvidia. Neither refuses what it cannot do: the resulting container is checked later.

Source: NVIDIA/nvidia-docker v1.0.1, src/nvidia-docker; v2.0.2, nvidia-docker.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from dlapp.runtime.docker.container import ContainerSpec
from dlapp.runtime.payload import PayloadError
from dlapp.values.messages import Fault

_TIMEOUT_S = 120.0


def create(container: ContainerSpec, *, program: str, host: str, directory: str, note: Callable[[str], None]) -> None:
    """Create a container.

    Args:
        container: description of the container.
        program: the path of nvidia-docker.
        host: dockerd's address.
        directory: for a temporary file with the variables.
        note: called with a line on how it was created.

    Raises:
        PayloadError: the command failed.
    """
    env_file = os.path.join(directory, "env")
    fd = os.open(env_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(container.lines_of_env())
        env = {**os.environ, **container.multiline_env(), "DOCKER_HOST": host, **(container.gpus.command_env or {})}
        env.pop("DOCKER_CONTEXT", None)
        done = subprocess.run(
            [program, *container.as_arguments(env_file)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PayloadError(Fault.NODE, f"{program} does not work: {error}") from error
    finally:
        os.unlink(env_file)
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise PayloadError(Fault.NODE, f"{program} did not make the container: {words}")
    note(f"{program} made it with NV_GPU={(container.gpus.command_env or {}).get('NV_GPU')}")
