"""DMLC's parameter server (ps-lite), as MXNet and BytePS use it: roles scheduler, server and worker.

They find each other through the scheduler. ps-lite numbers workers and servers itself; BytePS needs the worker's
number. ps-lite joins address and port without brackets, so it needs IPv4.

Source: dmlc/ps-lite, docs/env.md and src/van.cc; bytedance/byteps, docs/running.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dlapp.frameworks.participant import Participant
from dlapp.values.roster import Member
from dlapp.values.spec import RoleSpec

SERVICES = ()
ROLES = ("scheduler", "server", "worker")


def success(_roles: Sequence[RoleSpec]) -> tuple[str, ...]:
    """Return the roles that decide by default: all that are not services."""
    return ()


def problems(roles: Sequence[RoleSpec], _deciding: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield configurations in which ps-lite would wait forever."""
    by_name = {role.name: role for role in roles}
    for name in ROLES:
        if name not in by_name:
            yield "application.framework", f"is dmlc, and there is no role {name}: add [role {name}]"
    if "scheduler" in by_name and (count := by_name["scheduler"].instances) > 1:
        yield "role scheduler.instances", f"is {count}, ps-lite has one scheduler"
    for role in roles:
        if role.name not in ROLES and not role.service:
            yield f"role {role.name}", f"is no role of ps-lite ({', '.join(ROLES)}); another role needs service=true"


def takes_part(role: str, _deciding: Collection[str]) -> bool:
    """Return whether ps-lite uses a role."""
    return role in ROLES


def conflict(member: Member) -> str:
    """Return what to check if two programs listen on the port of a container."""
    name, variable = (
        ("the scheduler", "DMLC_ROLE") if member.role == "scheduler" else (f"a {member.role}'s port", "PORT")
    )
    return f"two programs took {name}: check {variable}"


def environment(one: Participant) -> dict[str, str]:
    """Return the variables of one container."""
    roster, member = one.roster, one.member
    scheduler = roster.of_role("scheduler")[0]
    found = {
        "DMLC_ROLE": member.role,
        "DMLC_PS_ROOT_URI": scheduler.address,
        "DMLC_PS_ROOT_PORT": str(scheduler.ports[0]),
        "DMLC_NUM_WORKER": str(len(roster.of_role("worker"))),
        "DMLC_NUM_SERVER": str(len(roster.of_role("server"))),
        "DMLC_NODE_HOST": member.address,
    }
    if member.role == "worker":
        found["DMLC_WORKER_ID"] = str(member.role_index)
    if member.role != "scheduler":
        found["PORT"] = str(member.ports[0])  # otherwise ps-lite uses any free port
    return found
