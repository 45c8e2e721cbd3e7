"""TensorFlow: ``TF_CONFIG``, for MultiWorkerMirroredStrategy and ParameterServerStrategy.

The roles have the names of TensorFlow's task types. An evaluator is told of the cluster but is not part of it: it reads
checkpoints, and no task connects to it.

Source: tensorflow/python/distribute, tfconfig_cluster_resolver.py and multi_worker_util.py; the guide of Google's AI
Platform on TF_CONFIG for the evaluator.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from dlapp.frameworks.participant import Participant, endpoint
from dlapp.values.roster import Member
from dlapp.values.spec import RoleSpec

CLUSTER = ("chief", "worker", "ps")
EVALUATOR = "evaluator"
SERVICES = ("ps", EVALUATOR)
"""Roles that serve until they are ended."""


def success(roles: Sequence[RoleSpec]) -> tuple[str, ...]:
    """Return the roles that decide by default: the chief, which does not wait for workers, or else the workers."""
    names = {role.name for role in roles}
    return next(((name,) for name in ("chief", "worker") if name in names), ())


def problems(roles: Sequence[RoleSpec], _deciding: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield configurations that TensorFlow would refuse, or in which it would wait forever."""
    by_name = {role.name: role for role in roles}
    for name in ("chief", EVALUATOR):
        if name in by_name and by_name[name].instances > 1:
            yield f"role {name}.instances", f"is {by_name[name].instances}, TensorFlow has one {name} at most"
    if "ps" in by_name and "worker" not in by_name:
        yield "role ps", "serves workers, and there is no role worker"
    if not by_name.keys() & {"chief", "worker"}:
        yield "application.framework", "is tensorflow, and there is neither a role chief nor a role worker"
    for role in roles:
        if role.name not in (*CLUSTER, EVALUATOR) and not role.service:
            known = ", ".join((*CLUSTER, EVALUATOR))
            yield f"role {role.name}", f"is no task type of TensorFlow ({known}); another role needs service=true"


def takes_part(role: str, _deciding: Collection[str]) -> bool:
    """Return whether a role is one of TensorFlow's task types."""
    return role in (*CLUSTER, EVALUATOR)


def conflict(member: Member) -> str:
    """Return what to check if two programs listen on the port of a task."""
    return f"two programs took task {member.role} {member.role_index}: check TF_CONFIG"


def environment(one: Participant) -> dict[str, str]:
    """Return the variables of one container."""
    by_role = {role: one.roster.of_role(role) for role in CLUSTER}
    cluster = {role: list(map(endpoint, members)) for role, members in by_role.items() if members}
    task = {"type": one.member.role, "index": one.member.role_index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
