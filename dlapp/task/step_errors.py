"""One step of a task: how an order to stop cuts it off, and whose fault its errors are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dlapp.errors import Denied, DlappError, NotFound, Unreachable, UsageError
from dlapp.runtime.payload import PayloadError
from dlapp.storage.api import DiskFull
from dlapp.system.disk_space import FULL
from dlapp.task.interrupt import InterruptHandler, Stopped, UninterruptedSteps
from dlapp.values.messages import Fault, Stop

REACH_S = 2.0
"""How long ZooKeeper or a NameNode may take to answer before it counts as away."""


class StepFailed(Exception):
    """A step failed, with the fault and the line for the user; ``service`` as in `TaskResult`."""

    def __init__(self, fault: Fault, message: str, *, service: str = "") -> None:
        super().__init__(message)
        self.fault, self.service = fault, service


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error is that of a full disk, and not of one that is too small even when it is empty."""
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
    """A step that an order to stop may cut off; its errors become `StepFailed`.

    Args:
        stopper: takes the orders to stop.
        what: what has failed then, for users.
        node: what is no error of the input or output is the node's fault, not the data's.
        service: the one that is away where a server does not answer.
        cut_by: the weakest order that cuts it off.
    """
    try:
        with stopper.interruptible(cut_by):
            yield
    except PayloadError as error:
        if stopper.wanted is Stop.NOW:
            raise Stopped(stopper.why) from error  # what it needs is being ended, too
        raise StepFailed(error.fault, str(error), service=error.service) from error
    except (NotFound, Denied, UsageError) as error:
        raise StepFailed(Fault.NODE if node else Fault.DATA, f"{what}: {error}") from error
    except Unreachable as error:
        raise StepFailed(Fault.SERVICE if service else Fault.NODE, f"{what}: {error}", service=service) from error
    except (DiskFull, ConnectionError, TimeoutError) as error:
        raise StepFailed(Fault.NODE, f"{what}: {error}") from error
    except DlappError as error:
        raise StepFailed(Fault.NODE if node else Fault.DATA, f"{what}: {error}") from error
    except OSError as error:
        raise StepFailed(Fault.NODE, f"{what}: {error.strerror}: {error.filename or ''}".rstrip(": ")) from error
