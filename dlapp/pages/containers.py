"""The table of an application's containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from html import escape

from dlapp.pages.sections import section
from dlapp.pages.text import duration, memory
from dlapp.pages.timeline import container_name
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, ContainerView, TryView
from dlapp.values.usage import Usage

MAX_SHOWN = 1000
"""Maximum number of containers on a page; the failed ones come first. More would be slow in a browser, and hard to
read."""


def shown_containers(view: ApplicationView) -> list[ContainerView]:
    """Return the containers that a page shows, in their order: all, or `MAX_SHOWN` of them."""
    order = sorted(view.containers, key=lambda one: (not _has_failed(one), one.index))
    return sorted(order[:MAX_SHOWN], key=lambda one: one.index)


def _has_failed(one: ContainerView) -> bool:
    return one.exit_code not in (None, 0) or one.signal is not None or bool(one.earlier)


def containers(
    view: ApplicationView, shown: Sequence[ContainerView], now_ms: int, *, with_ends: Collection[int], live: bool
) -> str:
    """Return the table.

    Args:
        view: the view of the application.
        shown: the containers with a row.
        now_ms: the time [ms since 1970].
        with_ends: CONTAINER_INDEX of those whose ends of logs are below.
        live: whether the ApplicationMaster answers requests for logs, and the links to nodes work.
    """
    if not shown:
        return ""
    columns: list[tuple[str, str, Callable[[ContainerView], str]]] = [
        ("container", "w", lambda one: _name(one, live)),
        ("host", "w", lambda one: escape(one.host)),
        ("GPUs", "w", lambda one: ", ".join(map(str, one.gpus))),
        ("phase", "t", lambda one: escape(_phase(one))),
        ("ran for", "n", lambda one: _time(one, now_ms)),
        ("uses now", "w", lambda one: escape(_usage(one.usage))),
        ("reported", "t", lambda one: escape(_reported(one))),
        ("end", "t", _ends),
        ("logs", "w", lambda one: _log_links(one, live=live, has_end=one.index in with_ends)),
    ]
    cells = [(name, kind, [text_of(one) for one in shown]) for name, kind, text_of in columns]
    cells = [column for column in cells if any(column[2])]
    titles = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind, _ in cells)
    tds = [[f'<td class="{kind}">{text}</td>' for text in texts] for _, kind, texts in cells]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*tds, strict=True))
    left = len(view.containers) - len(shown)
    more = f"<p>{left} more are not shown: dlapp-status --json has them</p>" if left else ""
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="containers">{table}</div>'
    return section("Containers", scroll + more, _counts(view))


def _counts(view: ApplicationView) -> str:
    """Return the number of containers in each phase, and of failed ones."""
    phases: Counter[Phase] = Counter(one.phase for one in view.containers)
    failed = sum(one.exit_code not in (None, 0) or one.signal is not None for one in view.containers)
    parts = [f"{phases[phase]} {phase.value}" for phase in Phase if phases[phase]]
    return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])


def _name(one: ContainerView, live: bool) -> str:
    name = escape(container_name(one))
    return f'<a href="{escape(one.log_url)}">{name}</a>' if live and is_link(one.log_url) else name


def is_link(url: str) -> bool:
    """Return whether a browser can open an address."""
    return url.startswith(("http://", "https://"))


def _phase(one: ContainerView) -> str:
    if one.phase is Phase.ENDED:
        return str(one.phase.value)
    share = "" if one.progress is None else f" {one.progress:.0%}"
    return f"{one.phase.value}{share} {one.detail}".strip()


def _time(one: ContainerView, now_ms: int) -> str:
    return duration(max(0, (one.finished_ms or now_ms) - one.started_ms) / 1000) if one.started_ms else ""


def _usage(usage: Usage | None) -> str:
    if usage is None:
        return ""
    parts = [] if usage.cpu_cores is None else [f"{usage.cpu_cores:.1f} cores"]
    parts += [] if usage.memory_mib is None else [memory(usage.memory_mib)]
    shares = [one.utilisation for one in usage.devices if one.utilisation is not None]
    parts += [f"GPUs {sum(shares) / len(shares):.0%}"] if shares else []
    parts += [f"waiting for input {usage.input_wait:.0%}"] if usage.input_wait else []
    return ", ".join(parts)


def _reported(one: ContainerView) -> str:
    reported = [] if one.step is None else [f"step {one.step}"]
    return ", ".join([*reported, *(f"{name}={value:.4g}" for name, value in one.metrics.items())])


def _ends(one: ContainerView) -> str:
    ends = [f"try {each.attempt}: {_end(each) or 'ended'}" for each in one.earlier]
    if last := _end(one):
        ends.append(f"try {one.attempt}: {last}" if ends else last)
    return "<br>".join(ends)


def _end(one: ContainerView | TryView) -> str:
    reason, message = "", one.message
    if one.exit_code is not None or one.signal is not None:
        kind = "good" if one.exit_code == 0 else "bad"
        text = f"exit code {one.exit_code}" if one.signal is None else f"signal {one.signal}"
        reason, message = f'<span class="{kind}">{text}</span> ', message.removeprefix(text)
    named = f" ({one.diagnosis.cause})" if one.diagnosis is not None else ""
    return f"{reason}{escape((message + named).lstrip(' ,;:'))}".strip()


def _log_links(one: ContainerView, *, live: bool, has_end: bool) -> str:
    if live:
        links = (f'<a href="?log={one.index}.{stream}">{stream}</a>' for stream in ("stdout", "stderr"))
        return " ".join(links)
    return f'<a href="#log-{one.index}">last lines</a>' if has_end else ""
