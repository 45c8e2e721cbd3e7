"""Facts about an application for its report: what exactly ran, as far as recorded."""

from __future__ import annotations

import re
import shlex

from dlapp.pages.text import memory
from dlapp.system.text import counted
from dlapp.values.report import ApplicationView
from dlapp.values.spec import AppSpec, RoleSpec, Submission

_PASSWORD = re.compile(r"(?<=://)[^/@\s]*+@")
"""The users in URLs, with and without passwords. It goes on behind what it has read, so it takes linear time."""


def facts(view: ApplicationView, submission: Submission | None) -> list[tuple[str, str]]:
    """Return names and texts: versions, digests, the properties file.

    ``submission`` is None if the reader may not see it, or it was removed.
    """
    found: list[tuple[str, str]] = []
    if submission is not None:
        # The embedded engine is part of dlapp.
        found += [(name, version) for name, version in submission.versions.items() if name != "local"]
        found += [("source", submission.source)]
        found += [("workspace", submission.workspace_digest), ("properties file", submission.file)]
    images = sorted({one.image for one in view.containers if one.image})
    return [*found, ("images", ", ".join(images)), ("network", view.network)]


def asks(spec: AppSpec) -> list[tuple[str, str]]:
    """Return for each role its resources and program, and for each input its source."""
    found = [(role.name, without_passwords(f"{_amounts(role)}: {_program(spec, role)}")) for role in spec.roles]
    found += [(f"input {one.name}".strip(), without_passwords(", ".join(one.sources))) for one in spec.inputs]
    return found


def without_passwords(text: str) -> str:
    """Return a text without user names and passwords in URLs."""
    return _PASSWORD.sub("", text)


def _amounts(role: RoleSpec) -> str:
    each = role.resources
    amounts = [memory(each.memory_mib), counted(each.vcores, "vcores")]
    amounts += [counted(each.gcores, "GPUs")] if each.gcores else []
    return f"{counted(role.instances, 'containers')} of {', '.join(amounts)}"


def _program(spec: AppSpec, role: RoleSpec) -> str:
    program, image = spec.program_of(role), spec.image_of(role)
    text = shlex.join([*(program.command or (program.script,)), *program.args])
    return f"{text} in {image}" if image else text
