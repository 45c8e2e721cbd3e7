"""Rules on what was given that a spec cannot have: keys without effect, and keys that exclude each other.

The rules on an application, however it was described, are those of its values (`AppSpec.problems`) and of its framework
(`dlapp.frameworks.problems`); `all_problems` yields them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dlapp import frameworks
from dlapp.application.forms import MAX_ARGUMENT_BYTES
from dlapp.application.keys import ENV, OF_ROLES
from dlapp.system.text import nearest
from dlapp.values.program.placeholders import CACHE, HOSTS, MASTER, names_in
from dlapp.values.rules import Problem, unchecked
from dlapp.values.spec import (
    NO_PROGRAM,
    AppSpec,
    Kind,
    RoleSpec,
    deciding_roles,
    no_role,
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
    "gpu_capabilities": ("docker_image",),
}
"""Key -> keys of its section without which its rules cannot be judged."""
_OF_ADDRESSES = ("application.framework", "application.gang", "application.success")
MAX_HOSTS = MAX_ARGUMENT_BYTES // 48
"""Containers whose addresses fit into one argument: an IPv6 address with brackets, port and comma has 48 bytes."""
_PROGRAM = ("application.user_shell_script", "application.command", "application.user_dev_workspace_path")


def all_problems(spec: AppSpec) -> Iterator[Problem]:
    """Yield all that is wrong with an application, by the keys of a properties file."""
    yield from spec.problems()
    yield from frameworks.problems(spec.framework, spec.roles, gang=spec.gang, success=spec.success)
    yield from placeholder_problems(spec)


def placeholder_problems(spec: AppSpec) -> Iterator[Problem]:
    """Yield placeholders in commands and arguments whose value cannot be known."""
    yield from dict.fromkeys(_placeholder_problems(spec))  # roles may share a program


def _placeholder_problems(spec: AppSpec) -> Iterator[Problem]:
    caches = [f"{CACHE}{one.name}" for one in spec.caches]
    for role in spec.roles:
        program, section = spec.program_of(role), role.section
        is_own = role.script is not None or role.command is not None
        command = f"{section}.command" if is_own else "application.command"
        args = f"{section}.args" if is_own or role.args is not None else "application.user_shell_args"
        for where, words in ((command, program.command), (args, program.args)):
            for name in dict.fromkeys(name for word in words for name in names_in(word)):
                problem = ""
                if name == MASTER or name.startswith(HOSTS):
                    problem = _address_problem(spec, role, name)
                elif name.startswith(CACHE) and name not in caches:
                    problem = f"there is no {name} in [application], {nearest(name, caches)}"
                if problem:
                    yield where, f"{{{name}}}: {problem}"


def variable_problems(spec: AppSpec, variables: Mapping[str, Mapping[str, str]]) -> Iterator[Problem]:
    """Yield variables with ``{cache.NAME}`` of a cache that does not exist; their values are not shown.

    Args:
        spec: the application.
        variables: section -> name -> value.
    """
    caches = [f"{CACHE}{one.name}" for one in spec.caches]
    for section, values in variables.items():
        for name, value in values.items():
            if any(one.startswith(CACHE) and one not in caches for one in names_in(value)):
                there = f"there is {', '.join(caches)}" if caches else "there is none"
                yield f"{section}.{ENV}{name}", f"{{cache.NAME}} is not a cache of [application]; {there}"


def _address_problem(spec: AppSpec, role: RoleSpec, name: str) -> str:
    """Return why the addresses of a placeholder cannot be known to a role; empty if they can."""
    by_name = {one.name: one for one in spec.roles}
    if name == MASTER:
        target = next(iter(deciding_roles(spec.roles, spec.success)), None)
    else:
        target = by_name.get(name.removeprefix(HOSTS))
    if target is None:
        if name == MASTER:
            return "no role decides the end of the application"
        return no_role(name.removeprefix(HOSTS), by_name)
    if not target.ports:
        return f"the containers of role {target.name} have no ports; set framework, or ports in [role {target.name}]"
    if name != MASTER and target.instances > MAX_HOSTS:
        count = f"role {target.name} has {target.instances} containers"
        return f"{count}, whose addresses are too long for an argument; read the file in DLAPP_ROSTER"
    if target.name not in _known_at_start(spec, role):
        problem = f"the addresses of role {target.name} are not known when role {role.name} starts"
        return f"{problem}; set gang=all" + ("" if target is role else f", or depends_on={target.name}")
    return ""


def _known_at_start(spec: AppSpec, role: RoleSpec) -> set[str]:
    """Return the roles all of whose containers have an address when one of a role starts: those of its gang, and those
    that must have started before."""
    by_name, gangs = {one.name: one for one in spec.roles}, spec.gangs()

    def together(one: RoleSpec) -> tuple[RoleSpec, ...]:
        return next((gang for gang in gangs if one in gang), (one,))

    own = together(role)
    known = {one.name for one in own} if own != (role,) or role.instances == 1 or (role,) in gangs else set()
    pending, seen = [own], [own]
    while pending:
        for after in (by_name.get(one.role) for member in pending.pop() for one in member.depends_on):
            if after is not None and (group := together(after)) not in seen:
                known |= {one.name for one in group}
                pending.append(group)
                seen.append(group)
    return known


def follows_from(named: Collection[str], where: str, problem: str) -> bool:
    """Return whether a problem may only follow from errors of keys, whose values are not known.

    Args:
        named: the keys and sections that have errors.
        where: key or section of the problem.
        problem: its text.
    """
    section, _, key = where.partition(".")
    if problem.startswith((f"{{{HOSTS}", f"{{{MASTER}")):
        return any(one.startswith((*_OF_ADDRESSES, *OF_ROLES)) for one in named)
    if problem.startswith(f"{{{CACHE}"):
        return any(one.startswith(f"application.{CACHE}") for one in named)
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
