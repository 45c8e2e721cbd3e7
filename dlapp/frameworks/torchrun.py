"""torchrun: one agent of PyTorch per container, which starts a process for each GPU.

torchrun reads each of its options from a variable, too: ``PET_`` and the option's name. So a script may call
``torchrun train.py``. A script that ends in ``.py`` is run by torchrun itself (`COMMAND`). Restarts are dlapp's: a
torchrun that has lost a process, or another agent, ends.

Source: torch/distributed/run.py, argparse_util.py, elastic/rendezvous/static_tcp_rendezvous.py (1.13 to 2.9).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from dlapp.frameworks import bracketed, pytorch
from dlapp.values.roster import Member, Roster
from dlapp.values.spec import Resources, RoleSpec

SERVICES = pytorch.SERVICES
COMMAND = ("python3", "-m", "torch.distributed.run")
"""The same as torchrun, by the Python of PATH: an image may have PyTorch for another one than torchrun's."""
_PROCESSES = "PET_NPROC_PER_NODE"


def success(roles: Sequence[RoleSpec]) -> tuple[str, ...]:
    """Return the roles that decide by default."""
    return pytorch.success(roles)


def problems(roles: Sequence[RoleSpec], deciding: Collection[str]) -> Iterator[tuple[str, str]]:
    """Find what leaves it open which containers are the nodes."""
    return pytorch.problems(roles, deciding)


def takes_part(role: str, deciding: Collection[str]) -> bool:
    """Return whether the instances of a role are nodes of torchrun."""
    return pytorch.takes_part(role, deciding)


def environment(roster: Roster, member: Member, resources: Resources, user: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's options.

    Args:
        roster: of the application.
        member: the container.
        resources: its amounts.
        user: variables of the properties file.
    """
    nodes = roster.of_role(member.role)
    processes = user.get(_PROCESSES) or str(max(1, resources.gcores))
    found = {
        "PET_NNODES": str(len(nodes)),
        _PROCESSES: processes,
        "PET_NODE_RANK": str(member.role_index),
        "PET_MASTER_ADDR": bracketed(nodes[0].address),  # torchrun puts the port after it
        "PET_MASTER_PORT": str(nodes[0].ports[0]),
        "PET_RDZV_BACKEND": "static",
        "PET_MAX_RESTARTS": "0",
    }
    if processes.isdecimal() and int(processes):  # of "auto" or "gpu" only torchrun knows the number
        found["OMP_NUM_THREADS"] = str(max(1, resources.vcores // int(processes)))
    return found
