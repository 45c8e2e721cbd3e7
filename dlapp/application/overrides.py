"""Command options that override the properties file: ``--set``, ``--env`` and the words after ``--``.

Keys are inserted into the file's text before it is checked, so that they have the same rules and messages, with the
option in place of the line. Values of variables are never inserted: that text is printed by ``--print-spec``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlapp.errors import UsageError
from dlapp.system.text import shown
from dlapp.value import Value, field

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)


class OptionNames(NamedTuple):
    """Names of the options in messages."""

    settings: str = "--set"
    env: str = "--env"
    args: str = "the arguments after --"


OPTIONS = OptionNames()


class Overrides(Value):
    """Values that override those of the file.

    Args:
        settings: ``SECTION.KEY`` -> value as in the file; an empty one takes the key out of the file, unless it is
            required or may be empty.
        env: variables of the program, added to the file's.
        args: replaces user_shell_args; None to keep the file's.
        names: for messages.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    args: tuple[str, ...] | None = None
    names: OptionNames = OPTIONS


NO_OVERRIDES = Overrides()


def read_set_options(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of ``SECTION.KEY=VALUE``; the last one of a key wins.

    Raises:
        UsageError: one has another form.
    """
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--set {shown(text)} is not SECTION.KEY=VALUE, such as resources.memory=4g")
        settings[name.strip()] = value
    return settings


def read_env_options(texts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``NAME=VALUE`` or ``NAME``, whose value is taken from the environment. Messages never
    contain values.

    Raises:
        UsageError: a name is empty, or is not in the environment.
    """
    env = {}
    for place, text in enumerate(texts, start=1):
        name, separator, value = text.partition("=")
        if not name:
            raise UsageError(f"--env number {place} is not NAME=VALUE or NAME")
        if not separator and name not in environ:
            raise UsageError(f"--env {name}: is not set here, so it cannot be passed on; write {name}=VALUE")
        env[name] = value if separator else environ[name]
    return env


def quoted_words(words: Sequence[str]) -> str:
    """Return the text of ``user_shell_args`` that parses to ``words``."""
    text = " ".join(_quoted(word) for word in words)
    # A pair of quotes around the whole value would be removed.
    return f"''{text}" if text[:1] in ("'", '"') else text


def _quoted(word: str) -> str:
    if _SAFE.fullmatch(word):
        return word
    if not re.search(r"[\x00-\x1f\x7f-\xa0\ud800-\udfff]", word):  # all of it can be printed
        return "'" + word.replace("'", "'\\''") + "'"
    escaped = (f"\\x{byte:02x}" if byte < 32 or byte > 126 or byte in b"'\\" else chr(byte) for byte in word.encode())
    return f"$'{''.join(escaped)}'"
