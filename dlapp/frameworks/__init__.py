"""Environment variables for frameworks of distributed training, in each container.

One module per framework, which is imported only if an application names it. All have the same functions, of values
alone:

    SERVICES                                names of roles that are services unless the file says otherwise
    success(roles)                          names of the roles that decide by default; none: all that are not services
    problems(roles, deciding)               what is wrong with the roles of an application, by key of its file
    takes_part(role, deciding)              whether the framework knows a role's containers
    environment(one)                        the variables of one container, a `Participant`
    conflict(member)                        what to check if two programs listen on a member's first port, if known

``deciding`` has the names of the roles that decide the application's success.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, cast

from dlapp.frameworks.participant import Participant
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import (
    AppSpec,
    Framework,
    Gang,
    PayloadProgram,
    Resources,
    RoleFailure,
    RoleSpec,
    deciding_roles,
    gangs_of,
)

_RESTARTS_WHOLE = (Framework.TENSORFLOW, Framework.PYTORCH, Framework.TORCHRUN, Framework.JAX, Framework.MPI)
"""Frameworks in which a process that is started again cannot join the others."""


class _Module(Protocol):
    SERVICES: tuple[str, ...]

    def success(self, roles: Sequence[RoleSpec]) -> tuple[str, ...]: ...
    def problems(self, roles: Sequence[RoleSpec], deciding: Collection[str]) -> Iterator[tuple[str, str]]: ...
    def takes_part(self, role: str, deciding: Collection[str]) -> bool: ...
    def environment(self, one: Participant) -> dict[str, str]: ...
    def conflict(self, member: Member) -> str: ...


def _module(framework: Framework) -> _Module:
    return cast(_Module, importlib.import_module(f"{__name__}.{framework.value}"))


def services(framework: Framework) -> tuple[str, ...]:
    """Return the names of roles that are services unless the file says otherwise."""
    return () if framework is Framework.NONE else _module(framework).SERVICES


def success(framework: Framework, roles: Sequence[RoleSpec]) -> tuple[str, ...]:
    """Return the default of `AppSpec.success`."""
    return () if framework is Framework.NONE else _module(framework).success(roles)


def ports(framework: Framework, resources: Resources) -> int:
    """Return the default of `RoleSpec.ports` for containers with these resources."""
    if framework is not Framework.MPI:
        return int(framework is not Framework.NONE)
    from dlapp.frameworks import mpi

    return mpi.ports(resources)


def framework_of(spec: AppSpec, role: RoleSpec) -> Framework:
    """Return the framework whose variables the containers of a role get."""
    if spec.framework is Framework.NONE:
        return Framework.NONE
    deciding = {one.name for one in deciding_roles(spec.roles, spec.success)}
    return spec.framework if _module(spec.framework).takes_part(role.name, deciding) else Framework.NONE


def processes(framework: Framework, resources: Resources, user: Mapping[str, str]) -> int:
    """Return how many processes of a framework share the cores of a container; 0: not known.

    Args:
        framework: `framework_of` the role.
        resources: the resources of the container.
        user: variables of the properties file.
    """
    if framework not in (Framework.TORCHRUN, Framework.MPI):
        return 1
    number: int = importlib.import_module(f"{__name__}.{framework.value}").processes(resources, user)
    return number


def command_of(framework: Framework, program: PayloadProgram) -> PayloadProgram:
    """Return the command that runs in place of the user's program."""
    if framework is not Framework.TORCHRUN or not program.script.endswith(".py"):
        return program
    from dlapp.frameworks.torchrun import COMMAND

    return PayloadProgram("", (*COMMAND, program.script), program.args)


def environment(
    framework: Framework,
    roster: Roster,
    member: Member,
    *,
    resources: Resources,
    interface: str,
    user: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables of one container in addition to those of every payload.

    Args:
        framework: `framework_of` the member's role.
        roster: the roster of the application, with every member that takes part.
        member: the container.
        resources: the resources of the container.
        interface: name of the network interface with the member's address; empty if unknown.
        user: variables of the properties file, which are never overridden.
    """
    found = _module(framework).environment(Participant(roster, member, resources, user))
    if interface:
        # Without the "=" NCCL uses every interface whose name has this prefix. Gloo has no such syntax. Source:
        # docs.nvidia.com/deeplearning/nccl, Environment Variables.
        found |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    return {name: value for name, value in found.items() if name not in user}


def advice_on_conflict(framework: Framework, member: Member, port: int) -> str:
    """Return what to check if two programs of an application listen on a member's port; empty: not known."""
    return _module(framework).conflict(member) if port == member.ports[0] else ""


def problems(
    framework: Framework, roles: Sequence[RoleSpec], *, gang: Gang, success: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what prevents the roles of an application from working together in a framework.

    Args:
        framework: the framework of the application.
        roles: the roles of the application.
        gang: `AppSpec.gang`.
        success: `AppSpec.success`.

    Returns:
        Each time the key of a properties file, and the problem.
    """
    if framework is Framework.NONE:
        return
    module, deciding = _module(framework), {role.name for role in deciding_roles(roles, success)}
    yield from module.problems(roles, deciding)
    members = {role.name for role in roles if module.takes_part(role.name, deciding)}
    gangs = [members & {role.name for role in together} for together in gangs_of(roles, gang)]
    if members and members not in gangs:
        names = " and ".join(sorted(members))
        if gang is Gang.ALL:
            yield "application.framework", f"is {framework.value}, but {names} do not start together: one waits (:done)"
        else:
            yield "application.gang", f"is {gang.value}, but with framework={framework.value} {names} start together"
    for role in roles:
        if role.name in members and not role.ports:
            yield f"role {role.name}.ports", f"is 0, but with framework={framework.value} each container needs one"
        if role.name in members and role.on_failure is RoleFailure.RESTART and framework in _RESTARTS_WHOLE:
            problem = f"is restart, but in {framework.value} one process cannot join the others later"
            yield f"role {role.name}.on_failure", f"{problem}; use restart_gang"
