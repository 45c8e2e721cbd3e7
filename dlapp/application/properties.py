"""Reading a properties file: text -> `Properties`, or all its errors at once.

    # a comment, only at the start of a line          [section]  or  [section NAME]
    key=value                                         the first = separates, blanks around both are dropped
        more of the value                             a line that begins with a blank continues it

UTF-8 with or without a byte order mark, LF or CRLF; nothing is interpolated, keys are case-sensitive. Comments and
empty lines do not end a value. An error is a line ``file:line: section.key: what is wrong``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dlapp.application.forms import check_variable, read_link
from dlapp.application.keys import (
    CACHE,
    ENV,
    GRID,
    LINK,
    NAMED,
    OF_ROLES,
    RANDOM,
    REQUIRED_SECTIONS,
    SECTIONS,
    key_of,
    without_quotes,
)
from dlapp.application.overrides import NO_OVERRIDES, Overrides, quoted_words
from dlapp.application.problems import problems_of_given
from dlapp.errors import DlappError, FileRefused, SpecError
from dlapp.system.text import ALL_NAMES, shown
from dlapp.value import Value, field, replace
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import check_cache_name, check_env_name, check_parameter_name, check_role_name

MAX_BYTES = 1 << 20
MAX_RECORDED_BYTES = 64 << 10
"""Maximum size of the recorded submission: on a cluster it is part of the credentials, which are limited to 256 KiB."""
MAX_PROBLEMS = 100
_KEPT = 10_000
"""Errors that are kept and counted: a file of 1 MiB may have many more."""
MASK = "***"
SECTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}", re.ASCII)

Line = int | str
"""Position of an error: a line of the file, from 1, or an option of the command, such as ``--set``; 0: none."""

_MISSING = "is missing"
_BLANKS = " \t"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Setting(Value):
    """One value as written, including quotes.

    Args:
        value: the text.
        line: its line in the file, from 1.
        option: command option that overrides the file; empty if none does.
    """

    value: str
    line: int = field(default=1, compare=False)
    option: str = field(default="", compare=False)


class Properties(Value, kw_only=True):
    """A properties file. Files with the same content are equal; path, comments and lines do not matter.

    Args:
        path: the path of the file, as given; relative paths in it are relative to its directory.
        sections: section (``application``, ``from_hdfs train``) -> key -> value.
        headers: section -> line of its ``[...]``.
    """

    path: str = field(compare=False)
    sections: Mapping[str, Mapping[str, Setting]]
    headers: Mapping[str, int] = field(default_factory=dict, compare=False)

    def line(self, section: str, key: str = "") -> Line:
        """Return the line of a key; for a missing key its section's line, for a missing section the first."""
        setting = self.sections.get(section, {}).get(key)
        return (setting.option or setting.line) if setting else self.headers.get(section, 1)

    def place(self, section: str, key: str) -> str:
        """Return the file or option that sets a key, with its line; for an unset key only the file."""
        if key not in self.sections.get(section, {}):
            return self.path
        line = self.line(section, key)
        return line if isinstance(line, str) else f"{self.path}:{line}" if line else self.path

    def value(self, section: str, key: str, default: Any = None) -> Any:
        """Return the value of a key (``resources``, ``memory`` -> MiB), or ``default``. The file has been checked."""
        setting = self.sections.get(section, {}).get(key)
        known = key_of(section, key)
        return default if setting is None or known is None else known.read(setting.value)

    def values(self) -> dict[str, dict[str, Any]]:
        """Return section -> key -> value. The file has been checked."""
        return {
            section: {name: self.value(section, name) for name in settings}
            for section, settings in self.sections.items()
        }

    def masked(self) -> Properties:
        """Return a copy with all values of ``env.NAME`` masked."""
        sections = {
            section: {
                key: replace(setting, value=MASK) if key.startswith(ENV) else setting
                for key, setting in settings.items()
            }
            for section, settings in self.sections.items()
        }
        return Properties(path=self.path, sections=sections, headers=self.headers)

    def to_record(self) -> str:
        """Return the text for the record: without ``env.NAME``; empty if it is too large."""
        sections = {
            section: {key: setting for key, setting in settings.items() if not key.startswith(ENV)}
            for section, settings in self.sections.items()
        }
        text = Properties(path=self.path, sections=sections).to_text()
        return text if len(text.encode()) <= MAX_RECORDED_BYTES else ""

    def to_text(self) -> str:
        """Return a file with exactly this content."""
        lines: list[str] = []
        for section, settings in self.sections.items():
            lines += [""] * bool(lines) + [f"[{section}]"]
            lines += [f"{key}={setting.value}".replace("\n", "\n    ") for key, setting in settings.items()]
        return "\n".join(lines) + "\n"

    def to_json(self) -> Any:
        """Return the JSON form; `Properties.from_json` restores an equal value."""
        return to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Properties:
        """Read the JSON form.

        Raises:
            SpecError: it does not have the form of `Properties`.
            FileRefused: no file can have this content.
        """
        properties = from_json(cls, data, strict=True)
        again = parse_properties(properties.to_text(), properties.path)
        if again != properties:
            raise FileRefused([f"{properties.path}:1: the JSON form holds what no file can say"])
        return properties


class Problems:
    """Errors of one file, sorted by line, and those of the engine and of the world, in one answer.

    Args:
        path: the path of the file, as given; or what stands for it.
        lines: the settings of the file, whose lines and options are named; None: none are known.
    """

    def __init__(self, path: str, lines: Properties | None = None) -> None:
        self.path, self.lines = path, lines
        self.named: set[str] = set()
        """Keys with an error (``application.appname``), so that they are not reported as missing, too."""
        self._found: list[tuple[float, str]] = []
        self._texts: set[str] = set()
        self._lists: dict[str, str] = {}  # hint with all names -> the key whose error has it
        self._errors: list[DlappError] = []

    def report(self, where: str, problem: object) -> None:
        """Add an error of a section or key (``section.key``), with its line."""
        section, _, key = where.partition(".")
        self.add(self.lines.line(section, key) if self.lines is not None else 0, where, problem)

    def add_error(self, error: DlappError) -> None:
        """Add an error that is raised as it is if it stays the only one; a `SpecError` is that of its key."""
        if isinstance(error, SpecError):
            self.report(error.field, error.problem)
        else:
            self.keep(error)

    def keep(self, error: DlappError, line: Line = "") -> None:
        """Add an error that names its place itself, and is raised as it is if it stays the only one.

        Args:
            error: the error.
            line: its line in the file, for the order; an option or empty: after those of the file.
        """
        if self._keep(float("inf") if isinstance(line, str) else line, str(error)):
            self._errors.append(error)

    def _keep(self, place: float, text: str) -> bool:
        """Keep an error, unless there is the same one, or very many."""
        if text in self._texts or len(self._found) >= _KEPT:
            return False
        self._texts.add(text)
        self._found.append((place, text))
        return True

    def add(self, line: Line, where: str, problem: object) -> None:
        """Add an error; ``where`` is ``section.key``, or empty if the line is neither."""
        self.named.add(where)
        what = f"{where}: {problem}" if where else str(problem)
        if isinstance(line, str):
            self._keep(float("inf"), f"{line}: {what}")
        else:
            self._keep(line, f"{self.path}:{line}: {what}" if line else f"{self.path}: {what}")

    def add_unknown(self, line: Line, where: str, what: str, hint: Callable[[], str]) -> None:
        """Add an error for an unknown name.

        Args:
            line: the line of the file, or an option.
            where: section and key, for the message.
            what: the problem, as in ``is not known``.
            hint: returns a suggestion; slow, so it is not called any more after many errors.
        """
        self.add(line, where, what if len(self._found) >= MAX_PROBLEMS else f"{what}, {self.hint_once(where, hint())}")

    def hint_once(self, where: str, hint: str) -> str:
        """Return a hint; for a list of all names that another error has, a reference to that error."""
        first = self._lists.setdefault(hint, where) if hint.startswith(ALL_NAMES) else where
        return hint if first == where else f"see {first} for all names"

    def __bool__(self) -> bool:
        return bool(self._found)

    def refuse(self) -> None:
        """Raise FileRefused if there are errors; a single error that is not of the file as it is."""
        if len(self._errors) == len(self._found) == 1:
            raise self._errors[0]
        if self._found:
            lines = [text for _, text in sorted(self._found, key=lambda found: found[0])]
            more = len(lines) - MAX_PROBLEMS
            raise FileRefused(lines if more <= 0 else [*lines[:MAX_PROBLEMS], f"{self.path}: {more} more errors"])


def parse_properties(text: str | bytes, path: str) -> Properties:
    """Read a properties file.

    Args:
        path: the path of the file, for messages and for relative paths in it; the file is not read.

    Raises:
        FileRefused: with all errors that can be found from the text.
    """
    problems = Problems(path)
    properties = read_properties(text, path, problems)
    problems.refuse()
    return properties


def read_properties(
    text: str | bytes, path: str, problems: Problems, overrides: Overrides = NO_OVERRIDES
) -> Properties:
    """Parse like `parse_properties`, but continue after errors, and omit what cannot be parsed.

    Args:
        text: content of the file.
        path: the path of the file.
        problems: collects the errors.
        overrides: values that override the file's; their variables are not included.
    """
    if len(text) > MAX_BYTES:
        problems.add(1, "", f"has more than {MAX_BYTES >> 20} MiB; a properties file is a few lines of text")
        problems.refuse()
    if isinstance(text, bytes):
        text = _decoded(text, problems)
    properties = _PropertiesReader(path, problems).properties(text.removeprefix("\ufeff"))
    return _checked(_overridden(properties, overrides, problems), problems)


def _overridden(properties: Properties, overrides: Overrides, problems: Problems) -> Properties:
    sections = {section: dict(settings) for section, settings in properties.sections.items()}
    option = overrides.names.settings
    for name, value in overrides.settings.items():
        section, _, key = name.partition(".")
        if section in OF_ROLES and key:
            name_of_role, _, key = key.partition(".")
            section = f"{section} {name_of_role}"
        if _is_of_role(section) and section not in sections:
            problems.add(option, _plain(name), f"there is no [{_plain(section)}] in the file")
            continue
        if not key and section not in SECTIONS:
            problems.add_unknown(option, _plain(section), "has no section", partial(_nearest_key, "", section))
        elif found := _CONTROL.search(value):
            problems.add(option, _plain(name), _of_control(found[0]))
        elif (known := _known_section(section.split(), option, problems)) is not None:
            text = "\n".join(line for line in (one.strip(_BLANKS) for one in value.split("\n")) if line)
            of_key = key_of(known, key)
            if not text and of_key is not None and not of_key.required and not of_key.may_be_empty:
                sections.get(known, {}).pop(key, None)
            else:
                sections.setdefault(known, {})[key] = Setting(text, option=option)
    if overrides.args is not None:
        try:
            args = quoted_words(overrides.args)
        except UnicodeEncodeError:
            problems.add(overrides.names.args, "application.user_shell_args", "are not UTF-8")
        else:
            sections.setdefault("application", {})["user_shell_args"] = Setting(args, option=overrides.names.args)
    return replace(properties, sections=sections)


def _decoded(data: bytes, problems: Problems) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        line = before.count(b"\n") + 1
        problems.add(
            line, "", f"byte {column} is 0x{data[error.start]:02X}, which is not UTF-8; save the file as UTF-8"
        )
        problems.refuse()
        raise


class _PropertiesReader:
    """Parser from lines to sections, for any keys."""

    def __init__(self, path: str, problems: Problems) -> None:
        self.problems = problems
        self.path = path
        self.headers: dict[str, int] = {}
        self._sections: dict[str, dict[str, tuple[int, list[str]]]] = {}
        self._section: str | None = None  # None before the first section, or in a skipped one
        self._before_the_first = True
        self._value: list[str] | None = None  # continued by indented lines
        self._passing = False  # the line above was wrong: its continuation is no further error

    def properties(self, text: str) -> Properties:
        """Read all lines."""
        for number, line in enumerate(text.split("\n"), start=1):
            self._line(number, line.removesuffix("\r"))
        sections = {
            section: {key: Setting("\n".join(lines).strip("\n"), line) for key, (line, lines) in settings.items()}
            for section, settings in self._sections.items()
        }
        return Properties(path=self.path, sections=sections, headers=self.headers)

    def _line(self, number: int, line: str) -> None:
        if found := _CONTROL.search(line):
            self.problems.add(number, _where(self._section, line), _of_control(found[0]))
            self._value, self._passing = None, True
            return
        bare = line.strip(_BLANKS)
        if not bare or line[0] in "#;":
            return
        if line[0] in _BLANKS:
            if self._value is not None:
                self._value.append(bare)
            elif not self._passing:
                problem = "begins with a blank, so it would continue a value above it, but there is none"
                self.problems.add(number, "", problem)
                self._passing = True
            return
        self._value, self._passing = None, False
        if line[0] == "[":
            self._section = _header(bare, number, self.headers, self.problems)
            self._before_the_first = False
            if self._section is None:
                self._passing = True
            else:
                self._sections.setdefault(self._section, {})
        else:
            self._setting(number, bare)

    def _setting(self, number: int, line: str) -> None:
        name, separator, value = line.partition("=")
        name = name.rstrip(_BLANKS)
        self._passing = True
        if not separator or not name:
            self.problems.add(number, "", f"{shown(line, 40)} is neither key=value nor [section] nor a comment (#)")
        elif self._section is None:
            if self._before_the_first:
                self.problems.add(number, "", f"{shown(name, 40)} is before the first [section]")
        elif name in (settings := self._sections[self._section]):
            where = f"{self._section}.{_plain(name)}"
            self.problems.add(number, where, f"appears twice, first in line {settings[name][0]}")
        else:
            self._value, self._passing = [value.strip(_BLANKS)], False
            settings[name] = (number, self._value)


def _header(line: str, number: int, headers: dict[str, int], problems: Problems) -> str | None:
    """Return the section that a line opens; None if it is unknown, so that its lines are skipped."""
    if not line.endswith("]") or "]" in line[:-1] or "[" in line[1:] or not line[1:-1].strip():
        problems.add(number, "", f"{shown(line, 40)} is not a [section]")
        return None
    words = line[1:-1].split()
    section = " ".join(words)
    first = headers.setdefault(section, number)
    if first != number:
        problems.add(number, section, f"appears twice, first in line {first}")
        if words[0] not in SECTIONS:
            return None
    return _known_section(words, number, problems)


def _known_section(words: list[str], line: Line, problems: Problems) -> str | None:
    """Return the section that ``words`` name; None after an error, which is noted."""
    kind, *names = words or [""]
    section = " ".join(words)
    if kind not in SECTIONS:
        problems.add_unknown(line, _plain(section), "is not a section", partial(_nearest_section, kind))
        return None
    if kind in OF_ROLES:
        try:
            check_role_name(section, " ".join(names))
        except SpecError as refused:
            example = "[role worker]" if kind == "role" else "[service board]"
            problems.add(line, _plain(section), refused.problem if names else f"needs a name: {example}")
            return None
        return section
    if names and (kind not in NAMED or len(names) > 1 or not SECTION_NAME.fullmatch(names[0])):
        what = "takes no name" if kind not in NAMED else "needs a name of letters, digits, '_' and '-', 31 at most"
        problems.add(line, _plain(section), what)
        return None
    return section


def _checked(properties: Properties, problems: Problems) -> Properties:
    """Return the settings that are known, allowed in their section, and valid; note the others."""
    sections: dict[str, dict[str, Setting]] = {}
    for section, settings in properties.sections.items():
        good = sections[section] = {}
        for name, setting in settings.items():
            where, line = f"{section}.{_plain(name)}", properties.line(section, name)
            if (key := key_of(section, name)) is None:
                problems.add_unknown(line, where, "is not known", partial(_nearest_key, section, name))
                continue
            try:
                check_name(where, name, key.read(setting.value))
                good[name] = setting
            except SpecError as refused:
                problems.add(line, where, refused.problem)
            except ValueError as problem:
                problems.add(line, where, problem)
        for name, key in SECTIONS[section.partition(" ")[0]].items():
            where = f"{section}.{name}"
            if key.required and name not in settings and where not in problems.named:
                problems.add(properties.line(section), where, _MISSING)
    for section in REQUIRED_SECTIONS:
        if section not in sections:
            problems.add(1, section, _MISSING)
    for where, found in problems_of_given(properties.sections, lambda setting: without_quotes(setting.value)):
        if found != _MISSING or where not in problems.named:
            problems.add(properties.line(*where.partition(".")[::2]), where, found)
    return Properties(path=properties.path, sections=sections, headers=properties.headers)


def check_name(where: str, name: str, value: Any) -> None:
    """Refuse the user's part of the name of a key such as ``env.NAME``, or its value with this name.

    Args:
        where: section and key, for messages.
        name: name of the key.
        value: its value.

    Raises:
        SpecError: the name, or a part of the value, is invalid.
        ValueError: the value has another form.
    """
    if name.startswith(ENV):
        check_env_name(where, name.removeprefix(ENV))
        check_variable(value, name.removeprefix(ENV))
    elif name.startswith(CACHE):
        check_cache_name(where, name.removeprefix(CACHE))
    elif name.startswith(LINK):
        read_link(name.removeprefix(LINK), value)
    elif name.startswith((GRID, RANDOM)):
        check_parameter_name(where, name.removeprefix(GRID).removeprefix(RANDOM))


def _nearest_key(section: str, name: str) -> str:
    from dlapp.application.hints import nearest_key  # only for an error

    return nearest_key(section, name)


def _nearest_section(kind: str) -> str:
    from dlapp.application.hints import nearest_section  # only for an error

    return nearest_section(kind)


def _is_of_role(section: str) -> bool:
    return section.partition(" ")[0] in OF_ROLES and " " in section


def _where(section: str | None, line: str) -> str:
    name, separator, _ = line.partition("=")
    if section is None or not separator or not re.fullmatch(r"[A-Za-z0-9_.]{1,80}", name.strip(_BLANKS)):
        return ""
    return f"{section}.{name.strip(_BLANKS)}"


def _of_control(character: str) -> str:
    if character == "\0":
        return "has a NUL in it"
    if character == "\r":
        return "has a carriage return inside the line; lines end with LF or CRLF"
    if character >= "\ud800":
        return f"has an unpaired surrogate in it (U+{ord(character):04X})"
    return f"has the control character U+{ord(character):04X} in it"


def _plain(name: str) -> str:
    """Return a name for a message: literal if it is short and printable."""
    return name if name.isprintable() and len(name) <= 80 else shown(name, 40)
