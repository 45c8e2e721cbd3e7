"""Sections of a page about one application: header, cause of a failure, receipt, outputs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from dlapp.pages.axes import number
from dlapp.pages.text import Fact, bar, duration, facts, local_time, memory, rows, size
from dlapp.system.text import counted, xids_text
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause
from dlapp.values.usage import ForeignProcess, Receipt


def section(title: str, body: str, remark: str = "") -> str:
    """Return a section with a body of HTML; empty without one. Title and remark, beside it, are plain text."""
    small = f"<small>{escape(remark)}</small>" if remark else ""
    return f"<section><h2>{escape(title)}{small}</h2>{body}</section>" if body else ""


def head(view: ApplicationView, now_ms: int) -> str:
    """Return the name, the state, and who ran it when and where."""
    kind = "good" if view.cause is Cause.SUCCEEDED else "bad" if view.cause is not None else ""
    state = view.cause.value if view.cause is not None else view.state.value.lower()
    end_ms = view.finished_ms or now_ms
    elapsed = duration(max(0, end_ms - view.submitted_ms) / 1000) if view.submitted_ms else ""
    amounts = [counted(view.vcores, "vcores"), memory(view.memory_mib)]
    if view.gcores:
        amounts.append(counted(view.gcores, "GPUs"))
    texts = [view.phase if view.cause is None else "", view.diagnostics]
    return (
        f'<header><p class="soft">{escape(str(view.application_id))}</p>'
        f"<h1>{escape(view.appname or str(view.application_id))} "
        f'<span class="state {kind}">{escape(state)}</span></h1>'
        + "".join(f"<p>{escape(one)}</p>" for one in texts if one)
        + "".join(f'<p class="note">{escape(one)}</p>' for one in _notes(view))
        + facts(
            [
                Fact("containers", str(view.total_containers), ", ".join(amounts)),
                Fact("elapsed", elapsed),
                Fact("submitted", local_time(view.submitted_ms)),
                Fact("started", local_time(view.started_ms)),
                Fact("ended", local_time(view.finished_ms)),
                Fact("user", view.username),
                Fact("queue", view.queue, "" if view.priority is None else f"priority {view.priority}"),
                Fact("project", view.project, ", ".join(view.tags)),
                Fact("tags", "" if view.project else ", ".join(view.tags)),
                _checkpoint(view),
                Fact("resumed from", view.resumed_from),
                Fact("once more", view.again_of),
                Fact("ApplicationMaster", f"attempt {view.attempt}" if view.attempt > 1 else ""),
            ]
        )
        + "</header>"
    )


def _checkpoint(view: ApplicationView) -> Fact:
    """Return the step and the time of the newest checkpoint, and why there is none or no newer one."""
    one = view.checkpoint
    if one is None:
        return Fact("checkpoint", "")
    of = "" if one.container is None else f"of container {one.container}"
    if one.number is None:
        return Fact("checkpoint", "none" if view.state.ended else "none yet", ", ".join(filter(None, (of, one.why))))
    steps = [f"{name} {value}" for name, value in (("step", one.step), ("epoch", one.epoch)) if value is not None][:1]
    newer = f"no newer one: {one.why}" if one.why else ""
    texts = [*steps, local_time(one.at_ms), of, newer]
    return Fact("checkpoint", texts[0], ", ".join(filter(None, texts[1:])))


def _notes(view: ApplicationView) -> list[str]:
    """Return what prevents it from running as it should, what the engine changed, and how to continue after its end."""
    notes = []
    if (waiting := view.waiting) is not None and not view.state.ended:
        since = f", since {local_time(waiting.since_ms)}" if waiting.since_ms else ""
        notes.append(f"waits: {waiting.message} ({waiting.code}){since}")
        notes += [f"with this change it would start now: {waiting.change}"] if waiting.change else []
    notes += [f"idle: {view.idle.message}"] if view.idle is not None else []
    if view.restarts:
        last = view.restarts[-1]
        notes.append(f"restarted: generation {last.generation} at {local_time(last.at_ms)}, {last.cause}")
    notes += [f"changed by the cluster: {one}" for one in view.changes]
    if view.state.ended and view.not_started:
        roles = ", ".join(f"{role} ({counted(count, 'containers')})" for role, count in view.not_started.items())
        notes.append(f"never started: {roles}")
    if view.state.ended and view.resumable and view.cause is not Cause.SUCCEEDED:
        notes.append(f"to go on from its checkpoint: dlapp-launcher --resume {view.application_id}")
    return notes


def cause(view: ApplicationView) -> str:
    """Return the cause of the failure, with its evidence; empty if no rule matches."""
    if view.diagnosis is None:
        return ""
    found = view.diagnosis.diagnosis
    evidence = found.evidence
    line = f"<pre>{escape(evidence.line)}</pre>" if evidence is not None else ""
    where = f"{evidence.file}, byte {evidence.offset}, of " if evidence is not None else ""
    pairs = [
        ("what to do", found.next_step),
        ("found in", f"{where}container {view.diagnosis.index}"),
        ("fault", found.fault.value),
        ("rule", found.rule),
    ]
    return section("Cause", f'<p class="bad"><strong>{escape(found.cause)}</strong></p>{line}{rows(pairs)}')


def receipt(view: ApplicationView) -> str:
    """Return the cost of the application; empty if unknown."""
    one = view.receipt
    if one is None:
        return ""
    notes = [*map(_foreign, one.foreign_processes), *filter(None, (one.suggestion,))]
    note = "".join(f'<p class="note">{escape(text)}</p>' for text in notes)
    return section("Receipt", note + facts(_costs(one, bool(view.gcores))) + _phases(one.seconds))


def _costs(one: Receipt, has_gpus: bool) -> list[Fact]:
    hours, asked, moved = one.gpu_hours, one.memory, one.bytes
    parts = {"busy": hours.busy, "idle": hours.idle, "unknown": hours.unknown}
    shares = [(kind, amount / hours.granted) for kind, amount in parts.items()] if hours.granted > 0 else []
    known = f"{hours.busy:.2f} busy, {hours.idle:.2f} idle"
    used = f"{known}, {hours.unknown:.2f} not known" if hours.unknown > 0 else known
    peak = min(1.0, asked.peak_mib / asked.asked_mib) if asked.peak_mib and asked.asked_mib else 0.0
    return [
        Fact("GPU hours", f"{hours.granted:.2f}" if has_gpus else "", used, shares),
        Fact("energy of the GPUs", "" if one.energy_wh is None else _energy(one.energy_wh)),
        Fact("errors of the GPUs", xids_text(one.xids)),
        Fact("CPU time", "" if one.cpu_hours is None else _hours(one.cpu_hours)),
        Fact(
            "peak of memory",
            "" if asked.peak_mib is None else f"{memory(asked.peak_mib)} of {memory(asked.asked_mib)}",
            "one container" if asked.is_exact else "one container, the largest of some samples",
            [("running", peak)],
        ),
        _gpu_memory(one),
        Fact("input and output", f"{size(moved.input)} in, {size(moved.output)} out"),
        Fact("disks", _both(moved.read, moved.written, "read", "written")),
        Fact("network", _both(moved.received, moved.sent, "received", "sent")),
    ]


def _gpu_memory(one: Receipt) -> Fact:
    peak_mib, name = one.gpu_memory_peak_mib, "peak of GPU memory"
    if peak_mib is None:
        return Fact(name, "")
    least_mib = min(gpu.memory_mib for gpu in one.gpu_memory)
    share = min(1.0, peak_mib / least_mib) if least_mib else 0.0
    text = f"{memory(peak_mib)} of {memory(least_mib)}"
    return Fact(name, text, "one GPU, the largest of some samples", [("running", share)])


def _foreign(one: ForeignProcess) -> str:
    who = ", ".join(filter(None, (one.program or "name hidden", one.user and f"user {one.user}")))
    amount = "" if one.peak_mib is None else f"{memory(one.peak_mib)} of "
    where = f" on {one.host}" if one.host else ""
    return f"process {one.pid} ({who}), not of this application, used {amount}gpu{one.gpu}{where}"


def _hours(hours: float) -> str:
    return f"{number(hours)} h" if hours >= 1 else duration(hours * 3600)


def _energy(energy_wh: float) -> str:
    return f"{number(energy_wh / 1000)} kWh" if energy_wh >= 1000 else f"{number(energy_wh)} Wh"


def _both(one: int | None, other: int | None, one_name: str, other_name: str) -> str:
    amounts = {one_name: one, other_name: other}
    return ", ".join(f"{size(amount)} {name}" for name, amount in amounts.items() if amount is not None)


def _phases(seconds: Mapping[str, float]) -> str:
    """Return the total time of all containers in each phase."""
    order = [one.value for one in Phase]
    shown = sorted(
        (name for name in seconds if seconds[name] > 0),
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    total = sum(seconds[name] for name in shown)
    shares = [(name, seconds[name] / total) for name in shown]
    items = [
        f'<li><i class="{escape(name)}"></i>{escape(name)} {duration(seconds[name])}, {_percent(share)}</li>'
        for name, share in shares
    ]
    key = f'<ul class="key">{"".join(items)}</ul>'
    return f'<p class="soft above">time of all containers together</p>{bar(shares)}{key}' if items else ""


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "&lt; 1%"


def outputs(view: ApplicationView) -> str:
    """Return the locations of the outputs; empty if there are none."""
    items = []
    for one in view.outputs:
        state = "committed" if one.committed else f"kept in {one.partial}" if one.partial else "not committed"
        more = [f"the former one is in {place}" for place in (one.replaced, one.previous) if place]
        items.append(f"<li>{escape(one.target)}: {escape('; '.join([state, *more]))}</li>")
    return section("Output", f"<ul>{''.join(items)}</ul>" if items else "")
