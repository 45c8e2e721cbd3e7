"""Results of the checks of `make test-gpu` as values: verdicts, the time budget, lines, JSON and Markdown.

The file of results is one object: ``version`` (1), ``commit``, ``began_ms`` (since 1970), ``seconds``, ``limit_s``,
``stub`` (true: the stub of NVML answered), ``machine`` (facts, as the check B01 recorded them), and ``checks``: of each
``id``, ``name``, ``verdict``, ``found`` (one line), ``seconds`` and ``values`` (numbers and names that it recorded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.gpu_run.workplace import Workplace

OK, FAIL, SKIP, NOTE = "ok", "FAIL", "skip", "note"
VERSION = 1
CHECKS_S = 330.0
"""Time limit of all checks but the last [s]; with the last one and the start the run has six minutes."""
MAX_FOUND = 300
"""Characters of a line on what a check found; the whole text is in the JSON."""


class Result(NamedTuple):
    """Result of a check.

    Args:
        verdict: `OK`, `FAIL` (a fault of dlapp, or of the machine), `SKIP` (it cannot run here) or `NOTE` (it records).
        found: one line.
        values: for the JSON.
    """

    verdict: str
    found: str
    values: Mapping[str, Any] = MappingProxyType({})


class Failed(Exception):
    """Fault that a check has found; the text is its line."""

    def __init__(self, text: str, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.values = dict(values or {})


class Skipped(Exception):
    """Lack of what a check needs; the text is the reason."""


class Check(NamedTuple):
    """One check.

    Args:
        id: number in the list of checks, ``B07``.
        estimate_s: what it usually takes; it is not begun with less time left [s].
        limit_s: after which it is ended, and has failed [s].
        run: returns the result; may raise `Failed` and `Skipped`.
        needs_cuda: it runs a CUDA program, and is skipped with the stub of NVML.
    """

    id: str
    name: str
    run: Callable[[Workplace], Result]
    estimate_s: float
    limit_s: float
    needs_cuda: bool = False


class Entry(NamedTuple):
    """Result of a check with the time that it took."""

    check: Check
    result: Result
    seconds: float

    @property
    def line(self) -> str:
        """Return the line that is printed."""
        found = " ".join(self.result.found.split())
        shown = found if len(found) <= MAX_FOUND else f"{found[: MAX_FOUND - 2]} …"
        return f"{self.result.verdict:<4}  {self.check.id:<4}  {self.check.name}: {shown} ({self.seconds:.1f} s)"


class Budget:
    """Time of the run.

    Args:
        limit_s: of all checks but the last.
        clock: the time [s, monotonic].
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s, self._clock, self._began_s = limit_s, clock, clock()

    @property
    def passed_s(self) -> float:
        """Return how long the run has taken [s]."""
        return self._clock() - self._began_s

    def allowed_s(self, check: Check) -> float:
        """Return how long a check may take [s].

        Raises:
            Skipped: too little time is left for it.
        """
        left_s = self.limit_s - self.passed_s
        if left_s < check.estimate_s:
            raise Skipped(f"it takes {check.estimate_s:.0f} s, {max(left_s, 0):.0f} of {self.limit_s:.0f} s are left")
        return round(min(check.limit_s, left_s), 1)


def without_cuda(check: Check, why: str) -> Result | None:
    """Return the result of a check that cannot run because there is no CUDA; None: it can.

    Args:
        check: the check.
        why: why there is no CUDA; empty: there is.
    """
    return Result(SKIP, f"no CUDA: {why}") if why and check.needs_cuda else None


def exit_code(entries: Iterable[Entry]) -> int:
    """Return 1 if a check has failed, else 0."""
    return int(any(entry.result.verdict == FAIL for entry in entries))


def summary(entries: Sequence[Entry]) -> str:
    """Return the last line: how many checks have each verdict."""
    counts = {verdict: sum(entry.result.verdict == verdict for entry in entries) for verdict in (OK, NOTE, SKIP, FAIL)}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def results_json(entries: Sequence[Entry], **facts: Any) -> dict[str, Any]:
    """Return the file of results; ``facts`` are its other fields."""
    return {
        "version": VERSION,
        **facts,
        "checks": [
            {
                "id": entry.check.id,
                "name": entry.check.name,
                "verdict": entry.result.verdict,
                "found": entry.result.found,
                "seconds": round(entry.seconds, 2),
                "values": dict(entry.result.values),
            }
            for entry in entries
        ],
    }


def results_table(entries: Sequence[Entry], title: str) -> str:
    """Return the results as a table of Markdown, for docs/figures.md."""
    rows = ["| check | | found | s |", "|---|---|---|---|"]
    for entry in entries:
        found = " ".join(entry.result.found.split()).replace("|", "\\|")
        rows.append(
            f"| {entry.check.id} {entry.check.name} | {entry.result.verdict} | {found[:MAX_FOUND]} "
            f"| {entry.seconds:.1f} |"
        )
    return "\n".join([title, "", *rows, ""])
