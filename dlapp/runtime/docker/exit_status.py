"""Exit status of a container's payload: from what the wrapper wrote, and from dockerd if it still answers."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

from dlapp.net.dockerd import Dockerd, DockerRefused, DockerSilent
from dlapp.runtime.payload import SIGNALS, Payload, PayloadError, PayloadExit, exited_with, left_text, start_method
from dlapp.system.processes.proc import all_processes
from dlapp.values.messages import Fault

SETTLED_S = 10.0
"""How long dockerd may take to record the end of a container after the wrapper reported it; usually milliseconds."""
_EXITED = re.compile(r"exited ([0-9]{1,3})(?:\nleft ([0-9]{1,9}) ?(.*))?", re.ASCII)
_CODE_OF_SIGKILL = 128 + signal.SIGKILL
_DOCKER = "Docker"
_CODE_OF_UNSEEN_END = 255
"""Exit code that dockerd reports for a container that ended while dockerd was down. Source: moby, containerd's
UnknownExitStatus. If a payload itself ends with this code, the wrapper records it."""


class ContainerExit:
    """The end of one container."""

    def __init__(self, docker: Dockerd, name: str, payload: Payload, note: Callable[[str], None]) -> None:
        self._docker, self._name, self._payload, self._note = docker, name, payload, note

    def state(self) -> dict[str, Any]:
        """Return dockerd's state of it; empty if dockerd does not answer."""
        state: dict[str, Any] = self.inspect().get("State", {})
        return state

    def inspect(self) -> dict[str, Any]:
        """Return dockerd's full description of it; empty if dockerd does not answer."""
        try:
            return self._docker.inspect(self._name)
        except (DockerRefused, DockerSilent) as error:
            # The lifeline and the exit file work even if dockerd does not answer.
            self._note(f"container {self._name} cannot be inspected: {error}")
            return {}

    def wrapper_report(self) -> str:
        """Return the text that the wrapper wrote to the exit file."""
        with open(self._payload.exit_file, encoding="utf-8", errors="replace") as file:
            return file.read(65536)

    def read(
        self, *, taken: Callable[[], bool], sent: Collection[int], began_ticks: int, shim_died: bool = False
    ) -> PayloadExit:
        """Return how the payload ended.

        Args:
            taken: returns whether the wrapper started. Called once, after dockerd reported the end: a very short
                payload starts and ends during the request to dockerd.
            sent: signals that were sent to it.
            began_ticks: when it was started, from `ticks_now`.
            shim_died: whether the container's shim ended before the payload.

        Raises:
            PayloadError: the payload never started.
        """
        # The payload can write there too: anything but a wrapper's status is ignored.
        said = self.wrapper_report().strip()
        exited = _EXITED.fullmatch(said)
        self._check_start(said)
        left = left_text(int(exited[2] or 0), exited[3] or "") if exited else ""
        if exited and int(exited[1]) == 0:
            return PayloadExit(0, None, left=left)
        state = self.settled_state()
        if exited:
            ended = ended_with_code(int(exited[1]), sent)._replace(left=left)
        elif not taken():
            raise self.start_failure(state, began_ticks)
        elif state.get("Error"):
            return PayloadExit(None, None, Fault.NODE, f"the container did not run: {state['Error']}")
        elif "ExitCode" in state and not state.get("Running"):
            # A killed wrapper writes nothing; then the code is Docker's, and normally means a signal. Two codes mean
            # nothing: a container that was killed with its shim has 137, as if the payload had killed itself, and one
            # whose exit was not observed has 255.
            code = state["ExitCode"]
            if not sent and shim_died:
                return PayloadExit(None, None, Fault.NODE, "Docker's shim of the container was killed", service=_DOCKER)
            if not sent and code == _CODE_OF_UNSEEN_END:
                lost = f"Docker did not see how the container ended, and reports exit code {code}"
                return PayloadExit(None, None, Fault.NODE, lost, service=_DOCKER)
            ended = ended_with_code(code, SIGNALS)
        else:
            return PayloadExit(None, None, Fault.NODE, "the container is gone and left no exit code", service=_DOCKER)
        if self._was_out_of_memory(state, ended, killed=signal.SIGKILL in sent):
            return self._end_by_memory(ended)
        if not sent and (number := _signal_of(ended)) is not None and self._has_docker_ended(state, began_ticks):
            return PayloadExit(
                None,
                number,
                Fault.NODE,
                "Docker was stopped or restarted under the payload, and ended it (signal "
                f"{number}); with live-restore it would have gone on",
                service=_DOCKER,
            )
        return ended

    def _check_start(self, said: str) -> None:
        """Raise the reason for which the wrapper did not start the script; ``said`` is its report."""
        payload = self._payload
        if said == "no interpreter":
            how = start_method(payload.workspace, payload.script)
            raise PayloadError(Fault.USER, f"{payload.script}: its interpreter {how} is not in image {payload.image}")
        if said == "no workdir":
            problem = (
                f"workdir={payload.workdir}: image {payload.image} has no such directory that the program may enter"
            )
            raise PayloadError(Fault.USER, problem)
        if said.startswith("sees "):
            raise PayloadError(Fault.NODE, f"the container sees {said[5:100]}, although no GPU was asked for")

    def _end_by_memory(self, ended: PayloadExit) -> PayloadExit:
        """Return the end of a payload in a container in which a process was killed for memory."""
        limit = self._payload.resources.memory_mib
        if signal.SIGKILL in (ended.signal, (ended.exit_code or 0) - 128):
            problem = f"killed for memory: it used more than its {limit} MiB"
            return PayloadExit(None, signal.SIGKILL, problem=problem)
        # Docker's OOM flag covers any process of the container, also one whose end the script handled long ago.
        end = f"exit code {ended.exit_code}" if ended.signal is None else f"killed by signal {ended.signal}"
        earlier = f"earlier, a process in the container was killed for memory (limit {limit} MiB)"
        return ended._replace(problem=f"{ended.problem or end}; {earlier}")

    def settled_state(self) -> dict[str, Any]:
        """Return the container's state once dockerd has registered its end, which it does a little later than we see
        it.
        """
        deadline = time.monotonic() + SETTLED_S
        while (state := self.state()).get("Running") and time.monotonic() < deadline:
            time.sleep(0.01)
        return state

    def _has_docker_ended(self, state: Mapping[str, Any], began_ticks: int) -> bool:
        """Return True if dockerd is away, or is not the one that started the container."""
        began = _dockerd_start_times()
        ours = self._docker.process_id()
        # With systemd's socket activation the peer is systemd, so the daemon cannot be identified.
        asked = began if ours not in began else {ours: began[ours]}
        return not state or any(ticks > began_ticks for ticks in asked.values())

    def _was_out_of_memory(self, state: dict[str, Any], ended: PayloadExit, *, killed: bool) -> bool:
        # dockerd 20.10 receives the exit and the reason in either order (seen: 1 of 10 exits came first).
        by_sigkill = ended.signal == signal.SIGKILL or ended.exit_code == _CODE_OF_SIGKILL
        deadline = time.monotonic() + (0.5 if state and by_sigkill and not killed else 0.0)
        while not state.get("OOMKilled") and time.monotonic() < deadline:
            time.sleep(0.02)
            state = self.state()
        return bool(state.get("OOMKilled"))

    def start_failure(self, state: Mapping[str, Any], began_ticks: int) -> PayloadError:
        """Return why a container that dockerd started at ``began_ticks`` ended before its payload started."""
        image, code = self._payload.image, state.get("ExitCode")
        if code == 127:  # exit code of Docker's init if it cannot execute /bin/sh
            return PayloadError(Fault.USER, f"image {image} has no /bin/sh, which dlapp needs in it")
        why = state.get("Error") or f"exit code {code}"
        message = f"the container of image {image} ended before the payload began: {why}"
        return PayloadError(Fault.NODE, message, service=_DOCKER if self._has_docker_ended(state, began_ticks) else "")


def _signal_of(ended: PayloadExit) -> int | None:
    if ended.signal is not None:
        return ended.signal
    number = (ended.exit_code or 0) - 128
    return number if number in (signal.SIGTERM, signal.SIGKILL) else None


def ticks_now() -> int:
    """Return the time since boot in the unit of process start times in /proc [clock ticks]."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _dockerd_start_times() -> dict[int, int]:
    """Return the dockerd processes of the machine: pid -> start time."""
    return {one.pid: one.started for one in all_processes() if one.program == b"dockerd"}


def ended_with_code(code: int, signals: Container[int]) -> PayloadExit:
    """Interpret a shell's ``$?``: 128 + N means an end by signal N, or an exit with that code.

    Args:
        signals: sent to the payload, so 128 + N is one of these. Any other value is reported as a possible exit code.
    """
    number = code - 128
    if number in signals:
        return PayloadExit(None, number)
    return exited_with(code)
