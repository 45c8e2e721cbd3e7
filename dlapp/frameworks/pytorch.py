"""PyTorch, one process per container: what ``torch.distributed.init_process_group`` reads (``env://``).

PyTorch considers each container a separate host, even if two share one: LOCAL_RANK is the number of its first GPU among
the visible ones.

NODE_RANK is for PyTorch Lightning, which starts the processes of a host itself and does not read RANK.

Source: pytorch.org/docs/stable/distributed.html, Environment variable initialization; torchrun, Environment Variables;
lightning.fabric.plugins.environments.LightningEnvironment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dlapp.frameworks import Participant
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


def environment(one: Participant) -> dict[str, str]:
    """Return the variables of one rank."""
    ranks = one.roster.of_role(one.member.role)
    return {
        "MASTER_ADDR": ranks[0].address,  # without brackets: a host, not a part of a URL
        "MASTER_PORT": str(ranks[0].ports[0]),
        "RANK": str(one.member.role_index),
        "NODE_RANK": str(one.member.role_index),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "OMP_NUM_THREADS": str(one.resources.vcores),
    }
