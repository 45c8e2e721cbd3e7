"""The journal: the state that a next attempt needs, as lines of JSON, and its replay.

Every record has ``kind`` and ``t`` (ms since 1970). A reader ignores unknown kinds and fields, and lines that are not a
JSON object: a crash may truncate one. Counts are absolute, so reading a record twice does no harm.

    begin    attempt, started_ms, version,     an attempt registered, in this boot of the machine (empty: containers
             boot                                  outlive it)
    start    after, held                       what is still waited for before containers are requested
    grant    container, request_id, node, log_url
    assign   container, index, tries, host,    an index was bound to a container; on record before its payload starts
             generation, spent                     (what the containers before have cost)
    run      container, generation             its payload has begun
    result   container, result, generation     its task reported how it ended
    end      container, status, diagnostics    the engine reported its end
    free     index, user_faults, node_faults   the index is no longer bound, or no longer given up, and waits
    faults   index, user_faults, node_faults   so many of its ends count
    give_up  index, user_faults, node_faults   it is not tried again; if it decides, with its failure in ``why``
    wait     index, service, since_ms          it waits for this service (empty: for none), and for which since when
    gate     role, open, generation,           of the gang of this role and those behind it in the spec; on the disk
             checkpoint, after, restarts,      before a payload may start, or is stopped for it; with the checkpoint
             node_faults                       of the generation, once it is chosen, the latest restarts, and how many
                                               generations failed for reasons other than a program
    trial    number, try, in, index,           a trial was assigned to a container, and to which; with the parameters
             parameters                        that Optuna chose, then on the disk before the container gets them
    trial_end  number, try, state, ...         it has ended (`dlapp.am.model.trials.end_fields`); its container keeps
                                               the result until this is on record
    trial_back  number, user_faults,           it waits again
             node_faults
    trial_committed  number                    its output has been committed by itself
    taken    of                                the trials that had ended in this other application were taken over
    rung     trial, rung, step, value,         early stopping has compared a trial, and stops it or not
             cutoff, stops                     (`dlapp.sweep.asha.RungDecision`)
    soft     by, cause, ends_ms                a soft stop began
    ending   ending, how                       how it ends is decided
    settled  ending, how, outputs              the outputs are where they belong
    finish                                     the end was reported to the engine
    gone     containers                        these have ended; what else was known of them was left out
                                               (`dlapp.am.model.journal_compaction`)

Only ``start``, ``gate``, ``soft`` and ``ending`` must be durable before the AM acts on them, and ``assign`` if the
engine may not know a live container. The others add to what cannot be lost: the engine's list of live containers, and
the tasks, which report what they run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dlapp.am.model.events import ApplicationEnd, Settlement
from dlapp.am.model.journal_compaction import check_number, containers_of
from dlapp.cluster.engine import ContainerEnd, Grant
from dlapp.errors import UsageError
from dlapp.value import Record, field
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Fault, TaskResult
from dlapp.values.report import Cause, FinalStatus, OutputView, RestartView
from dlapp.values.serialization import from_json
from dlapp.values.spec import Resources
from dlapp.values.start_conditions import After, read_after
from dlapp.values.usage import Receipt

VERSION = 1
_LOST = -100
"""YARN's exit status of a container that was lost with its node (ContainerExitStatus.ABORTED)."""


def line(record: dict[str, Any]) -> str:
    """Return the line of a record, without its newline."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of lines; skip what is not a JSON object."""
    for text in lines:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def ending_record(ending: ApplicationEnd, how: Settlement) -> dict[str, Any]:
    """Return the fields of a record ``ending``, which a record ``settled`` has, too; a failed commit changes them."""
    return {"ending": [ending.final_status.value, ending.cause.value, ending.diagnostics], "how": how.value}


class RecoveredContainer:
    """A container of an earlier attempt."""

    def __init__(self, grant: Grant, granted_ms: int) -> None:
        self.grant, self.started_ms = grant, granted_ms
        self.host = grant.node
        self.index: int | None = None
        self.try_number = self.generation = 0
        self.ran = False
        self.result: TaskResult | None = None
        self.end: ContainerEnd | None = None
        self.finished_ms: int | None = None


class RecoveredGate(NamedTuple):
    """Gate of a gang: whether it was open, its generation, the checkpoint that the generation starts from, the causes
    of its restarts, and how many generations failed for reasons other than a program."""

    open: bool
    generation: int = 0
    checkpoint: int | None = None
    checkpoints_after: int = 0
    restarts: tuple[RestartView, ...] = ()
    node_faults: int = 0


class RecoveredWait(Record):
    """Waits of an index for services.

    Attributes:
        service: the service that it waits for; empty: none.
        since_ms: service -> when it first waited for it since its last good run [ms since 1970].
        good_since_ms: when it was bound to a container, or last waited [ms since 1970].
    """

    service: str = ""
    since_ms: dict[str, int] = field(default_factory=dict)
    good_since_ms: int = 0


class RecoveredTrial(Record):
    """Trial of a sweep.

    Attributes:
        tries, holder, index: number of its starts, its last container, and that container's CONTAINER_INDEX.
        runs: it runs there, as far as known.
        end: record of its end; None: it has not ended.
        parameters: the values that Optuna chose; None: none chosen yet.
    """

    tries: int = 0
    holder: ContainerId | None = None
    index: int | None = None
    user_faults: int = 0
    node_faults: int = 0
    runs: bool = False
    end: dict[str, Any] | None = None
    parameters: dict[str, str] | None = None


class RecoveredState:
    """State that the next attempt recovers from the journals of earlier ones.

    Attributes:
        bound: index -> the container that it is bound to.
        last: index -> the container that it was last bound to, even if it is no longer bound.
        given_up: index -> the failure by which a deciding index was given up; empty for the others.
        waits: index -> its waits for services.
        spent: index -> cost of its containers before the last one.
        gates: first role of a gang -> its gate.
        changes: role -> differences between what was requested and what its containers got.
        start: what was still awaited before containers are requested (ends of other applications, a release), and since
            when no more than that [ms since 1970]; None: nothing had been met.
        soft: who requested a soft stop, its cause, and the end of its grace time [ms since 1970].
        ending: the decided end, if any; the outputs may be partly settled.
        outputs: results of the outputs, if they were settled.
        gone: ended containers of which nothing else is known.
        boot: boot id of the machine during the last attempt.
        trials: trials of a sweep, by number; `rungs`: the records of early stopping; `has_taken_over`: includes the
            trials of the sweep that this one continues.
    """

    def __init__(self) -> None:
        self.trials: dict[int, RecoveredTrial] = {}
        self.rungs: list[dict[str, Any]] = []
        self.has_taken_over = False
        self.started_ms: int | None = None
        self.containers: dict[ContainerId, RecoveredContainer] = {}
        self.bound: dict[int, ContainerId] = {}
        self.last: dict[int, ContainerId] = {}
        self.faults: dict[int, tuple[int, int]] = {}
        self.tries: dict[int, int] = {}
        self.given_up: dict[int, str] = {}
        self.waits: dict[int, RecoveredWait] = {}
        self.spent: dict[int, Receipt] = {}
        self.gates: dict[str, RecoveredGate] = {}
        self.changes: dict[str, str] = {}
        self.start: tuple[tuple[After, ...], bool, int] | None = None
        self.soft: tuple[str, Cause, int] | None = None
        self.ending: tuple[ApplicationEnd, Settlement] | None = None
        self.outputs: tuple[OutputView, ...] | None = None
        self.finished = False
        self.gone: set[ContainerId] = set()
        self.boot = ""

    def pass_boot(self, boot: str) -> None:
        """Reset the state after a reboot of the machine: everything that ran is lost, and recent output may be, so
        everything starts again. A decided end other than success stays.

        Args:
            boot: current boot id of the machine; empty: its containers survive reboots.
        """
        if self.boot and boot and boot != self.boot:
            for one in self.containers.values():
                one.result = None
                one.end = ContainerEnd(
                    container_id=one.grant.container_id,
                    exit_status=_LOST,
                    diagnostics="the machine was restarted",
                    node_fault=True,
                )
            self.given_up.clear()
            self.waits.clear()
            if self.ending is not None and self.ending[0].final_status is FinalStatus.SUCCEEDED:
                self.ending = self.outputs = None
        self.boot = boot


def replay(found: Iterable[dict[str, Any]]) -> RecoveredState:
    """Replay all records of all earlier attempts, in order, and return the recovered state.

    A record without the fields of its kind is ignored: the journal is only a supplement.
    """
    former = RecoveredState()
    for record in found:
        try:
            _replay_one(former, record)
        except (LookupError, TypeError, ValueError, OverflowError, UsageError):
            continue
    return former


def _replay_one(former: RecoveredState, record: dict[str, Any]) -> None:
    t = int(record["t"])
    match record["kind"]:
        case "begin":
            former.pass_boot(str(record.get("boot", "")))
            if former.started_ms is None:
                former.started_ms = int(record["started_ms"])
        case "start":
            former.start = read_after(", ".join(map(str, record["after"]))), bool(record["held"]), t
        case "grant":
            container_id = ContainerId.from_text(record["container"])
            grant = Grant(
                container_id=container_id,
                request_id=int(record["request_id"]),
                node=str(record["node"]),
                resources=Resources(),
                log_url=str(record["log_url"]),
            )
            former.containers.setdefault(container_id, RecoveredContainer(grant, t))
        case "change":
            former.changes[str(record["role"])] = str(record["what"])
        case "assign":
            container, index = _container(former, record), int(record["index"])
            container.index, container.try_number = index, int(record["tries"])
            container.host = str(record["host"])
            container.generation = int(record.get("generation", 0))
            former.bound[index] = former.last[index] = container.grant.container_id
            former.tries[index] = container.try_number
            if (spent := record.get("spent")) is not None:
                former.spent[index] = from_json(Receipt, spent)
            if index in former.waits:
                former.waits[index].good_since_ms = t
        case "run":
            container = _container(former, record)
            container.ran, container.generation = True, int(record.get("generation", 0))
        case "result":
            container = _container(former, record)
            container.result, container.finished_ms = from_json(TaskResult, record["result"]), t
            container.generation = int(record.get("generation", 0))
            container.ran = container.ran or (container.result.exit_code, container.result.signal) != (None, None)
        case "end":
            container = _container(former, record)
            container.end = ContainerEnd(
                container_id=container.grant.container_id,
                exit_status=int(record["status"]),
                diagnostics=str(record["diagnostics"]),
                node_fault=bool(record["node_fault"]),
            )
            if container.finished_ms is None:
                container.finished_ms = t
        case "faults":
            former.faults[int(record["index"])] = int(record["user_faults"]), int(record["node_faults"])
        case "free" | "give_up" as kind:
            index = int(record["index"])
            former.faults[index] = int(record["user_faults"]), int(record["node_faults"])
            why = str(record.get("why", ""))
            if not why:
                former.bound.pop(index, None)
            if kind == "give_up":
                former.given_up[index] = why
            else:
                former.given_up.pop(index, None)
        case "wait":
            service = str(record["service"])
            since_ms = {str(name): int(ms) for name, ms in dict(record["since_ms"]).items()}
            wait = former.waits.setdefault(int(record["index"]), RecoveredWait())
            wait.service, wait.since_ms = service if service in since_ms else "", since_ms
            if not service:
                wait.good_since_ms = t
        case "gate":
            checkpoint = record.get("checkpoint")
            former.gates[str(record["role"])] = RecoveredGate(
                bool(record["open"]),
                int(record.get("generation", 0)),
                None if checkpoint is None else int(checkpoint),
                int(record.get("after", 0)),
                tuple(from_json(RestartView, one) for one in record.get("restarts", ())),
                int(record.get("node_faults", 0)),
            )
        case "soft":
            former.soft = str(record["by"]), Cause(record["cause"]), int(record["ends_ms"])
        case "ending" | "settled" as kind:
            final, cause, words = record["ending"]
            former.ending = ApplicationEnd(FinalStatus(final), Cause(cause), str(words)), Settlement(record["how"])
            if kind == "settled":
                former.outputs = tuple(from_json(OutputView, one) for one in record["outputs"])
        case "finish":
            former.finished = True
        case "trial" | "trial_back" | "trial_end":
            _replay_trial(former.trials.setdefault(int(record["number"]), RecoveredTrial()), record)
        case "trial_committed":
            if (trial := former.trials.get(int(record["number"]))) is not None and trial.end is not None:
                trial.end = {**trial.end, "committed": True}
        case "taken":
            former.has_taken_over = True
        case "rung":
            former.rungs.append(record)
        case "gone":
            check_number(record["containers"], len(former.gone))
            former.gone.update(map(ContainerId.from_text, containers_of(record["containers"])))


def _replay_trial(trial: RecoveredTrial, record: dict[str, Any]) -> None:
    if record["kind"] == "trial_back":
        trial.user_faults, trial.node_faults = int(record["user_faults"]), int(record["node_faults"])
        trial.runs = False
        return
    trial.holder, trial.index = ContainerId.from_text(record["in"]), int(record["index"])
    trial.tries = int(record["try"])
    if isinstance(parameters := record.get("parameters"), dict):
        trial.parameters = {str(name): str(value) for name, value in parameters.items()}
    if record["kind"] == "trial_end":
        trial.user_faults, trial.node_faults = int(record["user_faults"]), int(record["node_faults"])
        trial.end, trial.runs = record, False
    else:
        trial.end, trial.runs = None, True


def _container(former: RecoveredState, record: dict[str, Any]) -> RecoveredContainer:
    return former.containers[ContainerId.from_text(record["container"])]


def done(former: RecoveredState) -> list[int]:
    """Return the indexes that are known to have succeeded."""
    return sorted(
        index
        for index, container_id in former.bound.items()
        if (result := former.containers[container_id].result) and result.fault is Fault.NONE
    )
