"""Status of one application as lines of text; pure functions, so that every line can be tested exactly.

The first lines of a status are those of the C3 cluster's own tool in one piece, in its order and with its spelling, log
URLs included; scripts read them. Below is the answer, with which ``dlapp-launcher --wait`` ends too, and then the
details.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.system import clock
from dlapp.system.text import counted, human_size
from dlapp.tools.display.receipt import receipt_lines, usage_text
from dlapp.tools.display.view import (
    NOTHING,
    View,
    elapsed,
    elapsed_of,
    ended,
    exit_text,
    failed_container,
    labels,
    local_time,
    table,
)

if TYPE_CHECKING:
    from dlapp.client.operations.connections import Connections

TAIL_LINES = 10
_SHOWN_METRICS = 4
"""Maximum number of metrics of each container in a table; ``--json`` has all."""
_SHOWN_RESTARTS = 3
"""Maximum number of restarts of gangs, the latest ones; ``--json`` has all recorded ones."""
_SHOWN_LEFT_OUT, _SHOWN_FILES = 8, 3
"""Maximum number of names of what was left out of outputs, and of files outside of them; ``--json`` has more."""
_UNFINISHED = {"RUNNING": "running"}
_AFTER_PAYLOAD = ("storing", "releasing", "ended")


class ErrorTail(NamedTuple):
    """The last lines of the failed container's stderr; ``problem``: why they cannot be shown."""

    container: int
    lines: tuple[str, ...] = ()
    problem: str = ""


class BestTrial(NamedTuple):
    """The best trial of a sweep; ``text``: ``accuracy 0.965 at step 40 (lr=0.1, batch_size=32)``."""

    number: int
    text: str


def read_error_tail(client: Connections, view: View) -> ErrorTail | None:
    """Return the last stderr lines of the container that made an application fail; None if no program failed.

    None for a container of a sweep: each trial has its own.
    """
    if _is_sweep(view) or (failed := _culprit(view)) is None or not _program_failed(failed):
        return None
    from dlapp.client.operations.output import TAIL_BYTES, Output
    from dlapp.errors import DlappError
    from dlapp.tools.display.terminal import plain_line

    index = int(failed["index"])
    try:
        data = Output.on(client).log_tail(str(view["application_id"]), index, lines=TAIL_LINES)
    except (DlappError, OSError) as error:
        return ErrorTail(index, problem=str(error))
    if not data:
        return ErrorTail(index)
    first, *rest = map(plain_line, data.removesuffix(b"\n").split(b"\n"))
    return ErrorTail(index, ("…" + first if len(data) == TAIL_BYTES else first, *rest))


def read_best_trial(client: Connections, view: View) -> BestTrial | None:
    """Return the best trial of a sweep that has ended; None if it has none, or its results cannot be read."""
    from dlapp.errors import DlappError

    if not _is_sweep(view) or not ended(view):
        return None
    from dlapp.client.operations.queries import Queries

    try:
        results = Queries.on(client).sweep(str(view["application_id"])).results(curves=False)
    except DlappError:
        return None  # dlapp-sweep, the next command in the status, names the reason
    if (best := results.best()) is None:
        return None
    at = "" if best.step is None else f" at step {best.step}"
    values = ", ".join(f"{name}={value}" for name, value in best.parameters.items())
    return BestTrial(best.number, f"{results.metric} {best.metric:.6g}{at} ({values})")


def status_lines(
    view: View,
    logs: Sequence[Mapping[str, Any]],
    now_ms: int,
    *,
    tail: ErrorTail | None = None,
    best: BestTrial | None = None,
    unstored: Sequence[str] = (),
    all_logs: bool = False,
) -> list[str]:
    """Return the complete output of ``dlapp-status`` for an application.

    startTime is the submission's, as in YARN's own reports; launchTime, below, is when its ApplicationMaster began.
    Source: yarn_protos.proto, ApplicationReportProto.startTime and launchTime.

    Args:
        view: the view of the application.
        logs: log locations of its containers, in CONTAINER_INDEX order.
        now_ms: the time [ms since 1970].
        tail: the last lines of stderr of the container that failed.
        best: the best trial of a sweep.
        unstored: directories with output that could not be stored.
        all_logs: show the URLs of all containers, not only of the failed one or the first.
    """
    lines = [
        f"DL App {view['application_id']} is {view['state']}",
        f"Username : {view['username']}",
        f"DL App ID : {view['application_id']}",
        f"DL App Name : {view['appname']}",
        f"startTime : {local_time(view['submitted_ms'])}",
        f"finishTime : {local_time(view['finished_ms'])}",
        f"elapsedTime : {elapsed_of(view, now_ms)}",
        *_log_lines(logs if all_logs else () if _is_sweep(view) else _main_log(view, logs)),
        *answer_lines(view, now_ms, tail, unstored, best),
        *receipt_lines(view.get("receipt")),
        *_container_lines(view),
        f"finalStatus : {view['final_status']}",
    ]
    if view["cause"]:
        lines.append(f"cause : {view['cause']}")
    origin = (("resumedFrom", view.get("resumed_from")), ("againOf", view.get("again_of")))
    access = (("viewAcl", view.get("view_acl")), ("modifyAcl", view.get("modify_acl")))
    what = [(name, view.get(name)) for name in ("program", "source", "comment")]
    lines += [f"{name} : {text}" for name, text in (*labels(view), *what, *origin, *access) if text]
    lines += [f"image : {image}" for image in sorted({one.get("image", "") for one in view["containers"]} - {""})]
    lines += [f"changed : {line}" for line in view.get("changes", ())]
    if view["started_ms"] is not None:
        lines.append(f"launchTime : {local_time(view['started_ms'])}")
    return lines


def _log_lines(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    streams = [(stream, log["files"].get(stream)) for log in logs for stream in ("stdout", "stderr")]
    return [line for stream, url in streams if url for line in (stream, url)]


def answer_lines(
    view: View,
    now_ms: int,
    tail: ErrorTail | None = None,
    unstored: Sequence[str] = (),
    best: BestTrial | None = None,
) -> list[str]:
    """Return the state or the result of an application, the next command, and the location of its output.

    Args:
        view: the view of the application.
        now_ms: the time [ms since 1970].
        tail: the last lines of stderr of the container that failed.
        unstored: directories with output that could not be stored.
        best: the best trial of a sweep.
    """
    lines = [headline(view, now_ms)]
    if best is not None:
        lines.append(f"best : trial {best.number}, {best.text}")
    if view["phase"] and not ended(view):
        lines.append(f"phase : {view['phase']}")
    if (as_of_ms := view.get("as_of_ms")) is not None and not ended(view):
        age = elapsed(max(0, now_ms - as_of_ms)).partition(".")[0]
        lines.append(f"as of : {age} ago, read on HDFS: its ApplicationMaster does not answer here")
    waiting = view.get("waiting") or {}
    if waiting and not ended(view) and waiting["message"] not in view["phase"]:
        lines.append(f"waiting : {waiting['message']} ({waiting['code']})")
    if (idle := view.get("idle")) and not ended(view):
        lines.append(f"idle : {idle['message']}")
    for one in view.get("restarts", ())[-_SHOWN_RESTARTS:]:
        at = clock.date_and_time(one["at_ms"] / 1000)
        lines.append(f"restarted : generation {one['generation']} at {at}, {one['cause']}")
    if view["diagnostics"] and view["diagnostics"] != waiting.get("message"):
        lines.append(f"diagnostics : {view['diagnostics']}")
    lines += _cause_lines(view)
    lines += _kept_containers(view)
    if (ends_ms := view.get("soft_kill_ends_ms")) is not None and not ended(view):
        runs = any(one["phase"] not in _AFTER_PAYLOAD for one in view["containers"])
        left = f", the payload has {elapsed(max(0, ends_ms - now_ms))} left" if runs else ""
        lines.append(f"softkill : by {view['soft_kill_by']}{left}")
    if tail is not None:
        lines += _tail_lines(tail)
    lines += [f"next : {command}" for command in _next_commands(view)]
    if best is not None:
        lines.append(f"next : dlapp-launcher --trial {best.number} --of {view['application_id']}")
    if (page := view.get("tracking_url")) and not ended(view):
        lines.append(f"page : {page}")
    for one in view.get("links", ()):
        lines.append(f"url {one['name']} : {one['url'] or one['problem']}{' (not ready)' * (one['ready'] is False)}")
    lines += _checkpoint_lines(view, now_ms)
    for output in view["outputs"]:
        name = f" {output['name']}".rstrip()
        how = "committed to" if output["committed"] else "not committed to" if ended(view) else "goes to"
        lines.append(f"output{name} : {how} {output['target']}")
        lines += _kept_beside(output, view)
    return [*lines, *_unstored_lines(unstored), *_not_stored_lines(view)]


def _not_stored_lines(view: View) -> list[str]:
    """Return what programs wrote and was removed with their workspaces."""
    found = [(one, one["not_stored"]) for one in view["containers"] if one.get("not_stored")]
    is_one = view["total_containers"] == 1

    def whose(container: Mapping[str, Any]) -> str:
        return "" if is_one else f" of container {container['index']}"

    entries = [
        f"not stored : {entry['name']}{whose(one)} ({entry['reason']})"
        for one, has in found
        for entry in has["entries"]
    ]
    lines = entries[:_SHOWN_LEFT_OUT]
    if more := len(entries[_SHOWN_LEFT_OUT:]) + sum(has["more_entries"] for _, has in found):
        lines.append(f"not stored : {more} more of the output")
    files = [(each["size_bytes"], f"{each['name']}{whose(one)}") for one, has in found for each in has["files"]]
    files.sort(key=lambda one: -one[0])
    texts = [f"{name} ({human_size(size)})" for size, name in files[:_SHOWN_FILES]]
    is_complete = all(has["all_files_found"] for _, has in found)
    if more := len(files[_SHOWN_FILES:]) + sum(has["more_files"] for _, has in found):
        texts.append(f"{'' if is_complete else 'at least '}{more} other new file{'s' * (more > 1)}")
    elif not is_complete:
        texts.append("perhaps others")
    return [*lines, f"not stored : {', '.join(texts)}"] if files else lines


def _checkpoint_lines(view: View, now_ms: int) -> list[str]:
    """Return the step and the age of the newest checkpoint, or why there is none."""
    if (one := view.get("checkpoint")) is None:
        return []
    of = "" if one["container"] is None else f" of container {one['container']}"
    if one["number"] is None:
        none = "none" if ended(view) else "none yet"
        return [f"checkpoint{of} : {none}{': ' if one['why'] else ''}{one['why']}"]
    steps = [f"{name} {one[name]}" for name in ("step", "epoch") if one[name] is not None][:1]
    age = "" if one["at_ms"] is None else f"{elapsed(now_ms - one['at_ms']).partition('.')[0]} ago"
    newer = f"; no newer one: {one['why']}" if one["why"] else ""
    return [f"checkpoint{of} : {', '.join(filter(None, (*steps, age)))}{newer}"]


def _kept_containers(view: View) -> list[str]:
    """Return until when containers of failed programs are kept, and how to inspect them."""
    lines, application_id = [], view["application_id"]
    for one in view["containers"] if not ended(view) else ():
        if (until_ms := one.get("kept_until_ms")) is not None:
            until = local_time(until_ms).partition(".")[0]
            how = f"dlapp-exec -it {application_id} {one['index']} -- sh"
            lines.append(f"kept : container {one['index']} until {until}; {how}")
    return [*lines, f"kept : dlapp-softkill {application_id} ends that"] if lines else []


def _cause_lines(view: View) -> list[str]:
    """Return the cause of a failure if a rule matches, the line that shows it, and a remedy."""
    if not (found := view.get("diagnosis")):
        return []
    one = found["diagnosis"]
    after = ", after another failure" if one["is_consequence"] else ""
    lines = [f"why : {one['cause']} ({one['rule']}, fault: {one['fault']}{after})"]
    if evidence := one["evidence"]:
        lines.append(f"evidence : {evidence['file']} of container {found['index']}, byte {evidence['offset']}")
        lines.append(f"  | {evidence['line']}".rstrip())
    if one["next_step"]:
        lines.append(f"advice : {one['next_step']}")
    return lines


def kept_lines(view: View, unstored: Sequence[str]) -> list[str]:
    """Return where output is that is not at its targets, and where the targets' former content is.

    Args:
        unstored: directories with output that could not be stored.
    """
    return [*(line for output in view["outputs"] for line in _kept_beside(output, view)), *_unstored_lines(unstored)]


def _kept_beside(output: Mapping[str, Any], view: View) -> list[str]:
    name, lines = f" {output['name']}".rstrip(), []
    if output["partial"]:
        # For a committed output, these are parts of containers or trials that failed while the others continued.
        whose = "trials" if _is_sweep(view) else "containers"
        what = f"failed{name} : output of failed {whose}" if output["committed"] else f"partial{name} :"
        lines.append(f"{what} kept at {output['partial']}")
    if output.get("replaced"):
        lines.append(f"replaced{name} : not written by dlapp, kept at {output['replaced']}")
    if output.get("previous"):
        lines.append(f"previous{name} : the former output, kept at {output['previous']}")
    return lines


def _unstored_lines(unstored: Sequence[str]) -> list[str]:
    # On a node of a cluster, in YARN's directory.
    removed = " (a NodeManager that starts without recovery removes it)"
    return [f"unstored : {path}{'' if path.startswith('/') else removed}" for path in unstored]


def headline(view: View, now_ms: int) -> str:
    """Return one line: ``failed after 0:02:10: container 1 exited with code 3``, ``running for 0:00:12``."""
    span = elapsed_of(view, now_ms).partition(".")[0]
    if not ended(view):
        return f"{_UNFINISHED.get(view['state'], 'waiting')} for {span}"
    cause = view["cause"] or view["final_status"].lower()
    line = f"{cause} after {span}"
    if (failed := _culprit(view)) is None:
        return line
    if failed["exit_code"]:
        return f"{line}: container {failed['index']} exited with code {failed['exit_code']}"
    if failed["signal"] is not None:
        return f"{line}: container {failed['index']} was killed by signal {failed['signal']}"
    return f"{line}: container {failed['index']} failed"


def _culprit(view: View) -> Mapping[str, Any] | None:
    """Return the container that made an application fail; None if there is none.

    Unless the ApplicationMaster names one, a signal proves nothing: the end of an application ends its containers by
    signals.
    """
    failed = failed_container(view) if view["cause"] == "failed" else None
    if failed is None or failed["exit_code"] or not view["diagnostics"]:
        return failed
    return failed if f"container {failed['index']} (" in view["diagnostics"] else None


def _is_sweep(view: View) -> bool:
    return view.get("trials") is not None


def _program_failed(container: Mapping[str, Any]) -> bool:
    return bool(container["exit_code"]) or container["signal"] is not None


def end_line(view: View, now_ms: int) -> str:
    """Return one line on how an application ended, with the reason."""
    line = f"{view['application_id']} {headline(view, now_ms)}"
    return f"{line}: {view['diagnostics']}" if view["diagnostics"] and _culprit(view) is None else line


def _tail_lines(tail: ErrorTail) -> list[str]:
    """Return the last lines of stderr, each with a bar as prefix: a program's output cannot imitate dlapp's lines."""
    of = f"stderr of container {tail.container}"
    if tail.problem:
        return [f"{of} cannot be read: {tail.problem}"]
    if not tail.lines:
        return [f"{of} is empty"]
    return [f"{of}, last lines:", *(f"  | {line}".rstrip() for line in tail.lines)]


def _next_commands(view: View) -> list[str]:
    """Return the next command to type; empty if there is none in particular."""
    application_id, is_sweep = view["application_id"], _is_sweep(view)
    if view["state"] == "RUNNING":
        return [f"{'dlapp-sweep' if is_sweep else 'dlapp-logs'} -f {application_id}"]
    commands = [f"dlapp-sweep {application_id}"] if is_sweep and ended(view) else []
    failed = _culprit(view)
    # A sweep that failed because of its trials has no container to inspect.
    if view["cause"] == "failed" and view["containers"] and not (is_sweep and failed is None):
        which = "--own" if failed is None or not _program_failed(failed) else f"--container {failed['index']}"
        commands.append(f"dlapp-logs {which} {application_id}")
    if view.get("resumable") and ended(view) and view["cause"] != "succeeded":
        commands.append(f"dlapp-launcher --resume {application_id}")
    return commands


def _main_log(view: View, logs: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the logs of the container that failed, or else of the first one."""
    failed = _culprit(view)
    return [log for log in logs if failed is not None and log["index"] == failed["index"]] or logs[:1]


def _container_lines(view: View) -> list[str]:
    absent = [f"{role} ({counted(count, 'containers')})" for role, count in view.get("not_started", {}).items()]
    lines = [f"notStarted : {', '.join(absent)}"] if absent and ended(view) else []
    if not view["containers"]:
        return lines
    head = ("INDEX", "ROLE", "PHASE", "HOST", "EXIT", "GPUS", "NOTE")
    return [*lines, "containers", *table(head, [_container_row(one) for one in view["containers"]])]


def _reported_text(one: Mapping[str, Any]) -> str:
    """Return the last report of a payload: ``ready, step 120, loss=0.251``."""
    texts = ["ready"] if one.get("ready") and one["finished_ms"] is None else []
    if (step := one.get("step")) is not None:
        texts.append(f"step {step}")
    metrics = list(one.get("metrics", {}).items())
    texts += [f"{name}={value:.4g}" for name, value in metrics[:_SHOWN_METRICS]]
    return ", ".join(texts) + (f" and {len(metrics) - _SHOWN_METRICS} more" if len(metrics) > _SHOWN_METRICS else "")


def _container_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    phase = one["phase"]
    if one["progress"] is not None and one["finished_ms"] is None:
        phase += f" {one['progress']:.0%}"
    said = [f"attempt {one['attempt']}"] if one["attempt"] > 1 else []
    said += [f"generation {one['generation']}"] if one.get("generation") else []
    used = usage_text(one.get("usage"))
    said += [text for text in (one["message"] or one["detail"], _reported_text(one), used) if text]
    return (
        str(one["index"]),
        f"{one['role']}_{one['role_index']}",
        phase,
        one["host"] or NOTHING,
        exit_text(one),
        ",".join(map(str, one["gpus"])) or NOTHING,
        "; ".join(said),
    )
