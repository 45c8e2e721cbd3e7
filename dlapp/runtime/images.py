"""Getting an image: once per host however many tasks ask, with the user's own credentials; whose fault a failure is.

Tasks that need the same image at the same time wait for each other by a lock on a file of the machine; who gets it
looks first if the image is there by now. A pull that dies lets go of the lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from dlapp.errors import Denied
from dlapp.messages import Fault
from dlapp.net.dockerd import Dockerd, DockerRefused
from dlapp.runtime.payload import PayloadError, ServiceAway
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, open_file
from dlapp.system.owners import refuse_place_of_others
from dlapp.system.shared_directory import create_shared_file, open_shared_directory
from dlapp.system.waits import Wait

Progress = Callable[[int, int], None]
_STALL_S = 600.0
"""A pull that says nothing for so long is given up; unpacking a large layer is silent for minutes."""
_LOOK_EVERY_S = 0.2
_LONGEST_WAIT_S = 60.0
"""Anybody may lock the file, and a task be stopped while it has it; dockerd joins two pulls of one image anyway."""


def make_sure_of_image(
    docker: Dockerd,
    image: str,
    lock_dir: str,
    note: Callable[[str], None],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return what dockerd says of an image, which is pulled if it is missing.

    Args:
        docker: the daemon of this machine.
        image: its name.
        lock_dir: a directory of the machine that all users may write.
        note: told, in a line each, what is done and waited for.
        progress: told bytes that have come and bytes in all, as far as they are known.

    Raises:
        PayloadError: it cannot be pulled; DockerRefused, DockerSilent: dockerd did not do as it should.
    """
    try:
        found = docker.image(image)
    except DockerRefused as error:
        if error.status == 400:
            raise pull_error(image, str(error)) from error
        raise
    if found is None:
        with _turn(lock_dir, docker.host, image, note):
            found = docker.image(image)
            if found is None:
                note(f"image {image}: pulling")
                _pull(docker, image, progress)
                found = docker.image(image)
    if found is None:
        raise PayloadError(Fault.NODE, f"image {image} was removed right after it was pulled")
    note(f"image {image}: {digest_of(found)}")
    return found


def digest_of(image: dict[str, Any]) -> str:
    """Return the digest of an image at its registry, or its id if it comes from none."""
    digests = image.get("RepoDigests") or ()
    return str(digests[0] if digests else image.get("Id", ""))


@contextlib.contextmanager
def _turn(lock_dir: str, host: str, image: str, note: Callable[[str], None]) -> Iterator[None]:
    name = f"pull-{hashlib.sha256(f'{host} {image}'.encode()).hexdigest()[:32]}"
    try:
        fd = _open_shared(lock_dir, name)
    except OSError as error:
        note(f"image {image}: pulled without waiting for other tasks: {error}")
        yield
        return
    with closing_fd(fd):
        deadline, told = time.monotonic() + _LONGEST_WAIT_S, False
        with Wait(f"another task that pulls image {image}", _LONGEST_WAIT_S):
            while not _try_lock(fd) and time.monotonic() < deadline:
                if not told:
                    note(f"image {image}: another task is pulling it")
                    told = True
                time.sleep(_LOOK_EVERY_S)
        yield


def _open_shared(lock_dir: str, name: str) -> int:
    """Open a file that anybody may lock. Raises OSError: it is none."""
    with closing_fd(open_shared_directory(lock_dir, make=True)) as directory:
        path = os.path.join(lock_dir, name)
        try:
            fd = open_file(name, dir_fd=directory, path=path, write=True)
        except FileNotFoundError:
            create_shared_file(name, directory)
            fd = open_file(name, dir_fd=directory, path=path, write=True)
        if (mode := stat.S_IMODE(os.fstat(fd).st_mode)) != 0o666:
            os.close(fd)
            raise UntrustedFile(path, f"has mode {mode:o}, not 666")
        return fd


def _try_lock(fd: int) -> bool:
    try:
        return locks.try_lock(fd)
    except OSError:
        return False


def _pull(docker: Dockerd, image: str, progress: Progress | None) -> None:
    from docker.utils import parse_repository_tag

    name, tag = parse_repository_tag(image)
    headers = _credentials(name)
    layers: dict[str, tuple[int, int]] = {}
    wait = Wait(f"image {image} from its registry", _STALL_S)
    wait.begin()
    try:
        lines = docker.lines("/images/create", {"fromImage": name, "tag": tag or "latest"}, headers, timeout_s=_STALL_S)
        for line in lines:
            wait.renew()
            if "error" in line:
                raise pull_error(image, str(line["error"]))
            detail = line.get("progressDetail") or {}
            if line.get("status") == "Downloading" and detail.get("total"):
                layers[str(line.get("id"))] = (int(detail["current"]), int(detail["total"]))
            elif line.get("status") in ("Download complete", "Pull complete") and str(line.get("id")) in layers:
                total = layers[str(line["id"])][1]
                layers[str(line["id"])] = (total, total)
            if progress and layers:
                progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))
    except DockerRefused as error:
        raise pull_error(image, str(error)) from error
    finally:
        wait.end()


def _credentials(name: str) -> dict[str, str]:
    """The header with what the user's own Docker configuration has for the image's registry.

    Source: docker login; ``auths``, ``credsStore`` and ``credHelpers`` of ~/.docker/config.json.
    """
    import warnings

    import docker.auth
    import docker.errors
    import docker.utils.config

    registry, _ = docker.auth.resolve_repository_name(name)
    path = docker.utils.config.find_config_file()
    if path is None:
        return {}
    try:
        refuse_place_of_others(path)  # it names programs that are run
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a helper that is missing is said by the error that follows
            found = docker.auth.load_config(path).resolve_authconfig(registry)
    except (Denied, docker.errors.DockerException) as error:
        raise PayloadError(
            Fault.USER, f"the credentials for registry {registry} in your Docker configuration cannot be used: {error}"
        ) from error
    return {"X-Registry-Auth": docker.auth.encode_header(found).decode()} if found else {}


_DISK_FULL = "Docker's disk is full"
_REGISTRY_AWAY = (
    "its registry cannot be reached",
    (
        "timeout",
        "connection refused",
        "connection reset",
        "network is unreachable",
        "no route to",
        "server misbehaving",
        "temporary failure in name resolution",
        "unexpected http status: 5",
    ),
)
_REGISTRY_BUSY = ("its registry limits the rate of requests", ("toomanyrequests", "too many requests"))
_SIGNS = (
    # In this order: a disk that is full may say so about a layer that is "not found" then.
    (Fault.NODE, _DISK_FULL, ("no space left on device", "disk quota exceeded")),
    # The name servers answer that the name does not exist; one that is away is another text.
    (Fault.USER, "the host of its registry does not exist", ("no such host",)),
    (Fault.NODE, *_REGISTRY_AWAY),
    (Fault.NODE, *_REGISTRY_BUSY),
    (
        Fault.USER,
        "its registry denies it to you, or does not have it; docker login tells it who you are",
        ("denied", "unauthorized", "authentication required", "no basic auth credentials"),
    ),
    (Fault.USER, "there is no such image", ("manifest unknown", "not found", "does not exist", "name unknown")),
    (Fault.USER, "not an image name", ("invalid reference", "invalid repository", "invalid tag")),
)


def pull_error(image: str, why: str) -> PayloadError:
    """A failed pull, with whose fault it is by Docker's words, and these."""
    text = why.lower()
    for fault, words, signs in _SIGNS:
        if any(sign in text for sign in signs):
            message = f"image {image} cannot be pulled: {words}: {why}"
            if words in (_REGISTRY_AWAY[0], _REGISTRY_BUSY[0]):
                return ServiceAway(f"the registry of image {image}", why, message)
            return PayloadError(fault, message, service="space for images" if words == _DISK_FULL else "")
    return PayloadError(Fault.NODE, f"image {image} cannot be pulled: {why}")
