"""Attribution of the processes on a leased GPU: to the payload, to programs that the host allows, or to others.

NVML reports pids of the caller's pid namespace, so `/proc` decides whose a process is. A process that has ended, is
hidden, or is in a namespace that is not visible here is attributed to nobody: it is never named as foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from dlapp.gpuid.health.inspection import is_allowed
from dlapp.gpuid.health.readings import ListedProcess
from dlapp.system.owners import user_name
from dlapp.system.processes.proc import command_line, process_stat, real_uid

MAX_FOREIGN = 8
"""Number of foreign processes of one GPU that are kept: those with the most memory. Reports contain them."""
_MAX_KNOWN = 1024
"""Number of processes whose owners are kept, so that a sample reads one file for each."""
_MAX_PROGRAM = 64
"""Maximum length of a program's name [characters]; the program chose it."""


class UnleasedProcess(NamedTuple):
    """Process on a leased GPU that belongs neither to the payload nor to a program that the host allows.

    Args:
        started: when it started [clock ticks since boot], which identifies it with its pid.
        program, user: names; a program without arguments has an empty one.
        used_mib, peak_mib: its memory on the GPU in the last sample with it, and the most; None: not reported.
        seen_s: time of that sample [s, monotonic].
    """

    pid: int
    started: int
    program: str
    user: str
    used_mib: int | None = None
    peak_mib: int | None = None
    seen_s: float = 0.0

    @property
    def description(self) -> str:
        """Return its program and its user as text, as far as known."""
        return ", ".join(filter(None, (self.program or "name hidden", self.user and f"user {self.user}")))


class Attributed(NamedTuple):
    """Processes of one sample of a GPU: the foreign ones; and the memory of the payload's [MiB], None: not known."""

    foreign: tuple[UnleasedProcess, ...] = ()
    own_mib: int | None = None


NOT_ATTRIBUTED = Attributed()


class ProcessAttribution:
    """Attribution of the processes on the GPUs of one payload; remembers whom it has identified.

    Args:
        is_own: returns whether a pid of this host is the payload's; None: not known (yet).
        allowed: names of programs that may use a GPU without a lease.
    """

    def __init__(self, is_own: Callable[[int], bool | None], allowed: Collection[str]) -> None:
        self._is_own, self._allowed = is_own, allowed
        self._known: dict[tuple[int, int], UnleasedProcess | bool] = {}

    def attribute(self, listed: Sequence[ListedProcess], used_mib: int | None, now_s: float) -> Attributed:
        """Return the foreign processes on a GPU, and the memory of the payload.

        Args:
            listed: what NVML lists.
            used_mib: memory in use on the GPU, by any process; None: not known.
            now_s: the time [s, monotonic].
        """
        own: list[int | None] = []
        others: list[int | None] = []
        foreign = []
        for process in listed:
            whose = self._owner(process.pid)
            if whose is True:
                own.append(process.used_mib)
            elif whose is not None:
                others.append(process.used_mib)
            if isinstance(whose, UnleasedProcess):
                foreign.append(whose._replace(used_mib=process.used_mib, peak_mib=process.used_mib, seen_s=now_s))
        if own and None not in own:
            own_mib = sum(filter(None, own))
        elif used_mib is None or None in others:
            own_mib = None
        else:
            # A leased GPU is the payload's, with all that is not known to be another's: drivers have no list, or hide
            # the processes of other pid namespaces, or still list one that has just ended.
            own_mib = max(0, used_mib - sum(filter(None, others)))
        return Attributed(tuple(foreign), own_mib)

    def _owner(self, pid: int) -> UnleasedProcess | bool | None:
        """Return True for a process of the payload, False for an allowed program, None for an unknown one."""
        if (stat := process_stat(pid)) is None or stat.is_dead:
            return None
        key = pid, stat.started
        if (known := self._known.get(key)) is not None:
            return known
        if (is_own := self._is_own(pid)) is None:
            return None
        found: UnleasedProcess | bool = is_own
        if not is_own:
            name, uid = _program(command_line(pid)[0] or stat.program), real_uid(pid)
            found = is_allowed(name, self._allowed) is False and UnleasedProcess(
                pid, stat.started, name, "" if uid is None else user_name(uid)
            )
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = found
        return found


def merged(before: Sequence[UnleasedProcess], now: Sequence[UnleasedProcess]) -> tuple[UnleasedProcess, ...]:
    """Return the foreign processes seen so far, updated by those of a later sample: at most `MAX_FOREIGN`."""
    found = {(one.pid, one.started): one for one in before}
    for one in now:
        key = one.pid, one.started
        peaks = [each for each in (one.peak_mib, found[key].peak_mib if key in found else None) if each is not None]
        found[key] = one._replace(peak_mib=max(peaks, default=None))
    return tuple(sorted(found.values(), key=lambda one: -(one.peak_mib or 0))[:MAX_FOREIGN])


def _program(argument: bytes) -> str:
    """Return the name of a program from its first argument, as one printable word."""
    name = argument.decode(errors="replace").partition(" ")[0].rpartition("/")[2]
    return "".join(one if one.isprintable() else "?" for one in name)[:_MAX_PROGRAM]
