"""Description of an application, read from a properties file, keywords or a spec.

All errors of the description are collected in one `Problems`, to which `dlapp.launcher` adds those of the engine and of
inputs and outputs. So that these can be found beside errors of the description, a key with an error counts as not given
(`_without`), and what is left of the application is checked further.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dlapp.application.build import NO_OBJECTS, Keywords, Objects, Values, build, sections_of
from dlapp.application.forms import check_variable
from dlapp.application.keys import ENV, OF_ROLES, SECTIONS
from dlapp.application.overrides import NO_OVERRIDES, Overrides
from dlapp.application.paths import (
    own_path,
)
from dlapp.application.problems import all_problems, follows_from, variable_problems
from dlapp.application.properties import MAX_BYTES, Line, Problems, Properties, read_properties
from dlapp.application.resolve import Resolver
from dlapp.application.variables import read_variables
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config
from dlapp.errors import UsageError, problem_of
from dlapp.locations import HdfsPlace
from dlapp.sweep.spec import SweepSpec
from dlapp.value import Value, field
from dlapp.values.rules import Problem, changed
from dlapp.values.spec import (
    DEFAULT_KILL_GRACE_S,
    AppSpec,
    Until,
    check_env_name,
    deciding_roles,
)

WARNING = "warning: "
SPEC = "AppSpec"
"""Stands for the path of a file in messages about a spec."""
SMALL_MIB = 64
"""A bare number below it is often meant as GiB."""
_Variables = Mapping[str, str]
_ROUNDS = 4
"""How often keys with errors are left out: each may hide another one, for example that of a role."""


class Snapshot(Value):
    """Content of a properties file and its env_file at one moment.

    Args:
        path: the path of the properties file, absolute; relative paths in it are relative to its directory.
        data: its content.
        env: the variables of its env_file.
    """

    path: str
    data: bytes
    env: Mapping[str, str]


class RecordedFile(Value):
    """A properties file as recorded at an earlier submission, whose workspace is already packed.

    Args:
        path: the path of the file, absolute; relative paths in it are relative to its directory.
        data: its content.
    """

    path: str
    data: bytes


class UnresolvedSpec(Value):
    """A spec that a program created: its paths are interpreted as in a properties file in the working directory.

    Args:
        env: the user's variables with their values.
        role_env: role -> variables for its payloads only, overriding equal names.
        workspace_is_packed: whether to skip the checks of the workspace.
        name: what errors call it.
    """

    spec: AppSpec
    env: Mapping[str, str]
    role_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    workspace_is_packed: bool = False
    name: str = SPEC


Source = str | Snapshot | RecordedFile | Keywords | UnresolvedSpec
"""The path of a properties file, what it was at another moment, or keywords or a spec in place of one."""


class ResolvedApplication(Value):
    """A description of an application, ready to be submitted.

    Args:
        properties: the properties file; None: it was no file.
        env: the user's variables with their values.
        role_env: role -> variables for its payloads only, overriding equal names.
        hdfs: the HDFS of its ``hdfs://`` locations, as its user; None if the engine has none.
        snapshot: source of the application.
        notes: lines for the user.
        env_file: absolute path of its env_file; empty if there is none.
        gives_network: it names its network.
        name: what errors call it, if it was no file.
    """

    properties: Properties | None
    spec: AppSpec
    env: dict[str, str]
    hdfs: HdfsPlace | None
    snapshot: Snapshot
    role_env: Mapping[str, dict[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    env_file: str = ""
    gives_network: bool = False
    name: str = SPEC

    def line(self, where: str) -> Line:
        """Return the line or option that sets a key (``section.key``); 0: there is none."""
        section, _, key = where.partition(".")
        return 0 if self.properties is None else self.properties.line(section, key)

    def place(self, where: str) -> str:
        """Return the file with the line, or the option, that sets a key; for an unset key only the file."""
        section, _, key = where.partition(".")
        return self.name if self.properties is None else self.properties.place(section, key)


class Description(NamedTuple):
    """Result of reading an application, with all errors so far.

    Args:
        problems: the errors; more may be added before `Problems.refuse`.
        application: the application; with errors, what is left of it without the keys that have them, so that it can be
            checked further. None: nothing that can be checked.
        has_workspace: its workspace can be read.
    """

    problems: Problems
    application: ResolvedApplication | None
    has_workspace: bool = True


def read_application(
    source: Source,
    config: Config,
    engine: EngineInfo,
    overrides: Overrides = NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
    *,
    script_may_be_missing: bool = False,
) -> ResolvedApplication:
    """Read a properties file and convert it to a spec; or check a spec and resolve its paths.

    Args:
        source: the file, or the spec.
        config: the configuration.
        engine: provides the cluster's properties.
        overrides: values that override the file's; none for a spec.
        environ: the environment of the submitter; pass_env takes values of it.
        script_may_be_missing: for dlapp-shell, in which the user can create the script.

    Raises:
        UsageError: the file cannot be read, or overrides are given with a spec.
        FileRefused: it has errors; the message lists all of them.
    """
    found = describe(source, config, engine, overrides, environ, script_may_be_missing=script_may_be_missing)
    found.problems.refuse()
    assert found.application is not None
    return found.application


def describe(
    source: Source,
    config: Config,
    engine: EngineInfo,
    overrides: Overrides = NO_OVERRIDES,
    environ: Mapping[str, str] = os.environ,
    *,
    script_may_be_missing: bool = False,
) -> Description:
    """Read the description of an application as `read_application`, and return its errors instead of raising them.

    Args:
        source, config, engine, overrides, environ, script_may_be_missing: as for `read_application`.

    Raises:
        UsageError: the file cannot be read, is too large or is not UTF-8, or overrides are given with a spec.
    """
    if isinstance(source, UnresolvedSpec):
        if overrides != NO_OVERRIDES:
            raise UsageError("overrides are for a properties file; change the spec with dlapp.replace")
        return _describe_spec(source, config, engine)
    if isinstance(source, Keywords):
        from dlapp.application.keywords import values_of

        problems = Problems(SPEC)
        values, objects = values_of(source, problems)
        reader = _FileReader(SPEC, config, engine, environ, workspace_is_packed=False, script_may_be_missing=False)
        return reader.describe(values, problems, overrides, objects=objects)
    of_file: Mapping[str, str] | None = None
    if isinstance(source, Snapshot):
        path, data, of_file = source.path, source.data, source.env
    elif isinstance(source, RecordedFile):
        path, data = source.path, source.data
    else:
        path, data = source, _content(source)
    problems = Problems(path)
    properties = read_properties(data, path, problems, overrides)
    problems.lines = properties
    reader = _FileReader(
        path,
        config,
        engine,
        environ,
        workspace_is_packed=isinstance(source, RecordedFile),
        script_may_be_missing=script_may_be_missing,
    )
    return reader.describe(properties.values(), problems, overrides, properties, data, of_file)


class _FileReader(NamedTuple):
    """The way from the values of keys to an application.

    Args:
        path: the path of the file, as given; or what stands for it.
        config, engine, environ: as for `read_application`.
        workspace_is_packed: whether to skip the checks of the workspace.
        script_may_be_missing: as for `read_application`.
    """

    path: str
    config: Config
    engine: EngineInfo
    environ: Mapping[str, str]
    workspace_is_packed: bool
    script_may_be_missing: bool

    def describe(
        self,
        values: Values,
        problems: Problems,
        overrides: Overrides,
        properties: Properties | None = None,
        data: bytes = b"",
        of_file: Mapping[str, str] | None = None,
        objects: Objects = NO_OBJECTS,
    ) -> Description:
        """Return the application that values describe.

        Args:
            values: section -> key -> value.
            problems: the errors so far; others are added.
            overrides: options of the command.
            properties: the file; None: there is none.
            data: its content.
            of_file: the variables of its env_file; None to read it.
            objects: parts of the application that are values already.
        """
        file = os.path.abspath(self.path)
        directory, user = os.path.dirname(file), values.get("application", {}).get("username")
        variables = read_variables(
            values, directory, problems, overrides=overrides, environ=self.environ, of_file=of_file
        )
        hdfs = _hdfs(self.engine, user)

        def resolved(values: Values, problems: Problems, notes: list[str]) -> AppSpec:
            sweep = _sweep(values, problems, directory)
            draft = build(
                values,
                self.config.defaults,
                has_gpus=self.engine.has_gpus,
                env=variables.env,
                role_env=variables.role_env,
                sweep=sweep,
            )
            given = values.get("application", {})
            resolver = Resolver(
                file, self.config, self.engine, hdfs, problems, notes, grace_is_given="kill_grace" in given
            )
            resolver.script_may_be_missing = self.script_may_be_missing
            resolver.workspace_is_packed = self.workspace_is_packed
            spec = resolver.resolve(objects.added_to(draft))
            _report_rules(spec, problems)
            return spec

        notes = [*(() if properties is None else _notes(properties)), *variables.notes]
        spec: AppSpec | None
        spec = resolved(values, problems, notes)
        _report_variables(spec, problems, variables.env, variables.role_env)
        if problems:
            spec = _without(values, set(problems.named), lambda left, scratch: resolved(left, scratch, []))
        if spec is None:
            return Description(problems, None)
        application = ResolvedApplication(
            properties,
            spec,
            variables.env,
            hdfs,
            Snapshot(file, data, variables.of_file),
            variables.role_env,
            (*notes, *(() if properties is None else _never_started(properties, spec))),
            variables.env_file,
            "network" in values.get("application", {}),
        )
        return Description(problems, application, "application.user_dev_workspace_path" not in problems.named)


def _content(path: str) -> bytes:
    os.path.abspath(path)  # first: with a removed working directory, the file would seem to be missing
    try:
        with open(path, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: {error.strerror} (dlapp-launcher --init {path} writes a first one)") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _report_rules(spec: AppSpec, problems: Problems) -> None:
    """Add what the rules find, but what follows from the errors that are known."""
    _report(all_problems(spec), problems)


def _report_variables(spec: AppSpec, problems: Problems, env: _Variables, role_env: Mapping[str, _Variables]) -> None:
    """Add what is wrong with the values of variables, but what follows from the errors that are known."""
    by_section = {"application": env} | {role.section: role_env.get(role.name, {}) for role in spec.roles}
    _report(variable_problems(spec, by_section), problems)


def _report(found: Iterable[Problem], problems: Problems) -> None:
    named = set(problems.named)
    for where, problem in found:
        if not follows_from(named, where, problem):
            problems.report(where, problem)


def _without(values: Values, faulty: set[str], resolved: Callable[[Values, Problems], AppSpec]) -> AppSpec | None:
    """Return an application without the keys that have errors, for the checks of its engine, inputs and outputs.

    A program that has an error is replaced by any other. If errors remain, only resources, inputs and outputs are kept.

    Args:
        values: section -> key -> value.
        faulty: keys and sections with errors.
        resolved: returns the application of other values, and adds its errors.

    Returns:
        The application; None: even this is not possible.
    """
    left = {section: dict(settings) for section, settings in values.items()}
    for attempt in range(_ROUNDS):
        if attempt == _ROUNDS - 1:
            left = {one: left[one] for one in left if one.partition(" ")[0] in ("resources", "from_hdfs", "to_hdfs")}
        for where in sorted(faulty):
            _leave_out(left, where, thorough=attempt > 0)
        application = left.setdefault("application", {})
        application.setdefault("appname", "-")
        if not faulty.isdisjoint(("application.user_dev_workspace_path", "application.user_shell_script")):
            for section in ("application", *sections_of(left, *OF_ROLES)):
                for name, one in SECTIONS[section.partition(" ")[0]].items():
                    if one.field == "script":
                        left[section].pop(name, None)
        if not application.keys() & {"user_shell_script", "command"}:
            application["command"] = ("-",)  # stands for any program
        problems = Problems("")
        spec = resolved(left, problems)
        if not problems:
            return spec
        faulty = problems.named
    return None


def _leave_out(left: dict[str, dict[str, Any]], where: str, *, thorough: bool) -> None:
    """Remove a key with an error; the whole section if the section needs the key.

    Args:
        left: section -> key -> value.
        where: the key, or a section.
        thorough: remove the whole section, too, if it has no such key: its absence, or another key, is the error.
    """
    section, _, key = where.partition(".")
    if section not in left or section in ("application", "resources"):
        left.get(section, {}).pop(key, None)
    elif key in ("input_path", "output_path"):
        left[section][key] = f"-{len(section)}-{section.partition(' ')[2]}"  # any path: its location is still checked
    elif not key or _is_required(section, key) or (thorough and key not in left[section]):
        del left[section]
    else:
        left[section].pop(key, None)


def _is_required(section: str, name: str) -> bool:
    key = SECTIONS[section.partition(" ")[0]].get(name)
    return key is not None and key.required


def _notes(properties: Properties) -> Iterator[str]:
    """Return notes on valid settings that often are mistakes: warnings and hints, distinguished by their first word."""
    memory = properties.sections.get("resources", {}).get("memory")
    if memory is not None and memory.value.isdecimal() and int(memory.value) < SMALL_MIB:
        where = f"{properties.place('resources', 'memory')}: resources.memory"
        yield f"{WARNING}{where}: {memory.value} is {memory.value} MiB; did you mean {memory.value}g?"


def _never_started(properties: Properties, spec: AppSpec) -> Iterator[str]:
    """Find roles that wait for the end of roles that decide the end of the application."""
    deciding = {role.name for role in deciding_roles(spec.roles, spec.success)}
    for role in spec.roles:
        awaited = {one.role for one in role.depends_on if one.until is Until.DONE}
        if awaited and role.name not in deciding and deciding <= awaited:
            where = f"{properties.place(role.section, 'depends_on')}: {role.section}.depends_on"
            names = " and ".join(sorted(deciding))
            yield f"{WARNING}{where}: the application ends with {names} (success), so {role.name} never starts"


def _sweep(values: Values, problems: Problems, directory: str) -> SweepSpec | None:
    if "sweep" not in values:
        return None
    from dlapp.application.sweep_section import read_sweep_section  # rarely needed

    return read_sweep_section(values["sweep"], problems, lambda text: own_path(text, directory))


def _describe_spec(source: UnresolvedSpec, config: Config, engine: EngineInfo) -> Description:
    spec, problems = source.spec, Problems(source.name)
    by_section = {"application": (spec.env, source.env)}
    for role in spec.roles:
        by_section[role.section] = role.env, source.role_env.get(role.name, {})
    for section, (names, values) in by_section.items():
        for name, value in values.items():
            try:
                check_env_name(f"{section}.{ENV}{name}", name)
                check_variable(value, name)
            except ValueError as refused:
                problems.report(f"{section}.{ENV}{name}", problem_of(refused))
        if without := sorted(set(names) - values.keys()):
            problems.report(f"{section}.env", f"has no value for {', '.join(without)}")
    if unknown := sorted(source.role_env.keys() - {role.name for role in spec.roles}):
        problems.report("role_env", f"has variables for {', '.join(unknown)}, and there is no such role")
    file, hdfs = os.path.abspath(problems.path), _hdfs(engine, spec.username)
    # The default applies only if the operator's limit allows it.
    is_given = spec.kill_grace_s != DEFAULT_KILL_GRACE_S
    resolver = Resolver(file, config, engine, hdfs, problems, [], grace_is_given=is_given)
    resolver.workspace_is_packed = source.workspace_is_packed
    resolved = resolver.resolve(spec)
    _report_rules(resolved, problems)
    _report_variables(resolved, problems, source.env, source.role_env)
    role_env = {name: dict(values) for name, values in source.role_env.items() if values}
    roles = tuple(changed(role, env=tuple(role_env.get(role.name, ()))) for role in resolved.roles)
    resolved = changed(resolved, env=tuple(source.env), roles=roles)
    snapshot = Snapshot(file, b"", {})
    application = ResolvedApplication(
        None,
        resolved,
        dict(source.env),
        hdfs,
        snapshot,
        role_env,
        gives_network=spec.network is not None,
        name=source.name,
    )
    return Description(problems, application, "application.user_dev_workspace_path" not in problems.named)


def _hdfs(engine: EngineInfo, username: str | None) -> HdfsPlace | None:
    """Return the HDFS of an engine, as a user; None if it has none."""
    place = engine.hdfs
    return None if place is None else place._replace(login=place.login.as_user(username or place.login.user))
