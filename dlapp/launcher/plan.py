"""Plan of a submission: everything that ``dlapp-launcher`` does except submitting, and a forecast.

All errors come in one answer, as for a submission.
"""

from __future__ import annotations

import os
from typing import Any

from dlapp.application.description import ResolvedApplication, Source, describe
from dlapp.application.overrides import NO_OVERRIDES, Overrides
from dlapp.cluster.engine import Engine, PlanFacts
from dlapp.cluster.reasons.facts import NAMES, total
from dlapp.config import Config
from dlapp.launcher.submit import LeaveOut, NetworkProblem, ReadDockerPolicy, Resolve, check
from dlapp.launcher.workspace.scan import Scan
from dlapp.storage.inputs import plan_input
from dlapp.storage.open import SourceFiles
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec

SHOWN_ENTRIES = 10


def plan_submission(
    source: Source,
    config: Config,
    engine: Engine,
    *,
    overrides: Overrides = NO_OVERRIDES,
    leave_out: LeaveOut = lambda spec: (),
    network_problem: NetworkProblem = lambda spec: "",
    resolve: Resolve = str,
    docker_policy: ReadDockerPolicy = lambda: None,
) -> dict[str, Any]:
    """Return what a submission would do and encounter now, in the form of docs/json.md. Nothing is submitted or
    written.

    Args:
        source: the properties file, or a spec instead of one.
        config: the configuration.
        engine: where the application would run.
        overrides: values that override the file's.
        leave_out: returns gitignore patterns of files not to pack, in addition to the user's.
        network_problem: returns why the containers cannot have their network.
        resolve: returns the complete id for another name of an application.
        docker_policy: returns what the operator of the machine that runs the containers allows, as far as known here.

    Raises:
        FileRefused: the file has errors, input is missing, output cannot be written.
        RequestTooLarge: the request can never be met; the message has the limit.
        UsageError: the workspace is too large.
        Unreachable: the engine does not answer.
    """
    application, scan, _, notes = check(
        describe(source, config, engine.info(), overrides),
        config,
        engine,
        leave_out=leave_out,
        network_problem=network_problem,
        resolve=resolve,
        docker_policy=docker_policy,
    )
    spec = application.spec
    found = engine.plan(spec)
    gcores = spec.total()[2]
    longest_s = _longest_s(spec)
    hours = None if longest_s is None else gcores * longest_s / 3600
    return {
        "spec": to_json(spec),
        "workspace": _workspace(scan),
        "inputs": _inputs(application),
        "sweep": _sweep(spec),
        "asked": total(found.facts.asks),
        "limits": _limits(found),
        "nodes": {role: list(nodes) for role, nodes in found.nodes.items()},
        "waiting": to_json(found.waiting),
        "estimate": to_json(found.estimate),
        "gpu_hours_most": 0.0 if not gcores else hours,
        "notes": notes,
    }


def _workspace(scan: Scan) -> dict[str, Any] | None:
    if not scan.root:
        return None
    return {
        "path": scan.root,
        "size_bytes": scan.size_bytes,
        "entries": len(scan.entries),
        "largest": [{"name": name, "size_bytes": size} for name, size in scan.largest(SHOWN_ENTRIES)],
        "excluded": list(scan.excluded),
        "left_out": dict(scan.left_out),
    }


def _longest_s(spec: AppSpec) -> float | None:
    """Return the maximum run time of the containers [s], without their starts; None if there is no limit."""
    of_trials = spec.sweep.longest_s(spec.containers) if spec.sweep is not None else None
    return min((one for one in (spec.max_runtime_s, of_trials) if one is not None), default=None)


def _sweep(spec: AppSpec) -> dict[str, Any] | None:
    sweep = spec.sweep
    if sweep is None:
        return None
    return {
        "trials": sweep.trials,
        "concurrency": sweep.concurrency_of(spec.containers),
        "longest_s": sweep.longest_s(spec.containers),
    }


def _inputs(application: ResolvedApplication) -> list[dict[str, Any]]:
    """Return number and size of the files of each input, for all containers together if they share them."""
    spec, found = application.spec, []
    for one in spec.inputs:
        row: dict[str, Any] = {"name": one.name, "input_path": one.input_path, "mode": one.mode}
        if one.feed is not None:
            nodes = [node for _, node in SourceFiles(one.sources, application.hdfs, may_be_missing=one.optional).find()]
            row |= {"files": len(nodes), "size_bytes": sum(node.size_bytes for node in nodes)}
            row |= {"epochs": one.feed.epochs, "buffer_bytes": one.feed.buffer_bytes}
        elif not one.mount:
            into = os.path.join(spec.workspace or "/", one.input_path)
            planned = plan_input(one, into, 0, 1, hdfs=application.hdfs, may_be_there=True)
            row |= planned.plan.totals._asdict()
        found.append(row)
    return found


def _limits(found: PlanFacts) -> list[dict[str, Any]]:
    """Return for each limit and amount the application's request, and the limit."""
    facts, asked = found.facts, total(found.facts.asks)
    rows: list[dict[str, Any]] = []
    for name in NAMES:
        most = max((getattr(one, _FIELDS[name]) for one in facts.asks), default=0)
        if name in facts.largest:
            rows.append(_row("one container", name, most, facts.largest[name], facts.largest[name]))
        nodes = [one.healthy() for one in facts.nodes or () if name in one.total]
        if nodes:
            there, free = sum(one.total[name] for one in nodes), sum(max(0, one.free.get(name, 0)) for one in nodes)
            what = "this machine" if facts.one_machine else "all nodes"
            rows.append(_row(what, name, asked[name], there, free))
    for limit in facts.limits:
        for name in NAMES:
            if name in limit.most:
                left = limit.most[name] - limit.used.get(name, 0)
                rows.append(_row(limit.name, name, asked[name], limit.most[name], max(0, left), limit.setting))
    return rows


_FIELDS = {"memory": "memory_mib", "vcores": "vcores", "gcores": "gcores"}


def _row(limit: str, resource: str, asked: int, most: int, available: int, setting: str = "") -> dict[str, Any]:
    return {
        "limit": limit,
        "resource": resource,
        "asked": asked,
        "most": most,
        "available": available,
        "setting": setting,
    }
