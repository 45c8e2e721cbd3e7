"""Reason why an application, or some of its containers, cannot start yet: one value, shown everywhere.

An application has one reason to wait at a time. Of several valid reasons the first in the order of `CODES` is shown, so
that the reason is stable. The meaning of a code never changes (docs/why.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dlapp.value import Value, field

NEVER_FITS = "never_fits"
DEPENDENCY = "dependency"
HELD = "held"
QUEUE_LIMIT = "queue_limit"
USER_LIMIT = "user_limit"
AM_LIMIT = "am_limit"
LABEL = "label"
EXCLUDED_NODES = "excluded_nodes"
GPUS_QUARANTINED = "gpus_quarantined"
GPUS_FRAGMENTED = "gpus_fragmented"
GANG_PARTIAL = "gang_partial"
NODES_FULL = "nodes_full"
SERVICE_AWAY = "service_away"
STARTING = "starting"

MIN_SAMPLES = 20
"""Minimum number of applications in the history for an estimate of a start."""
CODES = (
    *(NEVER_FITS, DEPENDENCY, HELD, QUEUE_LIMIT, USER_LIMIT, AM_LIMIT, LABEL, EXCLUDED_NODES, GPUS_QUARANTINED),
    *(GPUS_FRAGMENTED, GANG_PARTIAL, NODES_FULL, SERVICE_AWAY, STARTING),
)
"""All codes, in the order of their choice."""


class Ahead(Value, kw_only=True):
    """Application that holds resources that another one waits for, or is ahead of it.

    Args:
        amounts: its held or requested amounts: ``memory`` [MiB], ``vcores``, ``gcores``.
    """

    id: str
    user: str
    amounts: dict[str, int] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


class Estimate(Value, kw_only=True):
    """Estimated range of an application's start.

    Args:
        earliest_ms, latest_ms: the range [ms since 1970]; None: the history is too short, or too few of the latest
            ranges held.
        coverage: share of the earlier applications that started within the range estimated for them; None: the history
            is too short.
        samples: number of these applications; without a range, of the comparable ones in the history.
    """

    earliest_ms: int | None = None
    latest_ms: int | None = None
    coverage: float | None = None
    samples: int = 0
    unknown: Mapping[str, Any] = field(default_factory=dict)


class Waiting(Value, kw_only=True):
    """Reason for a wait.

    Args:
        code: one of `CODES`; a later version may have more.
        message: one line for the user.
        resource: lacking resource: ``memory``, ``vcores``, ``gcores``, or the name of a service; empty: not a single
            one.
        asked, available: needed and available amount of the resource.
        since_ms: start of the wait [ms since 1970].
        ahead: applications that hold what is lacking, or are ahead of this one, as far as visible to the user.
        change: smallest change with which the application would start now; empty: none was found or searched.
        estimate: None: not requested.
        reserved_ms: latest start, if all running applications use their whole time limit and no other comes first [ms
            since 1970]; None: no reservation, or one without a time.
    """

    code: str
    message: str
    resource: str = ""
    asked: int | None = None
    available: int | None = None
    since_ms: int | None = None
    ahead: tuple[Ahead, ...] = ()
    change: str = ""
    estimate: Estimate | None = None
    reserved_ms: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


class PendingRequest(Value, kw_only=True):
    """Containers of one role that an ApplicationMaster has requested and does not have.

    Args:
        memory_mib, vcores, gcores: amounts of each container.
        nodes, exclude_nodes, node_label: their placement, as in the properties file.
        together: all of these are needed before any of them can work.
        since_ms: start of the wait for them [ms since 1970].
    """

    role: str
    count: int
    memory_mib: int
    vcores: int
    gcores: int = 0
    nodes: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    node_label: str = ""
    together: bool = False
    since_ms: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


def first_of(found: Iterable[Waiting | None]) -> Waiting | None:
    """Return the first reason in the order of `CODES`; None if there is none.

    Of two with the same code the first is returned. A code of a later version comes last.
    """
    order = {code: place for place, code in enumerate(CODES)}
    reasons = [one for one in found if one is not None]
    return min(reasons, key=lambda one: order.get(one.code, len(CODES)), default=None)
