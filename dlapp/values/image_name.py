"""Names of Docker images: registry, repository, tag and digest, as Docker parses them; credentials for a registry.

Source: github.com/distribution/reference, `normalize.go` and `regexp.go`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dlapp.value import Value

DOCKER_HUB = "docker.io"
_ID = re.compile(r"(sha256:)?[0-9a-f]{64}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class ImageName(NamedTuple):
    """Name of an image.

    Args:
        path: the name as written, without tag and digest; for an id, the whole id.
        registry: ``docker.io`` if the name has none; empty for an id, which exists only in Docker on a node.
        repository: its path at the registry.
        tag: empty if the name has none.
        digest: ``sha256:...``; empty if the name has none.
        names_registry: the name contains the registry.
    """

    path: str
    registry: str
    repository: str
    tag: str = ""
    digest: str = ""
    names_registry: bool = False

    @property
    def text(self) -> str:
        """Return the name for requests to Docker, with the digest if there is one."""
        if self.digest:
            return f"{self.path}@{self.digest}"
        return f"{self.path}:{self.tag}" if self.tag else self.path

    @property
    def version(self) -> str:
        """Return the digest, or else the tag, at the registry."""
        return self.digest or self.tag or "latest"

    def at(self, place: str) -> ImageName:
        """Return the image of the same repository and version at another registry, ``registry[/path]``."""
        registry, _, path = place.partition("/")
        repository = f"{path}/{self.repository}" if path else self.repository
        return ImageName(f"{registry}/{repository}", registry, repository, self.tag, self.digest, True)


class RegistryCredentials(Value):
    """Credentials of a submitter for one registry.

    Args:
        registry: as in `ImageName`.
        header: the header X-Registry-Auth of Docker's API.
    """

    registry: str
    header: str


def parse_image_name(text: str) -> ImageName:
    """Return the parts of an image's name. Docker refuses invalid names; raises ValueError for an invalid digest."""
    if _ID.fullmatch(text):
        return ImageName(text, "", "")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest[:80]!r} is not a digest: sha256: and 64 hexadecimal digits")
    head, slash, last = rest.rpartition("/")
    last, _, tag = last.partition(":")
    path = f"{head}{slash}{last}"
    first, slash, repository = path.partition("/")
    # The first part is a host only if it has a dot, a colon or a capital, or is localhost; `tony/net` is at Docker Hub.
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry = DOCKER_HUB if first == f"index.{DOCKER_HUB}" else first
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return ImageName(path, registry, repository, tag, digest, True)
    return ImageName(path, DOCKER_HUB, path if slash else f"library/{path}", tag, digest)
