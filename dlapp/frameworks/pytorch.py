"""PyTorch, one process per container: what ``torch.distributed.init_process_group`` reads (``env://``).

PyTorch considers each container a separate host, even if two share one: LOCAL_RANK is the number of its first GPU among
the visible ones.

The variables of other programs that find or start the processes of a training are there as well (`for_launchers`), as
far as they harm nobody. torchrun's own (``PET_``) would make ``torchrun --standalone`` wait for other containers.

Source: pytorch.org/docs/stable/distributed.html, Environment variable initialization; torchrun, Environment Variables;
lightning.fabric.plugins.environments.LightningEnvironment; jax/_src/distributed.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dlapp.frameworks.participant import Participant, endpoint
from dlapp.values.roster import Member
from dlapp.values.spec import RoleSpec

SERVICES = ()


def success(_roles: Sequence[RoleSpec]) -> tuple[str, ...]:
    """Return the roles that decide by default: all that are not services."""
    return ()


def problems(roles: Sequence[RoleSpec], deciding: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield settings that leave open which containers are the ranks."""
    names = [role.name for role in roles if role.name in deciding]
    if len(names) > 1:
        problem = f"the processes of one role are its ranks, and {' and '.join(names)} decide"
        yield "application.success", f"{problem}; name the one that trains (success=ROLE), or make the others services"


def takes_part(role: str, deciding: Collection[str]) -> bool:
    """Return whether the instances of a role are ranks."""
    return role in deciding


def conflict(member: Member) -> str:
    """Return what to check if two programs listen on the port of a rank: the first one has MASTER_PORT."""
    return "two programs took rank 0: check RANK/NODE_RANK" if member.role_index == 0 else ""


def environment(one: Participant) -> dict[str, str]:
    """Return the variables of one rank."""
    return for_launchers(one) | as_rank(one)


def as_rank(one: Participant) -> dict[str, str]:
    """Return the variables of a container that is one rank."""
    return {
        "RANK": str(one.member.role_index),
        "WORLD_SIZE": str(len(one.roster.of_role(one.member.role))),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def for_launchers(one: Participant) -> dict[str, str]:
    """Return the variables for which a container is a host, whatever processes it has.

    Lightning starts the processes of a host itself, and reads NODE_RANK or GROUP_RANK, and not RANK. JAX has one
    process in each container.
    """
    ranks, number = one.roster.of_role(one.member.role), str(one.member.role_index)
    return {
        "MASTER_ADDR": ranks[0].address,  # without brackets: a host, not a part of a URL
        "MASTER_PORT": str(ranks[0].ports[0]),
        "NODE_RANK": number,
        "GROUP_RANK": number,
        "JAX_COORDINATOR_ADDRESS": endpoint(ranks[0]),
        "JAX_NUM_PROCESSES": str(len(ranks)),
        "JAX_PROCESS_ID": number,
    }
