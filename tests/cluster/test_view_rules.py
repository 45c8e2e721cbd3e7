"""The facts of an engine over the view of an ApplicationMaster are the same on both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.cluster.local.views import view_of
from dlapp.cluster.yarn.client.rest import KIND, AppReport
from dlapp.cluster.yarn.client.views import AmState, merged
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus, LinkView, State
from dlapp.values.serialization import from_json, to_json
from dlapp.values.waiting import Waiting

APP = ApplicationId.from_text("application_1700000000000_0042")
ENDED_MS = 1_700_000_009_000
VIEW = ApplicationView(
    application_id=APP,
    attempt=1,
    state=State.RUNNING,
    phase="running 1 of 3",
    containers=tuple(
        ContainerView(
            container_id=ContainerId.from_text(f"container_1700000000000_0042_01_{index + 1:06d}"),
            role="main",
            role_index=index,
            index=index,
            phase=phase,
            progress=0.5,
            finished_ms=1_700_000_005_000 if phase is Phase.ENDED else None,
        )
        for index, phase in enumerate((Phase.ENDED, Phase.RUNNING))
    ),
    waiting=Waiting(code="nodes_full", message="waiting: 1 ahead"),
    links=(LinkView(name="main_1", url="http://node:1", container=1),),
)
"""Of an application with an ended container, a running one with a page, and one that waits."""
PREMATURE = replace(
    VIEW, state=State.FINISHED, final_status=FinalStatus.SUCCEEDED, cause=Cause.SUCCEEDED, finished_ms=ENDED_MS
)


def row_of(state: str) -> ApplicationRow:
    texts = ("username", "appname", "outcome", "reason", "summary", "queue", "project", "tags", "waiting", "submitter")
    amounts = ("number", "memory_mib", "vcores", "gcores", "containers", "submitted_ms", "starts", "aftermaths", "hold")
    fields: dict[str, Any] = {
        **dict.fromkeys((*texts, "resumed_from", "again_of", "after"), ""),
        **dict.fromkeys(amounts, 0),
        **dict.fromkeys(("started_ms", "finished_ms", "priority")),
        "id": str(APP),
        "state": state,
        "boot_id": "boot",
        "uid": 0,
    }
    return ApplicationRow(tuple(fields), tuple(fields.values()))


def on_one_machine(directory: Path, view: object, outcome: outcomes.Outcome | None, *, alive: bool) -> ApplicationView:
    """Return the view of the local engine for what an ApplicationMaster and its engine wrote."""
    (directory / "view.json").write_text(json.dumps(view))
    (directory / "am.json").write_text("{}")
    if outcome is not None:
        (directory / "outcome.json").write_text(json.dumps(outcome))
    seen = view_of(row_of("running"), str(directory), "boot", QueueOrder(), alive=alive, has_runner=False)
    return from_json(ApplicationView, seen)


def on_yarn(view: ApplicationView, state: State, final_status: FinalStatus) -> ApplicationView:
    report = AppReport(
        application_id=APP,
        user="tony",
        name="a",
        queue="default",
        state=state,
        final_status=final_status,
        diagnostics="killed by tony, no output kept",
        started_ms=1,
        finished_ms=ENDED_MS if state.ended else 0,
        kind=KIND,
    )
    return merged(report, AmState(view=view))


def ends_of(view: ApplicationView) -> tuple[object, ...]:
    """Return what the rules decide."""
    containers = [
        (container.phase, container.progress, container.finished_ms, container.message) for container in view.containers
    ]
    stale = view.waiting, view.lacking, view.idle, view.links
    return view.state, view.final_status, view.cause, view.finished_ms, containers, stale


def test_of_a_dead_application_master_no_container_runs_and_nothing_waits(tmp_path: Path) -> None:
    """The view has a running container, a page and a wait; then the application is killed."""
    outcome = outcomes.killed("tony", ENDED_MS)
    local = on_one_machine(tmp_path, to_json(VIEW), outcome, alive=False)
    yarn = on_yarn(VIEW, State.KILLED, FinalStatus.KILLED)
    assert ends_of(local) == ends_of(yarn)
    assert ends_of(local) == (
        *(State.KILLED, FinalStatus.KILLED, Cause.KILLED, ENDED_MS),
        [(Phase.ENDED, 0.5, 1_700_000_005_000, ""), (Phase.ENDED, None, ENDED_MS, "ended with its application")],
        (None, (), None, ()),
    )
    assert local.diagnostics == yarn.diagnostics == "killed by tony, no output kept"


def test_an_end_that_only_the_view_reports_is_premature(tmp_path: Path) -> None:
    """The view is FINISHED, the engine has no outcome yet: the application runs."""
    local = on_one_machine(tmp_path, to_json(PREMATURE), None, alive=True)
    yarn = on_yarn(PREMATURE, State.RUNNING, FinalStatus.UNDEFINED)
    assert ends_of(local) == ends_of(yarn)
    assert (local.state, local.final_status, local.cause) == (State.RUNNING, FinalStatus.UNDEFINED, None)
    assert (local.finished_ms, len(local.containers)) == (None, 2)


@pytest.mark.parametrize("outcome", [None, outcomes.killed("tony", ENDED_MS)], ids=["premature end", "killed"])
def test_of_a_view_in_an_unknown_form_only_the_row_counts(tmp_path: Path, outcome: outcomes.Outcome | None) -> None:
    """A later version of dlapp wrote a phase that this one does not know."""
    later = to_json(PREMATURE if outcome is None else VIEW)
    later["containers"][1]["phase"] = "migrating"
    seen = on_one_machine(tmp_path, later, outcome, alive=outcome is None)
    assert seen.containers == ()
    assert seen.state is (State.RUNNING if outcome is None else State.KILLED)
