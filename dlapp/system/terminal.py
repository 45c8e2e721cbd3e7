"""Terminal of a command, while the user's input is for another program."""

from __future__ import annotations

import contextlib
import termios
import tty
from collections.abc import Iterator


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass every key of standard input's terminal through unchanged, including Ctrl-C, during the block; what was typed
    ahead is kept."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal itself may be gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)
