"""Rules for views: the facts of an engine over what an application's ApplicationMaster has written.

An ApplicationMaster writes its view every few seconds, and may die before it writes the last one. So on every engine:

- The engine decides whether an application has ended. An end that only the view reports is premature.
- If it has ended and the view does not report it, its ApplicationMaster is dead: none of its containers runs any more,
  and it waits for nothing.
"""

from __future__ import annotations

from dlapp.value import Value, replace
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause, FinalStatus, State


class EndFacts(Value, kw_only=True):
    """End of an application, as its engine knows it.

    Args:
        state, final_status, cause, diagnostics: as in `ApplicationView`.
        finished_ms: time of the end [ms since 1970]; None: not known.
    """

    state: State
    final_status: FinalStatus
    cause: Cause | None
    diagnostics: str
    finished_ms: int | None


def not_ended(view: ApplicationView, state: State) -> ApplicationView:
    """Return the view of an application that is in ``state`` and has not ended, whatever the view says of an end."""
    return replace(view, state=state, final_status=FinalStatus.UNDEFINED, cause=None, finished_ms=None)


def ended(view: ApplicationView, end: EndFacts) -> ApplicationView:
    """Return the view of an application that has ended: no container of it runs, and it waits for nothing."""
    containers = tuple(
        one
        if one.phase is Phase.ENDED
        else replace(
            one, phase=Phase.ENDED, finished_ms=end.finished_ms, progress=None, message="ended with its application"
        )
        for one in view.containers
    )
    return replace(
        view,
        state=end.state,
        final_status=end.final_status,
        cause=end.cause,
        phase="",
        diagnostics=end.diagnostics,
        finished_ms=end.finished_ms,
        containers=containers,
        waiting=None,
        lacking=(),
        idle=None,
        links=(),
    )
