"""Interface of a payload to dlapp: the roster, progress and metrics, requests to stop, the checkpoint to resume from.

A program in a container imports this file as ``dlapp_context``. The file is on PYTHONPATH, supports Python 3.6 and
later, and needs only the standard library. Where dlapp is installed, the same file is ``dlapp.context``. Outside of a
container of dlapp the functions do nothing.

    import dlapp_context

    for step, batch in enumerate(batches):
        loss = train(batch)
        dlapp_context.metrics(step=step, loss=loss)
        dlapp_context.progress(step / len(batches))
        if dlapp_context.should_stop():
            break
"""

import json
import math
import os
import sys
import warnings
from typing import Any, Dict, Optional, Tuple

__all__ = ["checkpoint", "feed", "metrics", "progress", "ready", "resume_from", "roster", "should_stop"]


def roster() -> Optional[Dict[str, Any]]:
    """Return the roster: ``generation``, ``version`` and ``members``; None if there is none.

    Source: docs/payload.md, "Finding the other containers".
    """
    path = os.environ.get("DLAPP_ROSTER")
    if not path or not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return dict(json.load(file))


def progress(share: float) -> None:
    """Report the share of the work that is done, 0 to 1; other values are set to the nearer limit."""
    number = float(share)
    if math.isfinite(number):
        _report({"progress": min(1.0, max(0.0, number))})


def metrics(step: Optional[int] = None, **values: float) -> None:
    """Report values by name, and their step; omit values that are not finite.

    Args:
        step: a whole number; None: no step.
        values: anything that ``float`` accepts, such as a number, a NumPy scalar or a tensor of one element.
    """
    numbers = {name: float(value) for name, value in values.items()}
    said = {"metrics": {name: number for name, number in numbers.items() if math.isfinite(number)}}  # type: Dict[str, Any]
    if step is not None:
        said["step"] = int(step)
    _report(said)


def ready() -> None:
    """Report that this program can serve others; ``depends_on=ROLE:ready`` waits for this report."""
    _report({"ready": True})


def checkpoint(directory: str, step: Optional[int] = None) -> None:
    """Report that a directory has a complete checkpoint, and write the positions of this process's feeds into it.

    Args:
        directory: its path.
        step: the step of the checkpoint, a whole number; None: no step.
    """
    if _FEED in sys.modules:
        sys.modules[_FEED].write_positions(directory)
    said = {"checkpoint": os.fspath(directory)}  # type: Dict[str, Any]
    if step is not None:
        said["step"] = int(step)
    _report(said)


def should_stop() -> bool:
    """Return whether the program should save its state and end; cheap enough for each step."""
    path = os.environ.get("DLAPP_STOP")
    return bool(path) and os.path.exists(str(path))


def resume_from() -> Optional[str]:
    """Return the directory of the checkpoint to continue from; None: start from the beginning."""
    return os.environ.get("DLAPP_RESUME_FROM") or None


def feed(name: str = "", part: Optional[Tuple[int, int]] = None, start: Optional[Dict[str, Any]] = None) -> Any:
    """Return the feed of an input with ``mode=feed``: an iterable of the records for this process.

    It continues at the position in the checkpoint of `resume_from`, if `checkpoint` wrote one there.

    Args:
        name: the name of the section ``[from_hdfs NAME]``; empty: the section without a name, or the first section.
        part: the number of this process among the processes of its container that share the records, and the number of
            these processes; None: only the DataLoader workers of PyTorch share them.
        start: a position of the feed (``position()``) after which to continue; ``{}``: start from the beginning.

    Raises:
        RuntimeError: there is no such feed.
    """
    import importlib

    suffix = "".join(char if char in _CAPITALS else "_" for char in name.upper())
    variable = "DLAPP_FEED_" + suffix if name else "DLAPP_FEED"
    path = os.environ.get(variable)
    if not path:
        raise RuntimeError("there is no feed: {} is not set, as [from_hdfs] with mode=feed sets it".format(variable))
    return importlib.import_module(_FEED).Feed(path, name, part, start)


_FEED = "dlapp_feed" if __name__ == "dlapp_context" else "dlapp.feed"
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def _report(said: Dict[str, Any]) -> None:
    path = os.environ.get("DLAPP_REPORT")
    if not path:
        return
    line = json.dumps(said).encode() + b"\n"
    try:
        # One write, so that lines of several processes do not mix.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError as error:  # for example a full disk, which must not end the program
        warnings.warn("dlapp did not get the report: {}".format(error), RuntimeWarning, stacklevel=3)
