"""Payload as a plain process of this host, supervised by a guardian."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dlapp.runtime.lifeline import Lifeline
from dlapp.runtime.payload import NO_VARIABLES, Payload, PayloadError, PayloadExit, PayloadPlace, ended_with, left_text
from dlapp.system.processes.children import kill_descendants
from dlapp.system.processes.oom_kills import OomKills
from dlapp.system.processes.proc import descendants, start_time
from dlapp.system.processes.resource_counters import NOTHING_KNOWN, ResourceCounters, read_tree
from dlapp.system.short_tmpdir import ShortTmpdir, is_too_long
from dlapp.values.messages import Fault

SHELL = "/bin/sh"
_PATIENCE_S = 2.0
"""Time from an order to kill until the guardian itself counts as hung (for example stopped) and is killed."""


class Guardian:
    """The task's handle of its guardian.

    Args:
        outer, channel: result of `dlapp.runtime.guardian.fork_guardian`.
        siblings: other guardians of the same task; closing one closes all.
    """

    def __init__(self, outer: int, channel: socket.socket, siblings: Sequence[Guardian] = ()) -> None:
        self._outer, self._channel = outer, channel
        self.siblings = siblings
        self._received = bytearray()
        self.spared: Callable[[], Collection[int]] = tuple
        self._ordering = threading.Lock()
        self._inner: int | None = None
        self.gone = False

    def fileno(self) -> int:
        """Return the socket to poll for messages."""
        return self._channel.fileno()

    def order(self, do: str, fds: tuple[int, ...] = (), **details: Any) -> None:
        """Send inner an order. Thread-safe. Raises OSError if it is gone and has not received all of it."""
        data = json.dumps({"do": do, "fds": len(fds), **details}).encode() + b"\n"
        with self._ordering:
            rest = data[socket.send_fds(self._channel, [data], list(fds)) :] if fds else data
            # Inner may have executed the order and ended by now; then even an empty message cannot be sent.
            if rest:
                self._channel.sendall(rest)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message from inner that has arrived, if any; set ``gone`` when none can follow."""
        while b"\n" not in self._received:
            try:
                data = self._channel.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except ConnectionError:
                data = b""
            if not data:
                self.gone = True
                return None
            self._received += data
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        message: dict[str, Any] = json.loads(line)
        if "inner" in message:
            self._inner = message["inner"]
            return self.receive()
        return message

    def open_keeper(self, env: Mapping[str, str], cwd: str) -> socket.socket | None:
        """Start a keeper for a command; return the other end of its channel (`dlapp.runtime.exec.keeper`).

        Thread-safe. If the payload is ending, the channel is closed at once; None if the guardian is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.order("exec", (theirs.fileno(),), env=dict(env), cwd=cwd)
            except OSError:
                ours.close()
                return None
        return ours

    def counters(self, *, all_ended: bool = False) -> ResourceCounters:
        """Return what the descendants of inner have used so far, including those of earlier payloads.

        Args:
            all_ended: whether there is no payload.
        """
        return NOTHING_KNOWN if self._inner is None or self.gone else read_tree(self._inner, all_ended=all_ended)

    def pids(self) -> list[int]:
        """Return the descendants of inner: the processes of the payload."""
        return [] if self._inner is None or self.gone else descendants(self._inner)

    @property
    def inner(self) -> int:
        """Return the pid of inner; 0 if unknown, or gone."""
        return 0 if self._inner is None or self.gone else self._inner

    def kill_inner(self) -> None:
        """Send SIGKILL to a guardian that does not react; the kernel, or outer, then ends the payload."""
        if self._inner is not None and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._inner, signal.SIGKILL)

    def close(self) -> None:
        """End the guardian and all that it guards; return when nothing is left. Idempotent.

        Its siblings end with it: if one of them was killed, its orphans cannot be assigned to a guardian.
        """
        if self._channel.fileno() < 0:
            return
        left = {one._outer: one for one in (self, *self.siblings)}
        for one in left.values():
            one.receive()  # its first message may still be unread, and contains inner's pid
            one._channel.close()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                left.pop(pid, None)
            else:
                if not left:
                    spared = set(self.spared())
                    if spared.issuperset(descendants(os.getpid())):
                        return
                    kill_descendants(spared)  # outer was killed: its children are ours
                elif time.monotonic() > deadline:
                    deadline += _PATIENCE_S
                    for one in left.values():
                        one.kill_inner()
                time.sleep(0.002)


class CompanionGuardian(Guardian):
    """Guardian of a process beside a payload: it is closed with the payload's guardian, and never by itself.

    Orphans of a closed guardian could not be distinguished from processes of another guardian of the same task.
    """

    def close(self) -> None:
        """Do nothing: the payload's guardian closes it."""


def _place_of(payload: Payload, guardian: Guardian) -> PayloadPlace:
    pid = guardian.inner
    started = start_time(pid) if pid else None
    return PayloadPlace(directory=payload.directory, pid=pid if started else 0, started=started or 0)


def start_guardian() -> tuple[int, socket.socket]:
    """Start a guardian as a program: at any time; it inherits no descriptors of this process. Return the same as
    `dlapp.runtime.guardian.fork_guardian`.

    Raises:
        OSError: it could not be started.
    """
    from dlapp.system.processes.helper import own_program
    from dlapp.system.processes.spawn import environment

    ours, theirs = socket.socketpair()
    with theirs:
        argv = [*own_program(), "guardian"]
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
        return os.posix_spawn(argv[0], argv, environment(), file_actions=actions, setsigmask=()), ours


class KeptRun:
    """The `dlapp.runtime.payload.Reachable` of the directories of a failed plain payload: only commands may run there.

    Args:
        payload: that has failed; the commands get its environment.
        guardian: the guardian of the commands; it stays open.
    """

    def __init__(self, payload: Payload, guardian: Guardian, note: Callable[[str], None]) -> None:
        self._payload, self._guardian = payload, guardian
        self._tmpdir = _short_tmpdir(payload, note)
        self._env = _with_tmpdir(payload.environment(), self._tmpdir)

    def place(self) -> PayloadPlace | None:
        return _place_of(self._payload, self._guardian)

    def open_keeper(self) -> socket.socket | None:
        return self._guardian.open_keeper(self._env, self._payload.workspace)

    def close(self) -> None:
        if self._tmpdir is not None:
            self._tmpdir.close()


def _short_tmpdir(payload: Payload, note: Callable[[str], None]) -> ShortTmpdir | None:
    """Return a short name for the TMPDIR of a payload; None if it is not needed or not possible."""
    if payload.env.get("TMPDIR") != payload.tmp or not is_too_long(payload.tmp):
        return None  # the user has set another one, or the default is short enough
    try:
        return ShortTmpdir(payload.tmp)
    except OSError as error:
        note(f"TMPDIR has no short path for Unix sockets: {error}")
        return None


def _with_tmpdir(env: Mapping[str, str], tmpdir: ShortTmpdir | None) -> Mapping[str, str]:
    return env if tmpdir is None else {**env, "TMPDIR": tmpdir.path}


class PlainRun:
    """The `dlapp.runtime.payload.Running` of a plain process."""

    def __init__(self, payload: Payload, guardian: Guardian, note: Callable[[str], None]) -> None:
        self._payload = payload
        self._guardian = guardian
        self._note = note
        self._tmpdir: ShortTmpdir | None = None
        self._lifeline: Lifeline | None = None
        self._env: Mapping[str, str] = NO_VARIABLES
        self._is_stopped = False
        self._kill_again_at: float | None = None
        self._result: PayloadExit | None = None
        self._counters = self._before = NOTHING_KNOWN
        self._oom_kills = OomKills()

    def start(self, start_env: Mapping[str, str] = NO_VARIABLES, peer_values: Mapping[str, str] = NO_VARIABLES) -> None:
        payload = self._payload
        words = payload.start_arguments()
        if peer_values:
            from dlapp.values.program.placeholders import substitute  # few programs have any

            words = substitute(words, peer_values)
        payload.write_context()
        how = words[0]
        if how.startswith("/") and not os.access(how, os.X_OK):
            raise PayloadError(Fault.USER, f"{payload.script}: its interpreter {how} is not there")
        self._lifeline = Lifeline(payload.life)
        # See wrapper.sh.
        files = payload.life, payload.stdout, payload.stderr, payload.exit_file
        argv = [SHELL, payload.wrapper, "exec", *files, *words]
        self._before = self._guardian.counters(all_ended=True)
        self._oom_kills.sample()
        self._tmpdir = _short_tmpdir(payload, self._note)
        self._env = _with_tmpdir({**payload.environment(), **start_env}, self._tmpdir)
        streams = payload.stdout, payload.stderr
        try:
            self._guardian.order(
                "start", payload.keep_fds, argv=argv, env=self._env, cwd=payload.workspace, streams=streams
            )
        except OSError as error:
            raise PayloadError(Fault.NODE, f"the payload's guardian is gone: {error}") from error

    def watched_fds(self) -> list[tuple[int, int]]:
        return [] if self._guardian.gone else [(self._guardian.fileno(), select.POLLIN)]

    def ended(self) -> PayloadExit | None:
        if self._lifeline is not None:
            self._lifeline.is_held_by_payload  # noqa: B018 (releases the reading end in time)
        if self._result is None:
            message = self._guardian.receive()
            if message is not None and message["ended"] is not None:
                ended = ended_with(message["ended"])._replace(left=left_text(*message["left"]))
                if self._is_stopped and ended.exit_code == 128 + signal.SIGTERM:
                    ended = PayloadExit(None, signal.SIGTERM)  # that of its last program, which its shell returns
                self._result = self._with_reason(ended)
                # Exact, and less than earlier readings if an ended process was counted twice for a moment.
                cpu_s, read_bytes, written_bytes, largest_bytes = message["used"]
                self._counters = self._counters._replace(
                    cpu_s=cpu_s,
                    read_bytes=read_bytes,
                    written_bytes=written_bytes,
                    largest_process_bytes=largest_bytes,
                )
            elif message is not None or self._guardian.gone:
                self._guardian.close()
                self._result = PayloadExit(None, None, Fault.NODE, "the guardian was killed, and the payload with it")
            elif self._kill_again_at is not None and time.monotonic() > self._kill_again_at:
                self._kill_again_at += _PATIENCE_S
                self._guardian.kill_inner()
        return self._result

    def _with_reason(self, ended: PayloadExit) -> PayloadExit:
        """Add to the exit that the kernel killed a process at the time when the payload was killed by an unknown
        sender.
        """
        is_killed = signal.SIGKILL in (ended.signal, (ended.exit_code or 0) - 128)
        if not is_killed or self._kill_again_at is not None or not self._oom_kills.happened():
            return ended
        text = "the kernel killed a process of this node for lack of memory at that time"
        return ended._replace(problem="; ".join(filter(None, (ended.problem, text))))

    def counters(self) -> ResourceCounters:
        if self._result is None:
            self._oom_kills.sample()
            self._counters = self._counters.updated(self._guardian.counters().since(self._before))
        return self._counters

    def pids(self) -> list[int]:
        return self._guardian.pids()

    def place(self) -> PayloadPlace | None:
        if self._lifeline is None or self._result is not None:
            return None
        return _place_of(self._payload, self._guardian)

    def open_keeper(self) -> socket.socket | None:
        if self._lifeline is None or self._result is not None:
            return None
        return self._guardian.open_keeper(self._env, self._payload.workspace)

    def soft_stop(self) -> None:
        self._is_stopped = True
        with contextlib.suppress(OSError):
            self._guardian.order("term")

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._guardian.order("abort")

    def kill(self) -> None:
        if self._kill_again_at is None:
            self._kill_again_at = time.monotonic() + _PATIENCE_S
            with contextlib.suppress(OSError):
                self._guardian.order("kill")
            if self._lifeline is not None:
                self._lifeline.close()

    def close(self) -> None:
        """See `Running.close`. After its payload has ended, or was never started, the guardian can be used for another
        one.
        """
        if self._result is None and self._lifeline is not None:
            self._guardian.close()
        if self._lifeline is not None:
            self._lifeline.close()
        if self._tmpdir is not None:
            self._tmpdir.close()
