"""Keywords of Python that describe an application: every key of a file, by the same table.

A keyword has the name of its key in ``[application]`` or ``[resources]``, or a shorter one (``script``). Sections that
have a NAME are mappings: ``roles={"worker": {"instances": 2}}``. A value is an object, or its text as in a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from dlapp.application.build import Keywords, Objects, build
from dlapp.application.keys import CACHE, ENV, LINK, NAME, SECTIONS, key_of
from dlapp.application.overrides import Overrides
from dlapp.application.problems import all_problems, follows_from, problems_of_given
from dlapp.application.properties import Problems, check_name
from dlapp.config import Config
from dlapp.errors import SpecError, UsageError, problem_of
from dlapp.sweep.spec import SweepSpec
from dlapp.system.text import nearest
from dlapp.values.rules import not_text, refuse
from dlapp.values.spec import AppSpec, CheckpointSpec, InputSpec, OutputSpec

_FIRST_SECTIONS = ("application", "resources")
_NO_MAPPING = "is not a mapping of names to values"


def _keywords() -> dict[str, tuple[str, str]]:
    """Return keyword -> section and key, of the keys of the sections without a NAME that every application has."""
    found = {}
    for section in _FIRST_SECTIONS:
        for name, key in SECTIONS[section].items():
            if not name.endswith(f".{NAME}") and key.is_built:
                found[key.keyword or name] = section, name
    return found


MAPPINGS = {"caches": CACHE, "links": LINK}
"""Keyword with a mapping of names -> prefix of its keys in ``[application]``."""
SECTION_KEYWORDS = ("inputs", "outputs", "overwrite", "roles", "services", "checkpoint", "sweep")
"""Keywords that stand for other sections."""
KEYWORDS: Mapping[str, tuple[str, str]] = {
    name: place for name, place in _keywords().items() if name not in ("args", "env")
}
"""Keyword -> section and key; ``args`` and ``env`` are parameters of `Client.submit`."""


class SubmitOptions(TypedDict, total=False):
    """Keywords that `Client.resume` and `Client.again` share with `Client.submit`, which documents them."""

    env: Mapping[str, str] | None
    args: Sequence[str] | None
    overrides: Mapping[str, object] | Overrides | None
    say: Callable[[str], None]
    note: Callable[[str], None]
    progress: Callable[[int, int], None] | None


def values_of(given: Keywords, problems: Problems) -> tuple[dict[str, dict[str, Any]], Objects]:
    """Return section -> key -> value of an application described by keywords, and its parts that are values already.

    Args:
        given: the keywords.
        problems: collects the errors, each with its keyword.
    """
    values, objects = _KeywordReader(problems).read(given)
    named = set(problems.named)
    for where, problem in problems_of_given(values, lambda value: str(getattr(value, "value", value))):
        if not follows_from(named, where, problem):
            problems.report(where, problem)
    return values, objects


def spec_of(
    fields: Mapping[str, Any], config: Config, *, has_gpus: bool, args: Sequence[str], env: Mapping[str, str]
) -> AppSpec:
    """Return the spec that keywords describe; its paths are not resolved.

    Args:
        fields: the keywords.
        config: has the default amounts.
        has_gpus: whether ``auto`` means one GPU.
        args: the arguments of the program.
        env: variables of the program; the spec contains their names only.

    Raises:
        FileRefused: a keyword is unknown or missing, or a value is invalid; the message lists all errors.
        SpecError: it is the only error.
    """
    problems = Problems("")
    values, objects = values_of(Keywords(fields, env, args), problems)
    problems.refuse()
    spec = objects.added_to(build(values, config.defaults, has_gpus=has_gpus, env=tuple(env), role_env={}, sweep=None))
    refuse(all_problems(spec))
    return spec


def check_texts(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse arguments and variables that are not text; messages do not contain the values of variables.

    Raises:
        SpecError: one is not text.
    """
    for error in text_errors(args, env):
        raise error


def text_errors(args: Any, env: Any) -> Iterator[SpecError]:
    """Yield an error for each argument and variable that is not text; messages do not contain values of variables."""
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        yield SpecError("args", "is not a list of words")
    else:
        for place, word in enumerate(args):
            if not isinstance(word, str):
                yield SpecError(f"args[{place}]", not_text(word))
                break
    if not isinstance(env, Mapping):
        yield SpecError("env", _NO_MAPPING)
        return
    for name, value in env.items():
        if not isinstance(name, str):
            yield SpecError("env", f"the name {name!r} must be text (str)")
        elif not isinstance(value, str):
            yield SpecError(f"env.{name}", f"is of type {type(value).__name__}, it must be text (str)")


class _KeywordReader:
    """Conversion of keywords to the values of a file."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._values: dict[str, dict[str, Any]] = {"application": {}}

    def read(self, given: Keywords) -> tuple[dict[str, dict[str, Any]], Objects]:
        """Return the values, and the parts that are values of the spec."""
        fields = given.fields
        for name, value in fields.items():
            if name in KEYWORDS:
                if value is not None or name == "gcores":
                    section, key = KEYWORDS[name]
                    self._take(name, section, key, value)
            elif name in MAPPINGS:
                for own, one in self._mapping(name, value):
                    self._take_named("application", f"{MAPPINGS[name]}{own}", one, name)
            elif name not in SECTION_KEYWORDS:
                self._unknown(name)
        wrong = list(text_errors(given.args, given.env))
        for refused in wrong:
            self._problems.keep(refused)
        if not wrong:
            for own, text in given.env.items():
                self._take_named("application", f"{ENV}{own}", text, "env")
            if given.args:
                self._take("args", "application", "user_shell_args", tuple(given.args))
        self._program(fields)
        for name, kind in (("roles", "role"), ("services", "service")):
            for own, settings in self._mapping(name, fields.get(name)):
                self._section(f"{name}.{own}", f"{kind} {own}", settings)
        objects = Objects(
            inputs=self._files("inputs", "from_hdfs", "input_path", fields.get("inputs"), InputSpec, {}),
            outputs=self._outputs(fields),
            checkpoint=self._checkpoint(fields.get("checkpoint")),
            sweep=self._sweep(fields.get("sweep")),
        )
        return self._values, objects

    def _refuse(self, field: str, problem: object) -> None:
        self._problems.keep(SpecError(field, str(problem)))

    def _unknown(self, name: str) -> None:
        of = {section: keys for section, keys in SECTIONS.items() if name in keys}
        alternatives = {"from_hdfs": "inputs=[InputSpec(...)]", "to_hdfs": "outputs=[OutputSpec(...)]"}
        alternatives |= {"role": 'roles={"NAME": {...}}', "service": 'services={"NAME": {...}}'}
        alternatives |= {"checkpoint": "checkpoint={...}", "sweep": "sweep={...}"}
        hints = [hint for section, hint in alternatives.items() if section in of]
        hint = self._problems.hint_once(name, f"use {hints[0]}" if hints else _hint(name))
        self._problems.keep(UsageError(f"{name}: is not a keyword of an application, {hint}"))

    def _program(self, fields: Mapping[str, Any]) -> None:
        """Refuse a missing program, and name the application by its program."""
        application = self._values["application"]
        if fields.get("command") and fields.get("script"):
            self._problems.keep(UsageError("command: is given, and so is script; an application has one of them"))
            application.pop("command", None)
        has_own = fields.get("roles") or fields.get("services")
        for name in () if has_own or fields.get("command") else ("workspace", "script"):
            if not fields.get(name):
                hint = "give a properties file, an AppSpec, or workspace and script"
                self._problems.keep(UsageError(f"{name}: is missing; {hint}"))
                self._problems.named.add(".".join(KEYWORDS[name]))
        if "appname" not in application and "application.appname" not in self._problems.named:
            program = application.get("command", ("",))[0] or application.get("user_shell_script", "")
            names = [*self._names(fields.get("roles")), *self._names(fields.get("services"))]
            application["appname"] = os.path.basename(program) or "-".join(names) or "-"

    @staticmethod
    def _names(value: Any) -> list[str]:
        return [str(name) for name in value] if isinstance(value, Mapping) else []

    def _take(self, field: str, section: str, name: str, value: Any) -> None:
        """Convert the value of one key; ``field`` names it in messages."""
        key = key_of(section, name)
        assert key is not None
        try:
            self._values.setdefault(section, {})[name] = key.take(value)
        except ValueError as refused:
            self._refuse(field, problem_of(refused))
            self._problems.named.add(f"{section}.{name}")

    def _take_named(self, section: str, name: str, value: Any, field: str) -> None:
        """Convert the value of a key such as ``env.NAME``."""
        key, where = key_of(section, name), f"{section}.{name}"
        assert key is not None
        try:
            taken = key.take(value)
        except SpecError as refused:
            self._refuse(where, refused.problem)
        except ValueError as problem:
            self._refuse(field, problem)
        else:
            try:
                check_name(where, name, taken)
                self._values.setdefault(section, {})[name] = taken
            except ValueError as refused:
                self._problems.report(where, problem_of(refused))

    def _mapping(self, field: str, value: Any) -> list[tuple[str, Any]]:
        """Return the items of a mapping of names; empty after an error."""
        if value is None:
            return []
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self._refuse(field, _NO_MAPPING)
            return []
        return list(value.items())

    def _section(self, field: str, section: str, settings: Any) -> None:
        """Convert the settings of a section, by the names of its keys; ``env`` and the like are mappings."""
        kind = section.partition(" ")[0]
        self._values.setdefault(section, {})
        for name, value in self._mapping(field, settings):
            if f"{name}.{NAME}" in SECTIONS[kind]:
                wrong = list(text_errors((), value)) if name == "env" else []
                for refused in wrong:
                    self._refuse(f"{field}.{refused.field}", refused.problem)
                for own, one in () if wrong else self._mapping(f"{field}.{name}", value):
                    self._take_named(section, f"{name}.{own}", one, f"{field}.{name}")
            elif key_of(kind, name) is None or ("." in name and f"{name.partition('.')[0]}.{NAME}" in SECTIONS[kind]):
                from dlapp.application.hints import nearest_key  # only for an error

                where = f"{field}.{name}"
                self._refuse(where, f"is not known, {self._problems.hint_once(where, nearest_key(section, name))}")
            elif value is not None or name == "gcores":
                self._take(f"{field}.{name}", section, name, value)
        for name, key in SECTIONS[kind].items():
            where = f"{section}.{name}"
            if key.required and name not in self._values[section] and where not in self._problems.named:
                self._refuse(f"{field}.{name}", "is missing")
                self._problems.named.add(where)

    def _outputs(self, fields: Mapping[str, Any]) -> tuple[OutputSpec, ...]:
        overwrite, value = fields.get("overwrite"), fields.get("outputs")
        if overwrite is not None and not isinstance(overwrite, bool):
            self._refuse("overwrite", f"is {overwrite!r}, it must be True or False")
        elif overwrite and isinstance(value, (list, tuple)):
            self._refuse("overwrite", "is for a mapping; give OutputSpec(..., overwrite=True)")
        more = {"overwrite": overwrite} if overwrite is True else {}
        found: tuple[OutputSpec, ...] = self._files("outputs", "to_hdfs", "output_path", value, OutputSpec, more)
        return found

    def _files(self, field: str, kind: str, path_key: str, value: Any, of: type, more: Mapping[str, Any]) -> Any:
        """Convert a mapping of paths in the workspace to locations, or to settings; return a list of specs as it is."""
        if value is None:
            return ()
        if not isinstance(value, Mapping):
            if isinstance(value, (list, tuple)) and all(isinstance(one, of) for one in value):
                return tuple(value)
            self._refuse(field, f"is neither a mapping of {path_key} to locations nor a list of {of.__name__}")
            return ()
        first: dict[str, str] = {}
        for path, one in value.items():
            if not isinstance(path, str):
                self._refuse(field, f"the path {path!r} must be text (str)")
                continue
            name = re.sub(r"[^A-Za-z0-9_-]", "_", path).strip("_")[:31] if len(value) > 1 else ""
            if (other := first.setdefault(name, path)) != path:
                self._refuse(field, f"{path!r} and {other!r} both get the name {name!r}; give a list of {of.__name__}")
                continue
            section = f"{kind} {name}".strip()
            if isinstance(one, Mapping):
                if path_key in one:
                    self._refuse(f"{field}.{path}.{path_key}", "is the key of the mapping already")
                self._section(f"{field}.{path}", section, {**more, **one, path_key: path})
            else:
                self._values[section] = {**more}
                self._take(field, section, path_key, path)
                self._take(field, section, "hdfs", one)
        return ()

    def _checkpoint(self, value: Any) -> CheckpointSpec | None:
        if isinstance(value, CheckpointSpec):
            return value
        if isinstance(value, (str, os.PathLike)):
            value = {"path": value}
        if value is not None:
            self._section("checkpoint", "checkpoint", value)
        return None

    def _sweep(self, value: Any) -> SweepSpec | None:
        if isinstance(value, SweepSpec):
            return value
        if value is not None:
            self._section("sweep", "sweep", value)
        return None


def _hint(name: str) -> str:
    """Return the nearest keyword of an unknown one, also for names of other programs."""
    from dlapp.application.hints import SECTION_SYNONYMS, SYNONYMS, folded

    short = folded(name)
    target = SYNONYMS.get(short, "")
    section, _, key = target.partition(".")
    for keyword, place in KEYWORDS.items():
        if place == (section, key):
            return f"use {keyword}"
    if section.startswith("role "):
        return f'use roles={{"{section.removeprefix("role ")}": {{"{key}": ...}}}}'
    by_section = {"from_hdfs": "inputs", "to_hdfs": "outputs", "checkpoint": "checkpoint", "sweep": "sweep"}
    if (one := by_section.get(SECTION_SYNONYMS.get(short, section if key else name))) is not None:
        return f"use {one}"
    if target and section not in SECTIONS:
        return target
    return nearest(name, (*KEYWORDS, *MAPPINGS, *SECTION_KEYWORDS))
