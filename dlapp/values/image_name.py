"""Names of Docker images: registry, repository, tag and digest, as Docker parses them; credentials for a registry.

Source: github.com/distribution/reference, `normalize.go` and `regexp.go`.
"""

from __future__ import annotations

import re

from dlapp.system.text import lazy_pattern, shown
from dlapp.value import NamedTuple, Value

DOCKER_HUB = "docker.io"
_ID = lazy_pattern(r"(sha256:)?[0-9a-f]{64}", re.ASCII)
_DIGEST = lazy_pattern(r"sha256:[0-9a-f]{64}", re.ASCII)
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = lazy_pattern(rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]+)?", re.ASCII)
_PART = lazy_pattern(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*", re.ASCII)
_TAG = lazy_pattern(r"\w[\w.-]{0,127}", re.ASCII)
_MAX_REPOSITORY = 255


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
    """Return the parts of an image's name; raises ValueError for one that Docker refuses."""
    if _ID.fullmatch(text):
        return ImageName(text, "", "")
    protocol, protocol_end, after = text.partition("://")
    if protocol_end:
        raise ValueError(
            f"{shown(text)} begins with {shown(protocol + '://')}, names of images do not{_proposal(after)}"
        )
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest[:80]!r} is not a digest: sha256: and 64 hexadecimal digits")
    head, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    path = f"{head}{slash}{last}"
    first, slash, repository = path.partition("/")
    # The first part is a host only if it has a dot, a colon or a capital, or is localhost; `tony/net` is at Docker Hub.
    names_registry = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    _check_repository(text, repository if names_registry else path)
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"{shown(text)}: {shown(tag)} is not a tag: one ':', then letters, digits, _, . and -")
    if not names_registry:
        return ImageName(path, DOCKER_HUB, path if slash else f"library/{path}", tag, digest)
    if not _REGISTRY.fullmatch(first):
        raise ValueError(f"{shown(text)}: {shown(first)} is not a registry: HOST or HOST:PORT")
    registry = DOCKER_HUB if first == f"index.{DOCKER_HUB}" else first
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    return ImageName(path, registry, repository, tag, digest, True)


def _check_repository(text: str, repository: str) -> None:
    for part in repository.split("/"):
        if not part:
            proposal = _proposal("/".join(one for one in text.split("/") if one))
            raise ValueError(f"{shown(text)} has an empty part before or after a '/'{proposal}")
        if not _PART.fullmatch(part):
            if _PART.fullmatch(part.lower()):
                proposal = _proposal(text.replace(repository, repository.lower(), 1))
                raise ValueError(f"{shown(text)} has capitals in {shown(part)}{proposal}")
            raise ValueError(
                f"{shown(text)}: {shown(part)} is not a part of an image's name: lower-case letters and digits, "
                "between them one '.', one or two '_', or '-'"
            )
    if len(repository) > _MAX_REPOSITORY:
        raise ValueError(f"{shown(text)} is too long: {len(repository)} characters, the maximum is {_MAX_REPOSITORY}")


def _proposal(text: str) -> str:
    try:
        return f": write {text}" if text and parse_image_name(text) else ""
    except ValueError:
        return ""
