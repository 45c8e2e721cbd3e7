"""Getting an image: once per host however many tasks ask, with the user's own credentials; whose fault a failure is.

Tasks that need the same image at the same time wait for each other by a lock on a file of the machine; who gets it
looks first if the image is there by now. A pull that dies lets go of the lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from dlapp import ofd
from dlapp.control import Fault
from dlapp.runtime.dockerd import Dockerd, DockerRefused
from dlapp.runtime.payload import PayloadError

Progress = Callable[[int, int], None]
_STALL_S = 600.0
"""A pull that says nothing for so long is given up; unpacking a large layer is silent for minutes."""
_LOOK_EVERY_S = 0.2
_LONGEST_WAIT_S = 1800.0
"""Another user's task may be stopped while it holds the lock; dockerd joins two pulls of one image anyway."""


def make_sure_of_image(
    docker: Dockerd,
    image: str,
    lock_dir: str,
    note: Callable[[str], None],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What dockerd says of an image, which is pulled if it is missing.

    Args:
        lock_dir: a directory of the machine that all users may write.
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
        raise PayloadError(Fault.NODE, f"image {image} is gone again right after it was pulled")
    note(f"image {image}: {digest_of(found)}")
    return found


def digest_of(image: dict[str, Any]) -> str:
    """Which image it is, for good: the digest at its registry, or its id where it comes from none."""
    digests = image.get("RepoDigests") or ()
    return str(digests[0] if digests else image.get("Id", ""))


def machine_directory(path: str) -> None:
    """Make a directory in which all users may make files, as /tmp is, if it is not there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o1777)
        os.chmod(path, 0o1777)


@contextlib.contextmanager
def _turn(lock_dir: str, host: str, image: str, note: Callable[[str], None]) -> Iterator[None]:
    machine_directory(lock_dir)
    name = f"pull-{hashlib.sha256(f'{host} {image}'.encode()).hexdigest()[:32]}"
    fd = _open_shared(os.path.join(lock_dir, name))
    try:
        deadline, told = time.monotonic() + _LONGEST_WAIT_S, False
        while not _try_lock(fd) and time.monotonic() < deadline:
            if not told:
                note(f"image {image}: another task is pulling it")
                told = True
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(fd)


def _open_shared(path: str) -> int:
    """A file that anybody may lock. Never with O_CREAT on what is there: the kernel refuses that in /run/lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(fd, 0o666)
            return fd


def _try_lock(fd: int) -> bool:
    try:
        return ofd.try_lock(fd)
    except OSError:
        return False


def _pull(docker: Dockerd, image: str, progress: Progress | None) -> None:
    from docker.utils import parse_repository_tag

    name, tag = parse_repository_tag(image)
    headers = _credentials(name)
    layers: dict[str, tuple[int, int]] = {}
    try:
        lines = docker.lines("/images/create", {"fromImage": name, "tag": tag or "latest"}, headers, timeout_s=_STALL_S)
        for line in lines:
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


def _credentials(name: str) -> dict[str, str]:
    """The header with what the user's own Docker configuration has for the image's registry.

    Source: docker login; ``auths``, ``credsStore`` and ``credHelpers`` of ~/.docker/config.json.
    """
    import warnings

    import docker.auth
    import docker.errors

    registry, _ = docker.auth.resolve_repository_name(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a helper that is missing is said by the error that follows
            found = docker.auth.load_config().resolve_authconfig(registry)
    except docker.errors.DockerException as error:
        raise PayloadError(
            Fault.USER, f"the credentials for registry {registry} in your Docker configuration cannot be used: {error}"
        ) from error
    return {"X-Registry-Auth": docker.auth.encode_header(found).decode()} if found else {}


_SIGNS = (
    # In this order: a disk that is full may say so about a layer that is "not found" then.
    (Fault.NODE, "Docker's disk is full", ("no space left on device", "disk quota exceeded")),
    (
        Fault.NODE,
        "its registry cannot be reached",
        ("no such host", "timeout", "connection refused", "connection reset", "network is unreachable", "no route to"),
    ),
    (Fault.NODE, "its registry asks for patience", ("toomanyrequests", "too many requests")),
    (
        Fault.USER,
        "its registry denies it to you, or does not have it; docker login tells it who you are",
        ("denied", "unauthorized", "authentication required", "no basic auth credentials"),
    ),
    (Fault.USER, "there is no such image", ("manifest unknown", "not found", "does not exist", "name unknown")),
    (Fault.USER, "that is no name of an image", ("invalid reference", "invalid repository", "invalid tag")),
)


def pull_error(image: str, why: str) -> PayloadError:
    """A failed pull, with whose fault it is by Docker's words, and these."""
    text = why.lower()
    for fault, words, signs in _SIGNS:
        if any(sign in text for sign in signs):
            return PayloadError(fault, f"image {image} cannot be pulled: {words}: {why}")
    return PayloadError(Fault.NODE, f"image {image} cannot be pulled: {why}")
