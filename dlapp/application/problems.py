"""Rules on what was given that a spec cannot have: keys without effect, and keys that exclude each other.

The rules on an application, however it was described, are those of its values (`AppSpec.problems`) and of its framework
(`dlapp.frameworks.problems`); `all_problems` yields them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dlapp import frameworks
from dlapp.application.keys import OF_ROLES
from dlapp.values.rules import Problem, unchecked
from dlapp.values.spec import (
    NO_PROGRAM,
    AppSpec,
    Kind,
    RoleSpec,
    problems_with_names,
    problems_with_programs,
)

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "hang_idle": ("hang_timeout",),
    "keep_previous": ("overwrite",),
    "concurrency": ("trials_per_container",),
    "pruner": ("sampler",),
    "network": ("docker_image",),
    "workdir": ("docker_image", "command"),
}
"""Key -> keys of its section without which its rules cannot be judged."""
_PROGRAM = ("application.user_shell_script", "application.command", "application.user_dev_workspace_path")


def all_problems(spec: AppSpec) -> Iterator[Problem]:
    """Yield all that is wrong with an application, by the keys of a properties file."""
    yield from spec.problems()
    yield from frameworks.problems(spec.framework, spec.roles, gang=spec.gang, success=spec.success)


def follows_from(named: Collection[str], where: str, problem: str) -> bool:
    """Return whether a problem may only follow from errors of keys, whose values are not known.

    Args:
        named: the keys and sections that have errors.
        where: key or section of the problem.
        problem: its text.
    """
    section, _, key = where.partition(".")
    if where in named or (section == "application" and section in named):
        return True
    if where in ("sweep", "sweep.trials"):
        return any(one.startswith(("sweep.grid.", "sweep.random.", "sweep.list")) for one in named)
    if where in _PROGRAM or problem.startswith(NO_PROGRAM):
        return any(one in named for one in (*_PROGRAM, f"{where}.script", f"{where}.command"))
    if where == "to_hdfs.hdfs":  # two of one target: each names the other already
        return any(one.startswith("to_hdfs") and one.endswith(".hdfs") for one in named)
    if where == "roles":
        return any(one.startswith(("application.kind", *OF_ROLES)) for one in named)
    return any(f"{section}.{other}" in named for other in _NEEDS.get(key, ()))


def problems_of_given(
    given_by_section: Mapping[str, Mapping[str, Any]], word_of: Callable[[Any], str]
) -> Iterator[Problem]:
    """Yield what the given keys alone show: missing programs, and keys that exclude each other or have no effect.

    Args:
        given_by_section: section -> key -> what was given; keys may be unknown and values invalid.
        word_of: returns the word that stands for a value of a choice.
    """
    given = given_by_section.get("application")
    if given is None:
        return
    is_service = "kind" in given and word_of(given["kind"]) == Kind.SERVICE.value
    has_script, has_command = "user_shell_script" in given, "command" in given
    sections = {one: keys for one, keys in given_by_section.items() if one.startswith(("role ", "service "))}
    named = [
        unchecked(
            RoleSpec,
            name=section.partition(" ")[2],
            script="-" if "script" in keys else None,
            command=("-",) if "command" in keys else None,
            keep_running=section.startswith("service "),
        )
        for section, keys in sections.items()
    ]
    roles = [role for role in named if not role.keep_running]
    services = [role for role in named if role.keep_running]
    needing = [role for role in roles if role.script is None and role.command is None]
    all_roles = [*(roles or ([] if is_service else [unchecked(RoleSpec)])), *services]
    yield from problems_with_programs(
        all_roles,
        are_declared=bool(roles),
        has_script=has_script,
        has_command=has_command,
        has_workspace="user_dev_workspace_path" in given,
    )
    for role in named:
        yield from role.program_problems()
    yield from problems_with_names(all_roles)
    if is_service and not services:
        yield "application.kind", "is service, and there is no [service NAME]"
    for key in ("user_shell_script", "command", "user_shell_args"):
        if key in given and is_service:
            yield f"application.{key}", "has no effect with kind=service: every [service NAME] has its own program"
        elif key in given and roles and not needing:
            yield f"application.{key}", "has no effect: every role has its own script or command"
    has_containers = "containers" in given_by_section.get("resources", {})
    if roles and has_containers:
        yield "resources.containers", "is not possible beside [role NAME]; set instances in the roles"
    if is_service:
        for role in roles:
            yield role.section, "is not possible with kind=service; use [service NAME]"
        for key in ("success", "framework", "gang"):
            if key in given:
                yield f"application.{key}", "has no effect with kind=service, which has no roles but services"
        if has_containers:
            yield "resources.containers", "has no effect with kind=service; set instances in the services"
    for section, keys in given_by_section.items():
        mode = word_of(keys["mode"]) if "mode" in keys else ""
        if section.partition(" ")[0] == "from_hdfs" and mode != "feed":
            for key in keys:
                if key.startswith("feed."):
                    yield f"{section}.{key}", "has no effect without mode=feed"
