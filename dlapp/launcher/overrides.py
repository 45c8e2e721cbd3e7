"""Options of a command in place of the properties file: ``--set``, ``--env`` and the words after ``--``.

Keys are put into the file's text before it is checked, so that they have the same rules and the same messages, with the
option in place of the line. Values of variables never come near that text: it is printed by ``--print-spec``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlapp.errors import UsageError
from dlapp.system.text import shown
from dlapp.value import Value, field

_PRINTABLE = re.compile(r"[ -~\u00a1-\ud7ff\ue000-\U0010ffff]*")
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)


class OptionNames(NamedTuple):
    """Names of the options in messages."""

    settings: str = "--set"
    env: str = "--env"
    args: str = "the arguments after --"


OPTIONS = OptionNames()


class Overrides(Value):
    """Values that replace those of the file.

    Args:
        settings: ``SECTION.KEY`` -> value as in the file.
        env: variables of the program, on top of the file's.
        args: in place of user_shell_args; None: as in the file.
        names: for messages.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    args: tuple[str, ...] | None = None
    names: OptionNames = OPTIONS


NO_OVERRIDES = Overrides()


def read_set_options(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of ``SECTION.KEY=VALUE``; of two of one key the last.

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
    """Return the variables of ``NAME=VALUE`` or ``NAME``, whose value the environment has. No message has a value.

    Raises:
        UsageError: one has no name, or a name alone is not in the environment.
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
    """Return the text of ``user_shell_args`` that stands for ``words``."""
    text = " ".join(_quoted(word) for word in words)
    # A pair of quotes around the whole value would be taken off.
    return f"''{text}" if text[:1] in ("'", '"') else text


def _quoted(word: str) -> str:
    if _SAFE.fullmatch(word):
        return word
    if _PRINTABLE.fullmatch(word):
        return "'" + word.replace("'", "'\\''") + "'"
    escaped = (f"\\x{byte:02x}" if byte < 32 or byte > 126 or byte in b"'\\" else chr(byte) for byte in word.encode())
    return f"$'{''.join(escaped)}'"
