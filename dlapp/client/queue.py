"""Queue of an engine: running applications, then waiting ones in the order of their start."""

from __future__ import annotations

from typing import Any

from dlapp.cluster.engine import Engine
from dlapp.values.serialization import to_json
from dlapp.values.waiting import DEPENDENCY, HELD

_WITHOUT_POSITION = (DEPENDENCY, HELD)


def queue_of(engine: Engine) -> dict[str, Any]:
    """Return all applications of an engine that have not ended, as views with queue position and expected start.

    Running ones first, then those with a queue position, then the others.
    """
    facts = engine.queue_facts()
    positions = {application_id: position for position, application_id in enumerate(facts.order, start=1)}
    found = []
    for view in (one.json for one in engine.views(everybody=True, limit=0)):
        waits = view["state"] != "RUNNING" or code_of(view) in _WITHOUT_POSITION
        position = positions.get(view["application_id"]) if waits else None
        estimate = facts.estimates.get(view["application_id"]) if position is not None else None
        found.append({**view, "place": position, "start": None if estimate is None else to_json(estimate)})
    return {"applications": sorted(found, key=_rank), "shares": [to_json(one) for one in facts.shares]}


def code_of(view: Any) -> str:
    """Return why the application of a view waits; empty if unknown."""
    return str((view.get("waiting") or {}).get("code", ""))


def _rank(view: dict[str, Any]) -> tuple[int, int, int]:
    if view["place"] is not None:
        return 1, view["place"], 0
    is_last = code_of(view) in _WITHOUT_POSITION or view["state"] != "RUNNING"
    return 2 if is_last else 0, int(view["started_ms"] or 0), int(view["submitted_ms"])
