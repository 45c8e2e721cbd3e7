"""One step of a task: interruption by a stop order, and the fault of its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dlapp.errors import DlappError, Unreachable
from dlapp.runtime.payload import PayloadError
from dlapp.storage.values import DiskFull
from dlapp.system.disk_space import FULL
from dlapp.task.interrupt import InterruptHandler, Stopped, UninterruptedSteps
from dlapp.values.messages import Fault, Stop

REACH_S = 2.0
"""Time limit for ZooKeeper or a NameNode to answer before it counts as unavailable."""


class StepFailed(Exception):
    """A step failed, with the fault and the line for the user; ``service`` and ``is_closed`` as in `TaskResult`."""

    def __init__(self, fault: Fault, message: str, *, service: str = "", is_closed: bool = False) -> None:
        super().__init__(message)
        self.fault, self.service, self.is_closed = fault, service, is_closed


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error means a full disk, rather than a disk that would be too small even when empty."""
    if isinstance(error, DiskFull):
        return not error.is_too_small
    return isinstance(error, OSError) and not isinstance(error, DlappError) and error.errno in FULL


@contextmanager
def step(
    stopper: InterruptHandler | UninterruptedSteps,
    what: str,
    *,
    node: bool = False,
    service: str = "",
    cut_by: Stop = Stop.SOFT,
) -> Iterator[None]:
    """Return a block that a stop order may interrupt; its errors become `StepFailed`.

    Args:
        stopper: receives stop orders.
        what: the failed action, for users.
        node: whether errors that are not errors of the input or output are the node's fault instead of the data's.
        service: the service that is away if a server does not answer.
        cut_by: the weakest order that interrupts the step.
    """
    try:
        with stopper.interruptible(cut_by):
            yield
    except PayloadError as error:
        if stopper.wanted is Stop.NOW:
            raise Stopped(stopper.why) from error  # the services that it needs are being ended, too
        raise StepFailed(error.fault, str(error), service=error.service) from error
    except Unreachable as error:
        raise StepFailed(Fault.SERVICE if service else Fault.NODE, f"{what}: {error}", service=service) from error
    except (DiskFull, ConnectionError, TimeoutError) as error:
        raise StepFailed(Fault.NODE, f"{what}: {error}") from error
    except DlappError as error:
        raise StepFailed(Fault.NODE if node else Fault.DATA, f"{what}: {error}") from error
    except OSError as error:
        raise StepFailed(Fault.NODE, f"{what}: {error.strerror}: {error.filename or ''}".rstrip(": ")) from error
