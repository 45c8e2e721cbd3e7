"""Payload's side of dlapp: who else runs, progress and metrics, when to stop, where to resume.

A program in a container imports this file as ``dlapp_context``, and needs neither dlapp nor another library for it: it
is one file of the standard library, for Python 3.6 and later, on PYTHONPATH. Where dlapp is installed the same file is
``dlapp.context``. A program that does not run in a container of dlapp can call the same functions: they do nothing.

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
    """Report the share of the work that is done, 0 to 1; what is beyond counts as the nearest of the two."""
    number = float(share)
    if math.isfinite(number):
        _report({"progress": min(1.0, max(0.0, number))})


def metrics(step: Optional[int] = None, **values: float) -> None:
    """Report values by name, and the step that they are of; a value that is not finite is left out.

    Args:
        step: a whole number; None: no step.
        values: what ``float`` takes, such as a number, a NumPy scalar or a tensor of one element.
    """
    numbers = {name: float(value) for name, value in values.items()}
    said = {"metrics": {name: number for name, number in numbers.items() if math.isfinite(number)}}  # type: Dict[str, Any]
    if step is not None:
        said["step"] = int(step)
    _report(said)


def ready() -> None:
    """Report that this program can serve others, as ``depends_on=ROLE:ready`` waits for it."""
    _report({"ready": True})


def checkpoint(directory: str, step: Optional[int] = None) -> None:
    """Report that a directory has a complete checkpoint. The positions of this process's feeds are written into it.

    Args:
        directory: its path.
        step: the step that it is of, a whole number; None: no step.
    """
    if _FEED in sys.modules:
        sys.modules[_FEED].write_positions(directory)
    said = {"checkpoint": os.fspath(directory)}  # type: Dict[str, Any]
    if step is not None:
        said["step"] = int(step)
    _report(said)


def should_stop() -> bool:
    """Return whether the program should save what it has and end; cheap enough for each step."""
    path = os.environ.get("DLAPP_STOP")
    return bool(path) and os.path.exists(str(path))


def resume_from() -> Optional[str]:
    """Return the directory of the checkpoint to continue from; None: begin anew."""
    return os.environ.get("DLAPP_RESUME_FROM") or None


def feed(name: str = "", part: Optional[Tuple[int, int]] = None, start: Optional[Dict[str, Any]] = None) -> Any:
    """Return the feed of an input with ``mode=feed``: an iterable of the records that this process is to read.

    It continues at the position in the checkpoint of `resume_from`, where `checkpoint` reported one.

    Args:
        name: of the section ``[from_hdfs NAME]``; empty: the one without a name, or the first one.
        part: the number of this process among those of its container that share the records, and how many these are;
            None: the DataLoader workers of PyTorch share them, and nobody else does.
        start: a position of the feed (``position()``) after which to continue; ``{}``: begin anew.

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
    except OSError as error:  # a full disk, say: no reason for a program to end
        warnings.warn("dlapp was not told of it: {}".format(error), RuntimeWarning, stacklevel=3)
