"""Getting an image: once per host for any number of tasks, with the submitter's credentials; and the fault of a
failure.

The node's operator decides where images may come from (`dlapp.node_policy.RegistryPolicy`). If the registry of an image
has a mirror, the mirror is tried first, then the registry. The submitter's credentials for a registry are sent to
dockerd with the pull from that registry only, never for a mirror.

Tasks that need the same image at the same time serialize on a file lock of the machine; the holder first checks whether
the image exists by now. A pull that dies releases the lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dlapp.net.dockerd import Dockerd, DockerRefused
from dlapp.node_policy import ANY_REGISTRY, RegistryPolicy
from dlapp.runtime.payload import PayloadError, ServiceAway
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, open_file
from dlapp.system.shared_directory import create_shared_file, open_shared_directory
from dlapp.system.waits import Wait
from dlapp.values.image_name import ImageName, RegistryCredentials, parse_image_name
from dlapp.values.messages import Fault

Progress = Callable[[int, int], None]
_STALL_S = 600.0
"""Time without progress after which a pull is given up; dockerd reports nothing for minutes while it unpacks a large
layer."""
_LOOK_EVERY_S = 0.2
_LONGEST_WAIT_S = 60.0
"""Time limit of the wait for the lock: any user may lock the file, and a task may be stopped while it holds it. dockerd
joins two pulls of one image anyway."""


class LocalImage(NamedTuple):
    """An image in dockerd's store.

    Args:
        name: dockerd's name of it.
        about: dockerd's description of it.
    """

    name: str
    about: dict[str, Any]

    @property
    def digest(self) -> str:
        """Return the digest at its registry, or its id if it has none."""
        digests = [one for one in self.about.get("RepoDigests") or () if isinstance(one, str)]
        # One image may have several digests, of several registries.
        path = parse_image_name(self.name).path
        own = [one for one in digests if one == self.name or one.rpartition("@")[0] == path]
        return (own or digests or [str(self.about.get("Id", ""))])[0]


class ImageStore:
    """Images of this machine's dockerd, and their sources.

    Args:
        lock_dir: a directory of the machine that all users may write to.
        note: called with one line for each action and wait.
        policy: the policy of this node's operator.
        credentials: the submitter's, for one registry; None if there are none.
    """

    def __init__(
        self,
        docker: Dockerd,
        lock_dir: str,
        note: Callable[[str], None],
        policy: RegistryPolicy = ANY_REGISTRY,
        credentials: RegistryCredentials | None = None,
    ) -> None:
        self._docker, self._lock_dir, self._note = docker, lock_dir, note
        self._policy, self._credentials = policy, credentials

    def require(self, image: str, progress: Progress | None = None) -> LocalImage:
        """Return an image; pull it if it is missing.

        Args:
            image: its name, as the user writes it.
            progress: called with the bytes pulled and the total, as far as known.

        Raises:
            PayloadError: it is not allowed here or cannot be pulled; DockerRefused, DockerSilent: dockerd failed.
        """
        places = self._places(image)
        if (found := self._find(image, places)) is None:
            with _pull_lock(self._lock_dir, self._docker.host, image, self._note):
                if (found := self._find(image, places)) is None:
                    self._note(f"image {image}: pulling")
                    found = self._pull_from(image, places, progress)
        self._note(f"image {image}: {found.digest}")
        return found

    def is_there(self, image: str) -> bool:
        """Return whether dockerd has an image."""
        return self._find(image, self._places(image)) is not None

    def _places(self, image: str) -> tuple[ImageName, ...]:
        """Return the local names of an image: of its registry, and of the registry's mirror."""
        try:
            name = self._policy.resolve(parse_image_name(image))
        except ValueError as error:
            raise pull_error(image, f"invalid reference: {error}") from error
        if problem := self._policy.forbidden(name):
            raise PayloadError(Fault.USER, f"image {image} is not allowed on this node: it {problem}")
        mirrored = self._policy.mirrored(name)
        return (name,) if mirrored is None else (name, mirrored)

    def _find(self, image: str, places: tuple[ImageName, ...]) -> LocalImage | None:
        for name in places:
            try:
                about = self._docker.image(name.text)
            except DockerRefused as error:
                if error.status == 400:
                    raise pull_error(image, str(error)) from error
                raise
            if about is not None:
                found = LocalImage(name.text, about)
                if name.digest and found.digest.rpartition("@")[2] != name.digest:
                    raise PayloadError(Fault.NODE, f"Docker has {found.digest} under the name of image {image}")
                return found
        return None

    def _pull_from(self, image: str, places: tuple[ImageName, ...], progress: Progress | None) -> LocalImage:
        own, *mirrors = places
        besides = ""
        for name in mirrors:
            try:
                _pull(self._docker, image, name, {}, progress)
                return self._pulled(image, name)
            except _PullFailed as failed:
                error = pull_error(image, str(failed))
                if error.service and not isinstance(error, ServiceAway):
                    raise error from failed  # Docker's disk is full
                besides = f"; before that the mirror {name.path} did not give it: {failed}"
                self._note(f"image {image}: the mirror {name.path} does not have it: {failed}")
        given = self._credentials
        headers = {"X-Registry-Auth": given.header} if given is not None and given.registry == own.registry else {}
        try:
            _pull(self._docker, image, own, headers, progress)
        except _PullFailed as failed:
            who = f"asked {'with your' if headers else 'without'} credentials for {own.registry}"
            raise pull_error(image, str(failed), besides, who) from failed
        return self._pulled(image, own)

    def _pulled(self, image: str, name: ImageName) -> LocalImage:
        if (found := self._find(image, (name,))) is None:
            raise PayloadError(Fault.NODE, f"image {image} was removed right after it was pulled")
        return found


@contextlib.contextmanager
def _pull_lock(lock_dir: str, host: str, image: str, note: Callable[[str], None]) -> Iterator[None]:
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
    """Open a file that any user may lock. Raises OSError: it is not a regular file."""
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


class _PullFailed(Exception):
    """A failed pull, with Docker's message."""


def _pull(docker: Dockerd, image: str, name: ImageName, headers: Mapping[str, str], progress: Progress | None) -> None:
    """Pull ``name`` with the credentials in ``headers``; ``image`` is the name that the user wrote.

    Raises:
        _PullFailed: with dockerd's reason.
    """
    layers: dict[str, tuple[int, int]] = {}
    wait = Wait(f"image {image} from its registry", _STALL_S)
    wait.begin()
    try:
        query = {"fromImage": name.path, "tag": name.version}
        for line in docker.lines("/images/create", query, headers, timeout_s=_STALL_S):
            wait.renew()
            if "error" in line:
                raise _PullFailed(str(line["error"]))
            detail = line.get("progressDetail") or {}
            if line.get("status") == "Downloading" and detail.get("total"):
                layers[str(line.get("id"))] = (int(detail["current"]), int(detail["total"]))
            elif line.get("status") in ("Download complete", "Pull complete") and str(line.get("id")) in layers:
                total = layers[str(line["id"])][1]
                layers[str(line["id"])] = (total, total)
            if progress and layers:
                progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))
    except DockerRefused as error:
        raise _PullFailed(str(error)) from error
    finally:
        wait.end()


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
_DENIED = "its registry denies it to you, or does not have it; docker login tells it who you are"
_SIGNS = (
    # The order matters: with a full disk, Docker may also report a layer as "not found".
    (Fault.NODE, _DISK_FULL, ("no space left on device", "disk quota exceeded")),
    # The name servers report that the name does not exist; an unreachable name server gives another message.
    (Fault.USER, "the host of its registry does not exist", ("no such host",)),
    (Fault.NODE, *_REGISTRY_AWAY),
    (Fault.NODE, *_REGISTRY_BUSY),
    (
        Fault.USER,
        _DENIED,
        ("denied", "unauthorized", "authentication required", "no basic auth credentials", "incorrect username"),
    ),
    (Fault.USER, "there is no such image", ("manifest unknown", "not found", "does not exist", "name unknown")),
    (Fault.USER, "not an image name", ("invalid reference", "invalid repository", "invalid tag")),
)


def pull_error(image: str, why: str, besides: str = "", who: str = "") -> PayloadError:
    """Return a failed pull as an error, with the fault derived from Docker's message.

    Args:
        image: as the user writes it.
        why: Docker's message.
        besides: additional text at the end of the message.
        who: user at the registry; for an image that it denies.
    """
    text = _without_name(why, image).lower()
    for fault, words, signs in _SIGNS:
        if any(sign in text for sign in signs):
            known = f" ({who})" if who and words == _DENIED else ""
            message = f"image {image} cannot be pulled: {words}{known}: {why}{besides}"
            if words in (_REGISTRY_AWAY[0], _REGISTRY_BUSY[0]):
                return ServiceAway(f"the registry of image {image}", f"{why}{besides}", message)
            return PayloadError(fault, message, service="space for images" if words == _DISK_FULL else "")
    return PayloadError(Fault.NODE, f"image {image} cannot be pulled: {why}{besides}")


def _without_name(why: str, image: str) -> str:
    """Return a message without the image's name, which may be like one of the signs: ``timeout:1``."""
    head, slash, last = image.partition("@")[0].rpartition("/")
    name, colon, tag = last.partition(":")
    path = f"{head}{slash}{name}"
    registry, _, repository = path.partition("/")
    for part in (f"{path}{colon}{tag}", path, repository, registry, tag):
        why = re.sub(rf"(?<![\w.-]){re.escape(part)}(?![\w.-])", "", why) if part else why
    return why
