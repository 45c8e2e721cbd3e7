"""Sections of a page about one application: head, cause of a failure, receipt, containers, outputs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from dlapp.messages import Phase
from dlapp.pages.text import duration, local_time, rows
from dlapp.report import ApplicationView, Cause, ContainerView, TryView
from dlapp.system.text import counted, human_size
from dlapp.usage import Receipt


def head(view: ApplicationView, now_ms: int) -> str:
    """Return the name, the state, and who ran it when and where."""
    kind = "good" if view.cause is Cause.SUCCEEDED else "bad" if view.cause is not None else ""
    state = view.cause.value if view.cause is not None else view.phase or view.state.value.lower()
    end_ms = view.finished_ms or now_ms
    elapsed = duration(max(0, end_ms - view.submitted_ms) / 1000) if view.submitted_ms else ""
    amounts = [counted(view.total_containers, "containers"), counted(view.vcores, "vcores"), f"{view.memory_mib} MiB"]
    if view.gcores:
        amounts.append(counted(view.gcores, "GPUs"))
    return (
        f"<header><h1>{escape(view.appname or str(view.application_id))}</h1>"
        f'<p><strong class="{kind}">{escape(state)}</strong> {escape(view.diagnostics)}</p>'
        + rows(
            [
                ("application", str(view.application_id)),
                ("waits", _waiting(view)),
                ("idle", view.idle.message if view.idle is not None else ""),
                ("user", view.username),
                ("queue", view.queue),
                ("project", view.project),
                ("tags", ", ".join(view.tags)),
                ("submitted", local_time(view.submitted_ms)),
                ("started", local_time(view.started_ms)),
                ("ended", local_time(view.finished_ms)),
                ("elapsed", elapsed),
                ("resources", ", ".join(amounts)),
                ("changed by the cluster", "; ".join(view.changes)),
                ("attempts of the ApplicationMaster", str(view.attempt) if view.attempt > 1 else ""),
            ]
        )
        + "</header>"
    )


def _waiting(view: ApplicationView) -> str:
    one = view.waiting
    return "" if one is None or view.state.ended else f"{one.message} ({one.code})"


def cause(view: ApplicationView) -> str:
    """Return the cause of the failure, with its evidence; empty if no rule names it."""
    if view.diagnosis is None:
        return ""
    found = view.diagnosis.diagnosis
    evidence = found.evidence
    line = f"<pre>{escape(evidence.line)}</pre>" if evidence is not None else ""
    where = f"{evidence.file}, byte {evidence.offset}, of " if evidence is not None else ""
    pairs = [
        ("found in", f"{where}container {view.diagnosis.index}"),
        ("fault", found.fault.value),
        ("what to do", found.next_step),
        ("rule", found.rule),
    ]
    return f'<section><h2>Cause</h2><p class="bad">{escape(found.cause)}</p>{line}{rows(pairs)}</section>'


def receipt(view: ApplicationView) -> str:
    """Return what the application has cost; empty if it is not known."""
    one = view.receipt
    if one is None:
        return ""
    note = f"<p><strong>{escape(one.suggestion)}</strong></p>" if one.suggestion else ""
    return f"<section><h2>Receipt</h2>{note}{rows(_receipt_rows(one, bool(view.gcores)))}</section>"


def _receipt_rows(one: Receipt, has_gpus: bool) -> list[tuple[str, str]]:
    hours, memory, moved = one.gpu_hours, one.memory, one.bytes
    gpus = f"{hours.granted:.2f} granted: {hours.busy:.2f} busy, {hours.idle:.2f} idle, {hours.unknown:.2f} not known"
    peak = "" if memory.peak_mib is None else f"{memory.peak_mib} MiB of {memory.asked_mib} MiB"
    if peak and not memory.is_exact:
        peak += " (the largest of some samples)"
    pairs = [
        ("GPU hours", gpus if has_gpus else ""),
        ("energy of the GPUs", "" if one.energy_wh is None else f"{one.energy_wh:.1f} Wh"),
        ("CPU hours", "" if one.cpu_hours is None else f"{one.cpu_hours:.3f}"),
        ("peak of memory, one container", peak),
        ("input, output", f"{human_size(moved.input)}, {human_size(moved.output)}"),
    ]
    amounts = {"read": moved.read, "written": moved.written, "received": moved.received, "sent": moved.sent}
    known = [f"{name} {human_size(count)}" for name, count in amounts.items() if count is not None]
    pairs.append(("by the program", ", ".join(known)))
    pairs += [(f"{name}, all containers", duration(one.seconds[name])) for name in _in_order(one.seconds)]
    return pairs


def _in_order(seconds: Mapping[str, float]) -> list[str]:
    order = [one.value for one in Phase]
    return sorted((name for name in seconds if seconds[name] > 0), key=lambda name: (name not in order, name))


def containers(view: ApplicationView, *, links: bool) -> str:
    """Return the table of containers.

    Args:
        view: of the application.
        links: whether the URLs of logs lead anywhere from where the page is read.
    """
    if not view.containers:
        return ""
    body = "".join(_row(one, links) for one in sorted(view.containers, key=lambda one: one.index))
    names = ("", "role", "host", "GPUs", "phase", "reported", "end")
    titles = "".join(f'<th scope="col">{name or "container"}</th>' for name in names)
    return (
        '<section><h2>Containers</h2><div class="scroll" tabindex="0"><table><thead><tr>'
        f"{titles}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _row(one: ContainerView, links: bool) -> str:
    reported = [] if one.step is None else [f"step {one.step}"]
    reported += [f"{name}={value:.4g}" for name, value in one.metrics.items()]
    share = "" if one.progress is None else f" {one.progress:.0%}"
    phase = f"{one.phase.value}{share} {one.detail}".strip()
    index = f'<a href="{escape(one.log_url)}">{one.index}</a>' if links and _is_link(one.log_url) else f"{one.index}"
    earlier = "".join(f"<br>try {each.attempt}: {_end(each)}" for each in one.earlier)
    cells = [
        f'<td class="n">{index}</td>',
        f"<td>{escape(one.role)} {one.role_index}</td>",
        f"<td>{escape(one.host)}</td>",
        f"<td>{', '.join(map(str, one.gpus))}</td>",
        f"<td>{escape(phase)}</td>",
        f"<td>{escape(' '.join(reported))}</td>",
        f"<td>{_end(one)}{earlier}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _is_link(url: str) -> bool:
    return url.startswith(("http://", "https://", "file:///"))


def _end(one: ContainerView | TryView) -> str:
    said = ""
    if one.exit_code is not None or one.signal is not None:
        kind = "good" if one.exit_code == 0 else "bad"
        text = f"exit code {one.exit_code}" if one.signal is None else f"signal {one.signal}"
        said = f'<span class="{kind}">{text}</span> '
    named = f" ({one.diagnosis.cause})" if one.diagnosis is not None else ""
    return f"{said}{escape(one.message + named)}"


def outputs(view: ApplicationView) -> str:
    """Return where the outputs are; empty if there are none."""
    if not view.outputs:
        return ""
    items = []
    for one in view.outputs:
        state = "committed" if one.committed else f"kept in {one.partial}" if one.partial else "not committed"
        more = [f"the former one is in {place}" for place in (one.replaced, one.previous) if place]
        items.append(f"<li>{escape(one.target)}: {escape('; '.join([state, *more]))}</li>")
    return f"<section><h2>Output</h2><ul>{''.join(items)}</ul></section>"
