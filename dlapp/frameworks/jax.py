"""JAX, one process per container, which uses all GPUs of its container.

JAX has a variable for the coordinator's address alone; `dlapp.runtime.jax_cluster` gives it the rest from the others.
The containers have the variables of PyTorch, too.

Source: jax/_src/distributed.py.
"""

from __future__ import annotations

from dlapp.frameworks.pytorch import SERVICES, environment, problems, success, takes_part
from dlapp.values.roster import Member

__all__ = ("SERVICES", "conflict", "environment", "problems", "success", "takes_part")


def conflict(member: Member) -> str:
    """Return what to check if two programs listen on the port of a process: the first one has the coordinator's."""
    return "two programs took process 0: check JAX_PROCESS_ID" if member.role_index == 0 else ""
