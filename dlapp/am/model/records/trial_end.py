"""End of a trial, as the journal has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from dlapp.am.model.records.fields import JournalFields
from dlapp.value import replace
from dlapp.values.messages import StoredOutput

ENDED_WITH_SWEEP = "killed"
"""State of a trial that ended because the application did; it runs again in an application that continues this one."""


class TrialEnd(JournalFields, kw_only=True):
    """End of a trial: fields of its `dlapp.am.model.trials.TrialRecord` then.

    Args:
        state: a `dlapp.sweep.results.TrialState`, or `ENDED_WITH_SWEEP`.
        committed: its output is committed.
        lost: it failed for a reason other than its program.
    """

    state: str
    ran_s: float
    started_ms: int | None = None
    points: tuple[tuple[float, float], ...] = ()
    reports: int = 0
    problem: str = ""
    stop: str = ""
    message: str = ""
    exit_code: int | None = None
    sources: tuple[str, ...] = ()
    committed: bool = False
    lost: bool = False
    outputs: tuple[StoredOutput, ...] = ()

    def write_fields(self, data: dict[str, Any]) -> None:
        """Add the fields; an output is an array of its fields, as ten thousand trials have one or more."""
        super().write_fields(data)
        if self.outputs:
            data["outputs"] = [[one.name, one.part, one.files, one.size_bytes, one.stray] for one in self.outputs]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the value of a JSON object, as the base class does."""
        from dlapp.sweep.results import finite_number  # few applications need it

        found = super().read({key: value for key, value in data.items() if key not in ("points", "outputs")})
        outputs = tuple(
            StoredOutput(name=str(name), part=str(part), files=int(files), size_bytes=int(size), stray=bool(stray))
            for name, part, files, size, stray in data.get("outputs", ())
        )
        # A metric may be larger than any number of the other fields.
        points = tuple((float(int(step)), finite_number(value)) for step, value in data.get("points", ()))
        return replace(found, points=points, outputs=outputs)
