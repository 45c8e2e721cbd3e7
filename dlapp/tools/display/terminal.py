"""Program output made safe for a terminal: colours are kept, other control sequences removed.

Control sequences can make a terminal send text as if it was typed, set its title or the clipboard, or overwrite text.
Only SGR sequences (colours and the like) pass, and of control characters the line end, the tab and the carriage return.

Source: ECMA-48, 5.4 (control sequences), 5.6 (control strings), 8.3.117 (SGR); XTerm Control Sequences.
"""

from __future__ import annotations

import codecs
import re

RESET = "\x1b[0m"
_SGR = re.compile(r"\x1b\[[0-9;:]*m")

_TOKENS = re.compile(
    # Bounded, so that hostile text takes linear time and the held-back part is short.
    r"""(?P<sgr>   \x1b\[[0-9;:]{0,64}m)
    |   (?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]                                           # another control sequence
    |   (?:\x1b[P\]X^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)   # a control string
    |   (?P<begun> (?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}\Z
                |  \x1b[ -/]{0,8}\Z
                |  (?:\x1b[P\]X^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}\x1b?\Z)
    |   \x1b[ -/]{0,8}[0-~]                                                                 # another escape sequence
    |   [\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]                     # one that stands alone
    """,
    re.VERBOSE,
)


def without_controls(text: str, *, ended: bool = True) -> tuple[str, str]:
    """Remove all control sequences except colours.

    Args:
        ended: whether nothing follows; otherwise an incomplete sequence is held back.

    Returns:
        The safe text, and the held-back part, to be prepended to the following text.
    """
    begun = ""

    def shown(match: re.Match[str]) -> str:
        nonlocal begun
        if not ended and match["begun"]:
            begun = match["begun"]
        return match["sgr"] or ""

    return _TOKENS.sub(shown, text), begun


class TerminalStream:
    """One stream of bytes in arbitrary pieces, for a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begun = ""
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """Return the safe part of ``data``; empty data means the end of the stream."""
        text, self._begun = without_controls(self._begun + self._decoder.decode(data, not data), ended=not data)
        self._coloured = self._coloured or "\x1b" in text
        if data or not self._coloured:
            return text
        return text + RESET


def terminal_line(line: bytes) -> str:
    """Return a line that cannot hide earlier text or colour later text on a shared terminal.

    Of a line that carriage returns overwrote, only the last version is shown."""
    text, _ = without_controls(line.decode(errors="replace"))
    text = text.rstrip("\r").rpartition("\r")[2]
    return text + RESET if "\x1b" in text else text


def plain_line(line: bytes) -> str:
    """Return what `terminal_line` shows of a line, without its colours."""
    return _SGR.sub("", terminal_line(line))
