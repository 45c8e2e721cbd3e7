"""Values that docker/ has of the images."""

from __future__ import annotations

import re
from pathlib import Path

DOCKER = Path(__file__).parents[2] / "docker"
NAMES = sorted(path.parent.name for path in DOCKER.glob("*/Dockerfile"))


def dockerfile(name: str) -> str:
    return (DOCKER / name / "Dockerfile").read_text(encoding="utf-8")


def parent_of(name: str) -> str | None:
    """The image of ours that this one builds on; None: it builds on a public one."""
    found = re.search(r"^ARG BASE=naver/c3_dl-(.+):", dockerfile(name), re.MULTILINE)
    return found[1] if found else None


def locked(name: str) -> dict[str, str]:
    """The versions of the Python packages of an image: package -> version; empty where it has no such file."""
    path = DOCKER / name / "requirements.txt"
    if not path.exists():
        return {}
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def requested_versions(name: str) -> dict[str, str]:
    """The versions that requirements.in of an image names."""
    path = DOCKER / name / "requirements.in"
    if not path.exists():
        return {}
    return dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def apt_packages(name: str) -> list[str]:
    """The packages of the distribution that an image adds."""
    path = DOCKER / name / "packages.txt"
    return path.read_text(encoding="utf-8").split() if path.exists() else []
