"""Input in a live workspace, planned and added as the client and the task of a dlapp-shell do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlapp.storage.fetch_plan import FetchPlan
from dlapp.storage.inputs import plan_input
from dlapp.task.data.live_input import add_input, missing_input, target_path
from dlapp.values.spec import InputSpec


def fetch_into_workspace(
    inputs: Sequence[InputSpec], workspace: str, private: str, note: Callable[[str], None]
) -> list[str]:
    """Add the missing input; return the relative paths that were added."""
    planned = [
        plan_input(one, target_path(one, workspace), 0, 1, may_be_there=True)
        for one in missing_input(inputs, workspace, note)
    ]
    return [path for one in planned for path in add_input(one, workspace, private, note, FetchPlan.fetch)[0]]
