"""Reason why an application, or some of its containers, cannot start yet: one value, shown everywhere.

An application waits for one reason at a time. Of several that hold the first in the order of `CODES` is shown, so that
the reason does not change with each look. What a code means never changes (docs/why.md).
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

LEAST_SAMPLES = 20
"""So many applications must have waited before, for an estimate of a start."""
CODES = (
    *(NEVER_FITS, DEPENDENCY, HELD, QUEUE_LIMIT, USER_LIMIT, AM_LIMIT, LABEL, EXCLUDED_NODES, GPUS_QUARANTINED),
    *(GPUS_FRAGMENTED, GANG_PARTIAL, NODES_FULL, SERVICE_AWAY, STARTING),
)
"""All codes, in the order in which the first that holds is chosen."""


class Ahead(Value, kw_only=True):
    """An application that has what another one waits for, or comes before it.

    Args:
        amounts: what it has, or asks for: ``memory`` [MiB], ``vcores``, ``gcores``.
    """

    id: str
    user: str
    amounts: dict[str, int] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


class Estimate(Value, kw_only=True):
    """Range in which an application is expected to start.

    Args:
        earliest_ms, latest_ms: the range [ms since 1970]; None: the history is too short to tell.
        coverage: share of the earlier applications that started within the range that they would have been given; None:
            the history is too short.
        samples: number of these.
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
        resource: what is lacking: ``memory``, ``vcores``, ``gcores``, or the name of a service; empty: no single one.
        asked, available: of the resource, the amount that is needed and the amount that there is.
        since_ms: when the wait began [ms since 1970].
        ahead: applications that have what is lacking, or come before this one, as far as the user may see them.
        change: the smallest change of the application with which it would start now; empty: none was found, or was not
            looked for.
        estimate: None: it was not asked for.
        reserved_ms: when it can start at the latest, if all that runs takes as long as it may and nothing comes before
            it [ms since 1970]; None: it has no reservation, or that has no time.
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


class ContainerAsk(Value, kw_only=True):
    """Containers of one role that an ApplicationMaster has asked for and does not have.

    Args:
        memory_mib, vcores, gcores: of each container.
        nodes, exclude_nodes, node_label: where they may be placed, as in the properties file.
        together: all of these are needed before any of them can work.
        since_ms: when the wait for them began [ms since 1970].
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
    """Return the reason that comes first in the order of `CODES`; None if there is none.

    Of two with the same code the first is returned. A code of a later version comes last.
    """
    order = {code: place for place, code in enumerate(CODES)}
    reasons = [one for one in found if one is not None]
    return min(reasons, key=lambda one: order.get(one.code, len(CODES)), default=None)
