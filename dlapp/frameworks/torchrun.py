"""torchrun: one agent of PyTorch per container, which starts a process for each GPU.

torchrun reads each of its options also from a variable: ``PET_`` and the option's name. So a script may call ``torchrun
train.py``. The variables without ``PET_`` are for scripts that call another launcher, such as PyTorch Lightning's
Trainer; torchrun sets its own for the processes that it starts. With one process a container is also a rank. With more
it is not: LOCAL_RANK would tell Lightning that somebody else has started its processes. A script that ends in ``.py``
is run by torchrun itself (`COMMAND`). Restarts are dlapp's: a torchrun that has lost a process, or another agent, ends.

Source: torch/distributed/run.py, argparse_util.py, elastic/rendezvous/static_tcp_rendezvous.py (1.13 to 2.9).
"""

from __future__ import annotations

from collections.abc import Mapping

from dlapp.frameworks.participant import Participant, bracketed
from dlapp.frameworks.pytorch import SERVICES, as_rank, conflict, for_launchers, problems, success, takes_part
from dlapp.values.spec import Resources

__all__ = ("COMMAND", "SERVICES", "conflict", "environment", "problems", "processes", "success", "takes_part")

COMMAND = ("python3", "-m", "torch.distributed.run")
"""The same as torchrun, by the Python of PATH: an image may have PyTorch for another one than torchrun's."""
_PROCESSES = "PET_NPROC_PER_NODE"


def environment(one: Participant) -> dict[str, str]:
    """Return torchrun's options."""
    nodes = one.roster.of_role(one.member.role)
    found = {
        "PET_NNODES": str(len(nodes)),
        _PROCESSES: one.user.get(_PROCESSES) or str(max(1, one.resources.gcores)),
        "PET_NODE_RANK": str(one.member.role_index),
        "PET_MASTER_ADDR": bracketed(nodes[0].address),  # torchrun appends the port
        "PET_MASTER_PORT": str(nodes[0].ports[0]),
        "PET_RDZV_BACKEND": "static",
        "PET_MAX_RESTARTS": "0",
        # For a script that asks for the rendezvous c10d: torchrun compares the name of its host with the address of the
        # first container, and where it has several addresses no node would begin. Static rendezvous does not read it.
        "PET_RDZV_CONF": f"is_host={int(one.member.role_index == 0)}",
    } | for_launchers(one)
    return found | as_rank(one) if processes(one.resources, one.user) == 1 else found


def processes(resources: Resources, user: Mapping[str, str]) -> int:
    """Return the number of processes of a container; 0: only torchrun knows it, as with "auto" or "gpu"."""
    text = user.get(_PROCESSES) or str(max(1, resources.gcores))
    return int(text) if text.isdecimal() else 0
