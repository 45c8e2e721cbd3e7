"""Splitting of text into words like a POSIX shell, without expansions.

    a b        two words                  'a "b"'    what stands between, as it is
    a\\ b       one word: a b              "a \\"b"    as it is, but \\" \\\\ \\$ \\` lose their backslash
    '' ""      the empty word             $'a\\tb'    escapes as in C

Blanks, tabs and newlines separate words. ``$HOME``, ``*``, ``~``, ``;`` and ``#`` are ordinary characters.

Source: POSIX.1-2024, Shell Command Language, 2.2 Quoting; for the escapes that it leaves open, bash 5.
"""

from __future__ import annotations

import re

BLANKS = " \t\n"

_QUOTED = re.compile(r"""\\.|\$?'(?:[^'\\]|\\.)*'|'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_NO_EXPANSION = re.compile(r"\\.|[^\w$(){}`]", re.ASCII | re.DOTALL)
_PLAIN = re.compile(r"[^ \t\n'\"\\$]+")
_IN_DOUBLE = re.compile(r'[^"\\]+')
_ESCAPES = {
    "a": 7,
    "b": 8,
    "e": 27,
    "E": 27,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
    "'": 39,
    '"': 34,
    "?": 63,
}
_HEX = re.compile(r"x([0-9a-fA-F]{1,2})")
_OCTAL = re.compile(r"[0-7]{1,3}")
_UNICODE = re.compile(r"u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})")


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of ``text``.

    Raises:
        ValueError: an unclosed quote, a trailing backslash, or an escape that is not valid text; the message says
            which.
    """
    words: list[str] = []
    parts: list[str] | None = None  # of the current word; None between two words
    at = 0
    while at < len(text):
        if text[at] in BLANKS:
            if parts is not None:
                words.append("".join(parts))
                parts = None
            at += 1
        elif text.startswith("\\\n", at):
            at += 2  # a continuation line: the word continues
        else:
            part, at = _part(text, at)
            parts = [] if parts is None else parts
            parts.append(part)
    if parts is not None:
        words.append("".join(parts))
    return tuple(words)


def masked_words(text: str) -> list[str]:
    """Return the words of a valid text as a POSIX shell would see them: NUL stands for each quoted character, except
    for those of an expansion in double quotes, ``"$HOME"``."""

    def masked(quoted: re.Match[str]) -> str:
        in_double = quoted[0].startswith('"')
        return _NO_EXPANSION.sub("\0", quoted[0]) if in_double else "\0" * len(quoted[0])

    return _QUOTED.sub(masked, text).split()


def _part(text: str, at: int) -> tuple[str, int]:
    """Return the piece of a word that begins at ``at``, without its quotes, and the position after it."""
    char = text[at]
    if char == "'":
        if (end := text.find("'", at + 1)) < 0:
            raise ValueError(_open(text, at, "'"))
        return text[at + 1 : end], end + 1
    if char == '"':
        return _double(text, at)
    if text.startswith("$'", at):
        return _dollar(text, at)
    if char == "$":
        return "$", at + 1
    if char == "\\":
        if at + 1 == len(text):
            raise ValueError("ends with a backslash that nothing follows")
        return text[at + 1], at + 2
    match = _PLAIN.match(text, at)
    assert match is not None
    return match[0], match.end()


def _double(text: str, start: int) -> tuple[str, int]:
    out: list[str] = []
    at = start + 1
    while at < len(text):
        char = text[at]
        if char == '"':
            return "".join(out), at + 1
        if char != "\\":
            match = _IN_DOUBLE.match(text, at)
            assert match is not None
            out.append(match[0])
            at = match.end()
            continue
        after = text[at + 1 : at + 2]
        out.append({"\n": "", '"': '"', "\\": "\\", "$": "$", "`": "`"}.get(after, "\\" + after))
        at += 2
    raise ValueError(_open(text, start, '"'))


def _dollar(text: str, start: int) -> tuple[str, int]:
    out = bytearray()  # bytes: \xea\xb0\x80 is one character
    at = start + 2
    while at < len(text):
        char = text[at]
        if char == "'":
            try:
                return out.decode(), at + 1
            except UnicodeDecodeError:
                raise ValueError(f"{_shown(text, start)} is not UTF-8 once its escapes are resolved") from None
        if char == "\\" and at + 1 < len(text):
            value, at = _escape(text, at + 1)
            if value == b"\0":
                raise ValueError(f"{_shown(text, start)} has a NUL in it, which no argument can have")
            out += value
        else:
            out += char.encode()
            at += 1
    raise ValueError(_open(text, start, "$'"))


def _escape(text: str, at: int) -> tuple[bytes, int]:
    """Return the character for an escape after a backslash; an unknown escape keeps its backslash, as in bash."""
    if match := _HEX.match(text, at):
        return bytes([int(match[1], 16)]), match.end()
    if match := _OCTAL.match(text, at):
        return bytes([int(match[0], 8) & 0xFF]), match.end()
    if match := _UNICODE.match(text, at):
        code = int(match[1] or match[2], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError(f"\\{match[0]} is not a character")
        return chr(code).encode(), match.end()
    if text[at] == "c" and at + 1 < len(text) and text[at + 1].isascii():
        return bytes([ord(text[at + 1].upper()) & 0x1F if text[at + 1] != "?" else 0x7F]), at + 2
    if text[at] in _ESCAPES:
        return bytes([_ESCAPES[text[at]]]), at + 1
    return ("\\" + text[at]).encode(), at + 1


def _open(text: str, at: int, quote: str) -> str:
    return f"the quote {quote} before {_shown(text, at + len(quote))} does not close"


def _shown(text: str, at: int) -> str:
    piece = text[at : at + 20]
    return repr(piece) + ("..." if len(text) > at + 20 else "")
