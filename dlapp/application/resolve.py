"""Conversion of a properties file to an `AppSpec`: apply defaults, resolve paths, check files and hosts.

On one machine, relative paths of the file are relative to its directory. In the spec, a source of input is ``file://``
and an absolute pattern of Hadoop's (`dlapp.storage.glob`); directories that we prepend to the user's text are escaped
in it, so that only the user's own ``*`` is a wildcard. A target of output is ``file://`` and an absolute path, without
escapes. A text that begins with ``hdfs:``, and on a cluster every path, is a location on HDFS.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlapp import frameworks
from dlapp.application.keys import CACHE, ENV, LINK, MAX_ARGUMENT_BYTES, OF_ROLES, check_variable, read_link
from dlapp.application.overrides import NO_OVERRIDES, Overrides
from dlapp.application.properties import MAX_BYTES, Line, Problems, Properties, Setting, read_properties
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config
from dlapp.errors import SpecError, UsageError
from dlapp.locations import FILE, HDFS, HdfsPlace, file_location, local_path
from dlapp.storage.glob import split_pattern
from dlapp.sweep.spec import Sampler, SweepCommit, SweepSpec
from dlapp.system.files import is_inside
from dlapp.system.owners import user_name
from dlapp.system.text import shown
from dlapp.value import Value, field, replace
from dlapp.values.access import AccessList, problems_with_access
from dlapp.values.idle_guard import IdleGuard
from dlapp.values.spec import (
    DEFAULT_CHECKPOINT_EVERY_S,
    DEFAULT_CHECKPOINTS,
    DEFAULT_FAILURE_SETTLE_S,
    DEFAULT_GANG_WINDOW_S,
    DEFAULT_KILL_GRACE_S,
    DEFAULT_OUTPUT_PATIENCE_S,
    DEFAULT_SERVICE_PATIENCE_S,
    NO_BOARD,
    NOT_IN_SERVICE,
    READY_BY_PORT,
    READY_BY_REPORT,
    AppSpec,
    CheckpointSpec,
    ContainerFailure,
    FeedFormat,
    FeedSpec,
    Framework,
    Gang,
    InputSpec,
    Kind,
    OnFailure,
    OutputSpec,
    PayloadCache,
    Placement,
    QuickLink,
    Resources,
    RoleFailure,
    RoleSpec,
    Until,
    check_env_name,
    check_inside_workspace,
    checkpoint_problem,
    deciding_roles,
    needing_host_network,
    problems_between,
    problems_with_links,
    problems_with_sweep,
)

WARNING = "warning: "
SMALL_MIB = 64
TRIALS = "trials"
"""Name of the directory that has those of the trials of a sweep, in the place of its output."""
"""A bare number below it is often meant as GiB."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REFERENCE = re.compile(r"\$(?:\{[^}]*\}?|[A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_GLOB = re.compile(r"[*?]|\[[^/]+\]|\{[^/]*,[^/]*\}")
_WILD = re.compile(r"([\\*?\[\]{}])")


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


class ResolvedApplication(Value):
    """Content of a properties file, ready to be submitted.

    Args:
        env: the user's variables with their values.
        role_env: role -> variables for its payloads only, overriding equal names.
        hdfs: the HDFS of its ``hdfs://`` locations, as its user; None if the engine has none.
        snapshot: source of the application.
        notes: lines for the user.
        env_file: absolute path of its env_file; empty if there is none.
    """

    properties: Properties
    spec: AppSpec
    env: dict[str, str]
    hdfs: HdfsPlace | None
    snapshot: Snapshot
    role_env: Mapping[str, dict[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    env_file: str = ""

    @property
    def has_file(self) -> bool:
        """Return True if it was read from a properties file."""
        return not isinstance(self.properties, _SpecProperties)


class UnresolvedSpec(Value):
    """A spec that a program created: its paths are interpreted as in a properties file in the working directory.

    Args:
        env: the user's variables with their values.
        role_env: role -> variables for its payloads only, overriding equal names.
        workspace_is_packed: whether to skip the checks of the workspace.
    """

    spec: AppSpec
    env: Mapping[str, str]
    role_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    workspace_is_packed: bool = False


Source = str | Snapshot | RecordedFile | UnresolvedSpec
"""The path of a properties file, what it was at another moment, or a spec in place of one."""


class _SpecProperties(Properties):
    """Properties of a spec for the checks, under the keys of a file."""

    __slots__ = ("_values",)

    def __init__(self, source: UnresolvedSpec) -> None:
        spec = source.spec
        application = {
            "kind": spec.kind.value,
            "username": spec.username,
            "appname": spec.appname,
            "user_dev_workspace_path": spec.workspace or None,
            "user_shell_script": spec.script or None,
            "command": spec.command or None,
            "docker_image": spec.docker_image,
            "network": spec.network,
            # The default applies only if the operator's limit allows it.
            "kill_grace": spec.kill_grace_s if spec.kill_grace_s != DEFAULT_KILL_GRACE_S else None,
            **{f"{ENV}{name}": value for name, value in source.env.items()},
            **{f"{CACHE}{one.name}": one.path for one in spec.caches},
        }
        values: dict[str, dict[str, Any]] = {"application": application}
        for role in spec.roles:
            values[role.section] = {
                "script": role.script,
                "command": role.command,
                "docker_image": role.docker_image,
                "ports": role.ports,
                **{f"{ENV}{name}": value for name, value in source.role_env.get(role.name, {}).items()},
            }
        for one in spec.inputs:
            values[f"from_hdfs {one.name}".strip()] = {
                "hdfs": one.sources,
                "input_path": one.input_path,
                "archive": "unpack" if one.unpack else "keep",
                "mode": one.mode,
                "shard": one.shard,
                "optional": one.optional,
            }
            if (feed := one.feed) is not None:
                values[f"from_hdfs {one.name}".strip()] |= {
                    "feed.format": feed.format.value,
                    "feed.epochs": feed.epochs,
                    "feed.shuffle": feed.shuffle,
                    "feed.buffer": feed.buffer_bytes,
                }
        for output in spec.outputs:
            values[f"to_hdfs {output.name}".strip()] = {
                "output_path": output.output_path,
                "hdfs": output.target,
                "overwrite": output.overwrite,
                "on_failure": output.on_failure.value,
                "keep_previous": output.keep_previous,
                "sync": output.sync_s,
            }
        if spec.checkpoint is not None:
            values["checkpoint"] = {
                "path": spec.checkpoint.path,
                "hdfs": spec.checkpoint.target,
                "every": spec.checkpoint.every_s,
                "keep": spec.checkpoint.keep,
                "role": spec.checkpoint.role,
            }
        sections = {section: {key: Setting("", 0) for key in keys} for section, keys in values.items()}
        super().__init__(path="AppSpec", sections=sections, headers=dict.fromkeys(sections, 0))
        object.__setattr__(self, "_values", values)

    def line(self, section: str, key: str = "") -> Line:
        """Return 0: there is no file."""
        return 0

    def value(self, section: str, key: str, default: Any = None) -> Any:
        """Return the spec's value of a key, or ``default``."""
        value = self._values.get(section, {}).get(key)  # type: ignore[attr-defined]
        return default if value is None else value


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
    if isinstance(source, UnresolvedSpec):
        if overrides != NO_OVERRIDES:
            raise UsageError("overrides are for a properties file; change the spec with dlapp.replace")
        return _resolve(source, config, engine)
    if isinstance(source, Snapshot):
        path, data, env = source.path, source.data, source.env
    elif isinstance(source, RecordedFile):
        path, data, env = source.path, source.data, None
    else:
        path, env = source, None
        os.path.abspath(path)  # first: with a removed working directory, the file would seem to be missing
        try:
            with open(path, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except FileNotFoundError as error:
            raise UsageError(f"{path}: {error.strerror} (dlapp-launcher --init {path} writes a first one)") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    problems = Problems(path)
    properties = read_properties(data, path, problems, overrides)
    builder = _SpecBuilder(properties, config, engine, problems, env, overrides, environ)
    builder.script_may_be_missing = script_may_be_missing
    builder.workspace_is_packed = isinstance(source, RecordedFile)
    made = builder.build()
    problems.refuse()
    assert made is not None
    snapshot = Snapshot(builder.file, data, builder.env_of_file)
    notes = (*_notes(properties), *_never_started(properties, made[0]), *builder.notes)
    return ResolvedApplication(properties, *made, builder.hdfs, snapshot, builder.role_env(), notes, builder.env_file)


def _notes(properties: Properties) -> tuple[str, ...]:
    """Return notes on valid settings that often are mistakes: warnings and hints, distinguished by their first word."""
    memory = properties.sections.get("resources", {}).get("memory")
    if memory is None or not memory.value.isdecimal() or int(memory.value) >= SMALL_MIB:
        return ()
    where = f"{properties.place('resources', 'memory')}: resources.memory"
    return (f"{WARNING}{where}: {memory.value} is {memory.value} MiB; did you mean {memory.value}g?",)


def _never_started(properties: Properties, spec: AppSpec) -> Iterator[str]:
    """Find roles that wait for the end of roles that decide the end of the application."""
    deciding = {role.name for role in deciding_roles(spec.roles, spec.success)}
    for role in spec.roles:
        awaited = {one.role for one in role.depends_on if one.until is Until.DONE}
        if awaited and role.name not in deciding and deciding <= awaited:
            where = f"{properties.place(role.section, 'depends_on')}: {role.section}.depends_on"
            names = " and ".join(sorted(deciding))
            yield f"{WARNING}{where}: the application ends with {names} (success), so {role.name} never starts"


def _resolve(source: UnresolvedSpec, config: Config, engine: EngineInfo) -> ResolvedApplication:
    spec, properties = source.spec, _SpecProperties(source)
    problems = Problems(properties.path)
    by_section = {"application": (spec.env, source.env)}
    for role in spec.roles:
        by_section[role.section] = role.env, source.role_env.get(role.name, {})
    for section, (names, values) in by_section.items():
        for name, value in values.items():
            try:
                check_env_name(f"{section}.{ENV}{name}", name)
                check_variable(value)
            except ValueError as refused:
                problem = refused.problem if isinstance(refused, SpecError) else refused
                problems.add(0, f"{section}.{ENV}{name}", problem)
        if without := sorted(set(names) - values.keys()):
            problems.add(0, f"{section}.env", f"has no value for {', '.join(without)}")
    if unknown := sorted(source.role_env.keys() - {role.name for role in spec.roles}):
        problems.add(0, "role_env", f"has variables for {', '.join(unknown)}, and there is no such role")
    builder = _SpecBuilder(properties, config, engine, problems, {})
    builder.workspace_is_packed = source.workspace_is_packed
    made = builder.build()
    for where, problem in frameworks.problems(spec.framework, spec.roles, gang=spec.gang, success=spec.success):
        problems.add(0, where, problem)
    problems.refuse()
    assert made is not None
    resolved, env = made
    role_env = builder.role_env()
    spec = replace(
        spec,
        roles=tuple(
            replace(one, script=known.script, env=tuple(role_env.get(one.name, ())))
            for one, known in zip(spec.roles, resolved.roles, strict=True)
        ),
        workspace=resolved.workspace,
        script=resolved.script,
        env=resolved.env,
        network=resolved.network,
        kill_grace_s=resolved.kill_grace_s,
        inputs=resolved.inputs,
        outputs=resolved.outputs,
        checkpoint=resolved.checkpoint,
    )
    return ResolvedApplication(properties, spec, env, builder.hdfs, Snapshot(builder.file, b"", {}), role_env)


def os_user() -> str:
    """Return the operating system's user, as a number if it has no name."""
    return user_name(os.geteuid())


def resolve_location(text: str, directory: str, fs_root: str, *, pattern: bool) -> str:
    """Return the ``file://`` location of a path as the user wrote it.

    Args:
        text: as the user wrote it.
        directory: the directory of the properties file; relative paths are relative to it.
        fs_root: prefix of absolute paths.
        pattern: whether ``text`` is a pattern; then the prepended directories are escaped. Otherwise it is a path to
            write, and a symbolic link is replaced by its target.

    Raises:
        ValueError: the scheme is unsupported, or it is not a path; the message is the problem.
    """
    _refuse_references(text)
    if pattern and "{" in text and ".." in re.split(r"[/{},]", text):
        raise ValueError(f"{shown(text)} has both .. and braces; write it without one of them")
    if match := _SCHEME.match(text):
        location = _with_scheme(match[1].lower(), text, pattern=pattern)
        return location if pattern else _followed(location)
    before = fs_root if text.startswith("/") else directory
    if text.startswith("~"):
        head, _, text = text.partition("/")
        before = _home_directory(head)
    elif text.startswith("/"):
        text = os.path.normpath("/" + text.lstrip("/"))  # first: no .. may lead out of fs_root
    if pattern:
        before = _WILD.sub(r"\\\1", before)
    location = file_location("/" + os.path.normpath(f"{before}/{text}").lstrip("/"))
    return location if pattern else _followed(location)


def _refuse_references(text: str) -> None:
    """Refuse a local or HDFS path that contains a variable: it is not expanded, so it would be a literal name.

    Raises:
        ValueError: it contains one; the message is the problem.
    """
    scheme = _SCHEME.match(text)
    if (found := _REFERENCE.search(text)) and (scheme is None or scheme[1].lower() in ("file", "hdfs", "viewfs")):
        raise ValueError(
            f"{shown(text)} has {found[0]}, and variables are not replaced here; write the path itself (~ is the home "
            "directory)"
        )


def _home_directory(head: str) -> str:
    """Return the home directory for ``~`` or ``~user``. Raises ValueError: there is no such user."""
    home = os.path.expanduser(head)
    if not home.startswith("/"):
        raise ValueError(f"{shown(head)}: there is no such user, or the user has no home directory")
    return home


def _own_path(text: str, directory: str) -> str:
    """Return the absolute path of a local file or directory as the user wrote it; relative ones are relative to
    ``directory``.

    Raises:
        ValueError: it contains a variable, or names an unknown user's home directory; the message is the problem.
    """
    _refuse_references(text)
    head, slash, rest = text.partition("/")
    if head.startswith("~"):
        text = _home_directory(head) + slash + rest
    return os.path.normpath(os.path.join(directory, text))


def _followed(location: str) -> str:
    """Return the target of a link: the commit renames over the path, which would replace the link instead of its
    target."""
    path = local_path(location)
    if not os.path.islink(path):
        return location
    real = os.path.realpath(path)
    if os.path.islink(real):
        raise ValueError(f"{_seen(path)} is a broken symbolic link")
    return file_location(real)


def _with_scheme(scheme: str, text: str, *, pattern: bool) -> str:
    if scheme == "file":
        path = text[len("file:") :]
        if path.startswith("//") and not path.startswith("///"):
            raise ValueError(f"{shown(text)} names a host; write file:/// and the path")
        return file_location(os.path.normpath("/" + path.lstrip("/")))
    if scheme in ("webhdfs", "har"):
        raise ValueError(f"there is no storage for {scheme}://, it can be a path, file:// or hdfs://")
    return _for_input(scheme, text, "a path, file:// or hdfs://", pattern=pattern)


def _for_input(scheme: str, text: str, other: str, *, pattern: bool) -> str:
    """Return the location of a path that is neither on HDFS nor local."""
    if not pattern:
        raise ValueError(f"output cannot go to {scheme}://, it can be {other}")
    if not text[len(scheme) :].startswith("://"):
        raise ValueError(f"{shown(text)} is not a location, such as {scheme}://bucket/name")
    return scheme + text[len(scheme) :]


class _SpecBuilder:
    """Builder of one spec. Errors are collected, and it continues with the other keys.

    Args:
        env_of_file: the variables of the env_file; None to read it.
    """

    def __init__(
        self,
        properties: Properties,
        config: Config,
        engine: EngineInfo,
        problems: Problems,
        env_of_file: Mapping[str, str] | None = None,
        overrides: Overrides = NO_OVERRIDES,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._overrides, self._environ = overrides, environ or {}
        self.script_may_be_missing = self.workspace_is_packed = False
        self.notes: list[str] = []
        self.properties = properties
        self._env_is_known = env_of_file is not None
        self.env_of_file = dict(env_of_file or {})
        self.env_file = ""
        self.config = config
        self.engine = engine
        self.problems = problems
        self.file = os.path.abspath(properties.path)
        self.directory = os.path.dirname(self.file)
        self.hdfs: HdfsPlace | None = None
        if engine.hdfs is not None:
            place = engine.hdfs
            self.hdfs = place._replace(login=place.login.as_user(self._application("username") or place.login.user))

    def build(self) -> tuple[AppSpec, dict[str, str]] | None:
        """Return the spec and the variables; None if there are errors."""
        get = self._application
        workspace = self._workspace()
        script = self._script("application", "user_shell_script", workspace) or ""
        env = self._env()
        framework = Framework(get("framework", "none"))
        roles = self._roles(workspace, framework)
        together = framework is not Framework.NONE or bool(self._sections("role"))
        gang = Gang(get("gang", "all" if together else "none"))
        success = get("success", frameworks.success(framework, roles))
        failure = ContainerFailure(get("on_container_failure", "stop"))
        kind, links = Kind(get("kind", "batch")), self._links()
        view_acl, modify_acl = get("view_acl", AccessList()), get("modify_acl", AccessList())
        for where, problem in (
            *problems_between(roles, gang=gang, success=success, failure=failure, kind=kind),
            *problems_with_links(links, roles),
            *problems_with_access(view_acl, modify_acl),
            *frameworks.problems(framework, roles, gang=gang, success=success),
        ):
            section, _, key = where.partition(".")
            self.problems.add(self.properties.line(section, key), where, problem)
        if kind is Kind.SERVICE:
            for section in (*self._sections("to_hdfs"), *self._sections("checkpoint"), *self._sections("sweep")):
                self.problems.add(self.properties.line(section), section, NOT_IN_SERVICE)
        inputs = [one for name in self._sections("from_hdfs") if (one := self._input(name))]
        outputs = [out for name in self._sections("to_hdfs") if (out := self._output(name, workspace))]
        self._check_overlaps(inputs, outputs, workspace)
        checkpoint = self._checkpoint(outputs, roles, gang)
        tensorboard = self._tensorboard(outputs, checkpoint, kind)
        sweep = self._sweep(roles, gang, framework, checkpoint, env)
        grace_s, network = self._kill_grace_s(), self._network(roles)
        if self.problems:
            return None
        try:
            spec = AppSpec(
                username=get("username") or os_user(),
                appname=get("appname"),
                workspace=workspace or "",
                script=script,
                command=get("command", ()),
                args=get("user_shell_args", ()),
                docker_image=get("docker_image"),
                network=network,
                exclude=get("user_dev_workspace_exclude_list", ()),
                exclude_defaults=get("user_dev_workspace_exclude_defaults", True),
                queue=get("queue"),
                priority=get("priority"),
                project=get("project"),
                tags=get("tags", ()),
                max_runtime_s=get("max_runtime"),
                kill_grace_s=grace_s,
                output_patience_s=get("output_patience", DEFAULT_OUTPUT_PATIENCE_S),
                service_patience_s=get("service_patience", DEFAULT_SERVICE_PATIENCE_S),
                on_container_failure=failure,
                env=tuple(env),
                placement=self._placement("resources"),
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                caches=self._caches(),
                checkpoint=checkpoint,
                sweep=sweep,
                roles=tuple(roles),
                gang=gang,
                failure_settle_s=get("failure_settle", DEFAULT_FAILURE_SETTLE_S),
                keep_failed_s=get("keep_failed", 0.0),
                gang_window_s=get("gang_window", DEFAULT_GANG_WINDOW_S),
                hang_timeout_s=get("hang_timeout"),
                hang_idle=get("hang_idle", False),
                idle_guard=self._idle_guard(roles),
                notify=get("notify"),
                after=get("after", ()),
                hold=get("hold", False),
                requeue=get("requeue", False),
                framework=framework,
                success=success,
                kind=kind,
                links=links,
                tensorboard=tensorboard,
                view_acl=view_acl,
                modify_acl=modify_acl,
            )
        except SpecError as refused:
            add_refusal(self.problems, self.properties, refused)
            return None
        return spec, env

    def _application(self, key: str, default: Any = None) -> Any:
        return self.properties.value("application", key, default)

    def _add_problem(self, section: str, key: str, problem: object) -> None:
        self.problems.add(self.properties.line(section, key), f"{section}.{key}", problem)

    def _sections(self, *kinds: str) -> list[str]:
        return [section for section in self.properties.sections if section.partition(" ")[0] in kinds]

    # ---- [application] ----

    def _workspace(self) -> str | None:
        key = "user_dev_workspace_path"
        if (text := self._application(key)) is None:
            return None
        try:
            path = _own_path(text, self.directory)
        except ValueError as problem:
            self._add_problem("application", key, problem)
            return None
        if self.workspace_is_packed:
            return path
        if not os.path.isdir(path):
            what = "is not a directory" if os.path.lexists(path) else "there is no such directory"
            self._add_problem("application", key, f"{_seen(path)}: {what}")
            return None
        if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
            self._add_problem("application", key, f"{_seen(path)}: may not be read")
            return None
        return path

    def _script(self, section: str, key: str, workspace: str | None) -> str | None:
        if (text := self.properties.value(section, key)) is None:
            return None
        script: str = os.path.normpath(text)
        if not self._is_inside_workspace(section, key, text):
            return None
        if workspace is None or self.workspace_is_packed:
            return script
        path = os.path.join(workspace, script)
        if not os.path.lexists(path):
            if not self.script_may_be_missing:
                self._add_problem(section, key, f"{_seen(path)}: there is no such file{_script_hint(text, workspace)}")
        elif not is_inside(os.path.realpath(path), os.path.realpath(workspace)):
            self._add_problem(
                section, key, f"{shown(text)} leads out of the workspace, to {_seen(os.path.realpath(path))}"
            )
        elif not os.path.isfile(path):
            self._add_problem(section, key, f"{_seen(path)}: is not a file")
        return script

    def _env(self) -> dict[str, str]:
        env = {}
        for name in self.properties.sections.get("application", {}):
            if name.startswith(ENV):
                env[name.removeprefix(ENV)] = self._application(name)
        if (path := self._application("env_file")) is not None:
            try:
                if not self._env_is_known:
                    self.env_file = _own_path(path, self.directory)
                    self.env_of_file = read_env_file(self.env_file)
            except ValueError as refused:
                for line in str(refused).split("\n"):
                    self._add_problem("application", "env_file", line)
                return env
            for name in sorted(env.keys() & self.env_of_file.keys()):
                self._add_problem("application", f"{ENV}{name}", "is set in env_file too")
            env.update(self.env_of_file)
        self._pass_env(env)
        for name, value in self._overrides.env.items():
            try:
                check_env_name(name, name)
                env[name] = check_variable(value)
            except ValueError as refused:
                self.problems.add(
                    self._overrides.names.env, name, refused.problem if isinstance(refused, SpecError) else refused
                )
        return env

    def _caches(self) -> tuple[PayloadCache, ...]:
        caches = []
        for key in self.properties.sections.get("application", {}):
            if not key.startswith(CACHE):
                continue
            one = PayloadCache(key.removeprefix(CACHE), self._application(key))
            if not self.config.storage.payload_cache_limit_bytes:
                self._add_problem("application", key, "is not possible here: storage.payload_cache_limit is 0")
            if self._application("docker_image") is None:
                problem = f"without docker_image nothing is mounted at {one.path}; {one.variable} has the directory"
                self.notes.append(f"{key}: {problem}")
            caches.append(one)
        return tuple(caches)

    def _tensorboard(self, outputs: Sequence[OutputSpec], checkpoint: CheckpointSpec | None, kind: Kind) -> str:
        """Return the directory that TensorBoard reads: the named one, else the first output, else the checkpoint's;
        empty if TensorBoard is not wanted."""
        key, wanted = "tensorboard", self._application("tensorboard", False)
        if not wanted:
            return ""
        if kind is Kind.SERVICE or "sweep" in self.properties.sections:
            self._add_problem("application", key, NO_BOARD)
        elif isinstance(wanted, str):
            return os.path.normpath(wanted) if self._is_inside_workspace("application", key, wanted) else ""
        elif outputs or checkpoint is not None:
            return outputs[0].output_path if outputs or checkpoint is None else checkpoint.path
        elif not self._sections("to_hdfs", "checkpoint"):
            self._add_problem(
                "application", key, "is true, and there is no [to_hdfs]; name a directory of the workspace"
            )
        return ""

    def _links(self) -> tuple[QuickLink, ...]:
        keys = [key for key in self.properties.sections.get("application", {}) if key.startswith(LINK)]
        return tuple(read_link(key.removeprefix(LINK), self._application(key)) for key in keys)

    def _pass_env(self, env: dict[str, str]) -> None:
        """Add the variables that the file takes from the submitter's environment."""
        for name in self._application("pass_env", ()):
            if name in env:
                self._add_problem("application", "pass_env", f"{name} is set in the file too")
            elif name in self._overrides.env:
                continue
            elif (value := self._environ.get(name)) is None:
                self.notes.append(f"pass_env: {name} is not set here, so the program does not get it")
            else:
                try:
                    env[name] = check_variable(value)
                except ValueError as problem:
                    self._add_problem("application", "pass_env", f"{name} {problem}")

    def _idle_guard(self, roles: Sequence[RoleSpec]) -> IdleGuard | None:
        if "idle_guard" in self.properties.sections.get("application", {}):
            guard: IdleGuard | None = self._application("idle_guard")
            return guard
        containers, has_gpus = sum(role.instances for role in roles), any(role.resources.gcores for role in roles)
        return self.config.defaults.idle_guard_for(containers, has_gpus=has_gpus)

    def _network(self, roles: Sequence[RoleSpec]) -> str | None:
        network: str | None = self._application("network")
        all_serve = all(role.keep_running for role in roles)
        with_ports = needing_host_network(roles, self._application("docker_image"), services=all_serve)
        if with_ports is not None:
            if network not in (None, "host"):
                problem = f"is {network}; the ports of role {with_ports.name} can be reached only with host"
                self._add_problem("application", "network", problem)
            return "host"
        if any(self.properties.value(one, "docker_image") for one in ("application", *self._sections(*OF_ROLES))):
            return network or self.config.runtime.docker.network
        if network not in (None, "host"):
            problem = f"is {network}, but without docker_image the script is a process of the machine, with its network"
            self._add_problem("application", "network", problem)
        return None

    def _kill_grace_s(self) -> float:
        most_s = self.config.runtime.kill_grace_max_s
        grace_s: float | None = self._application("kill_grace")
        if grace_s is not None and grace_s > most_s:
            problem = f"is {grace_s:g} s, the maximum allowed here is {most_s:g} s (runtime.kill_grace_max)"
            self._add_problem("application", "kill_grace", problem)
        return min(DEFAULT_KILL_GRACE_S, most_s) if grace_s is None else grace_s

    # ---- [resources], [role NAME], [service NAME] ----

    def _roles(self, workspace: str | None, framework: Framework) -> list[RoleSpec]:
        """Return the valid roles, followed by the services."""
        is_service = self._application("kind") == Kind.SERVICE.value and not self._sections("role")
        roles = [] if is_service else self._main_roles(workspace, framework)
        return [*roles, *(role for section in self._sections("service") if (role := self._service(section, workspace)))]

    def _service(self, section: str, workspace: str | None) -> RoleSpec | None:
        get = self.properties.value
        ports: int = get(section, "ports", 1)
        script = self._script(section, "script", workspace)
        if script is None and get(section, "command") is None:
            return None  # already reported
        return self._role(
            section,
            script,
            self._resources(section),
            service=True,
            ports=ports,
            keep_running=True,
            ready=get(section, "ready", READY_BY_PORT if ports else READY_BY_REPORT),
            max_idle_s=get(section, "max_idle"),
        )

    def _role(self, section: str, script: str | None, resources: Resources, **more: Any) -> RoleSpec | None:
        """Return the role of a ``[role NAME]`` or ``[service NAME]``; None after an error, which is noted.

        Args:
            more: values of a `RoleSpec` in which the two kinds of sections differ.
        """
        get = self.properties.value
        try:
            return RoleSpec(
                name=_name_of(section),
                instances=get(section, "instances", 1),
                resources=resources,
                script=script,
                command=get(section, "command"),
                args=get(section, "args"),
                docker_image=get(section, "docker_image"),
                env=tuple(self._env_of(section)),
                placement=self._own_placement(section),
                depends_on=get(section, "depends_on", ()),
                **more,
            )
        except SpecError as refused:
            add_refusal(self.problems, self.properties, refused)
            return None

    def _main_roles(self, workspace: str | None, framework: Framework) -> list[RoleSpec]:
        """Return the valid roles; a single one, worker, if the file has no ``[role NAME]``."""
        services = frameworks.services(framework)
        get, defaults = self.properties.value, self.config.defaults
        sections = self._sections("role")
        if not sections:
            instances = get("resources", "containers", defaults.containers)
            retries = get("resources", "retries", 0)
            resources = self._resources("resources")
            ports = frameworks.ports(framework, resources)
            return [RoleSpec(instances=instances, resources=resources, retries=retries, ports=ports)]
        roles = []
        for section in sections:
            script = self._script(section, "script", workspace)
            failure, resources = get(section, "on_failure"), self._resources(section)
            role = self._role(
                section,
                script,
                resources,
                retries=get(section, "retries", get("resources", "retries", 0)),
                on_failure=None if failure is None else RoleFailure(failure),
                service=get(section, "service", _name_of(section) in services),
                ports=get(section, "ports", frameworks.ports(framework, resources)),
            )
            if role is not None:
                roles.append(role)
        return roles

    def role_env(self) -> dict[str, dict[str, str]]:
        """Return the values of each role's own variables; options of the command win."""
        found = {_name_of(section): self._env_of(section) for section in self._sections(*OF_ROLES)}
        return {name: env for name, env in found.items() if env}

    def _env_of(self, section: str) -> dict[str, str]:
        names = (key.removeprefix(ENV) for key in self.properties.sections[section] if key.startswith(ENV))
        return {
            name: self.properties.value(section, f"{ENV}{name}") for name in names if name not in self._overrides.env
        }

    def _resources(self, section: str) -> Resources:
        """Return the resources of one container: from a role's section, else ``[resources]``, else the defaults."""
        defaults = self.config.defaults

        def amount(key: str, default: int | None) -> Any:
            found = next((one for one in (section, "resources") if key in self.properties.sections.get(one, {})), None)
            return default if found is None else self.properties.value(found, key)

        gcores = amount("gcores", defaults.gcores)
        return Resources(
            memory_mib=amount("memory", defaults.memory_mib),
            vcores=amount("vcores", defaults.vcores),
            gcores=int(self.engine.has_gpus) if gcores is None else gcores,
        )

    def _placement(self, section: str) -> Placement:
        """Return the nodes of a section, else of ``[resources]``."""

        def of(key: str, default: Any = None) -> Any:
            return self.properties.value(section, key, self.properties.value("resources", key, default))

        return Placement(
            nodes=of("nodes", ()),
            exclude_nodes=of("exclude_nodes", ()),
            node_label=of("node_label"),
            spread=self.properties.value("resources", "placement", "pack") == "spread",
        )

    def _own_placement(self, section: str) -> Placement | None:
        keys = self.properties.sections[section]
        return self._placement(section) if {"nodes", "exclude_nodes", "node_label"} & keys.keys() else None

    # ---- [from_hdfs], [to_hdfs] ----

    def _input(self, section: str) -> InputSpec | None:
        sources = []
        for text in self.properties.value(section, "hdfs", ()):
            try:
                location = self._location(text, pattern=True)
                if location.startswith((FILE, HDFS)):
                    split_pattern(self._path(location))
                sources.append(location)
            except ValueError as problem:
                self._add_problem(section, "hdfs", problem)
        path = self.properties.value(section, "input_path")
        if path is None or not sources:
            return None
        if not self._is_inside_workspace(section, "input_path", path):
            return None
        get, mode = self.properties.value, self.properties.value(section, "mode", "copy")
        if mode == "mount" and (len(sources) > 1 or not sources[0].startswith(FILE)):
            what = "with mode=mount it is one directory of a shared file system: file:///mnt/data"
            self._add_problem(section, "hdfs", what)
            return None
        for key in self.properties.sections[section]:
            if key.startswith("feed.") and mode != "feed":
                self._add_problem(section, key, "has no effect without mode=feed")
        try:
            return InputSpec(
                name=_name_of(section),
                sources=tuple(sources),
                input_path=os.path.normpath(path),
                unpack=get(section, "archive", "keep") == "unpack",
                as_list=mode == "list",
                optional=get(section, "optional", False),
                shard=get(section, "shard", mode == "feed"),
                feed=self._feed(section) if mode == "feed" else None,
                mount=mode == "mount",
            )
        except SpecError as refused:
            add_refusal(self.problems, self.properties, refused)
            return None

    def _feed(self, section: str) -> FeedSpec:
        get, defaults = self.properties.value, FeedSpec()
        return FeedSpec(
            format=FeedFormat(get(section, "feed.format", defaults.format.value)),
            epochs=get(section, "feed.epochs", defaults.epochs),
            shuffle=get(section, "feed.shuffle"),
            buffer_bytes=get(section, "feed.buffer", defaults.buffer_bytes),
        )

    def _output(self, section: str, workspace: str | None) -> OutputSpec | None:
        get = self.properties.value
        path, text = get(section, "output_path"), get(section, "hdfs")
        target = None if text is None else self._target(section, text, "output goes")
        if path is None or not self._is_inside_workspace(section, "output_path", path):
            return None
        if _GLOB.search(path):
            self._add_problem(
                section, "output_path", f"{shown(path)} is a pattern; name the directory that holds the output"
            )
            return None
        if os.path.normpath(path) == ".":
            what = f"{shown(path)} is the workspace itself; name a directory in it that holds nothing but output"
            self._add_problem(section, "output_path", what)
            return None
        if (
            workspace
            and not self.workspace_is_packed
            and os.path.lexists(there := os.path.join(workspace, path))
            and not os.path.isdir(there)
        ):
            self._add_problem(section, "output_path", f"{_seen(os.path.normpath(there))}: is not a directory")
        if target is None:
            return None
        if "sweep" in self.properties.sections and posixpath.basename(target.rstrip("/")) != TRIALS:
            target = f"{target.rstrip('/')}/{TRIALS}"  # it has a directory for each trial
        previous, overwrite = get(section, "keep_previous", 0), get(section, "overwrite", False)
        if previous and not overwrite:
            self._add_problem(section, "keep_previous", "has no effect without overwrite=true")
            return None
        return OutputSpec(
            name=_name_of(section),
            output_path=os.path.normpath(path),
            target=target,
            overwrite=overwrite,
            on_failure=OnFailure(get(section, "on_failure", "keep")),
            keep_previous=previous,
            sync_s=get(section, "sync"),
            by_trial=self.properties.value("sweep", "commit", "") == SweepCommit.TRIAL.value,
        )

    def _target(self, section: str, text: str, what_goes: str) -> str | None:
        """Return the location that a section writes to; None after an error, which is noted."""
        try:
            if set("*?") & set(text):
                raise ValueError(f"{shown(text)} is a pattern; {what_goes} to one place")
            return self._location(text, pattern=False)
        except ValueError as problem:
            self._add_problem(section, "hdfs", problem)
            return None

    def _checkpoint(
        self, outputs: Sequence[OutputSpec], roles: Sequence[RoleSpec], gang: Gang
    ) -> CheckpointSpec | None:
        section, get = "checkpoint", self.properties.value
        if section not in self.properties.sections:
            return None
        path, text, target = get(section, "path"), get(section, "hdfs"), ""
        if problem := checkpoint_problem(get(section, "role"), roles, is_gang=gang is not Gang.NONE):
            self._add_problem(section, "role", problem)
        if path is not None and self._is_inside_workspace(section, "path", path) and os.path.normpath(path) == ".":
            self._add_problem(section, "path", f"{shown(path)} is the workspace itself; name a directory in it")
        if text is not None:
            target = self._target(section, text, "checkpoints go") or ""
        elif outputs:
            target = f"{outputs[0].target.rstrip('/')}.checkpoints"
        elif not self._sections("to_hdfs"):  # else that is the error to correct
            self._add_problem(section, "hdfs", "is missing, and without [to_hdfs] there is no place beside an output")
        for output in outputs:
            if target and is_inside(target, output.target):
                what = f"is in the target of [{f'to_hdfs {output.name}'.strip()}], which is replaced as a whole"
                self._add_problem(section, "hdfs", f"{shown(target)} {what}")
        if path is None or self.problems:
            return None
        return CheckpointSpec(
            path=os.path.normpath(path),
            target=target,
            every_s=get(section, "every", DEFAULT_CHECKPOINT_EVERY_S),
            keep=get(section, "keep", DEFAULT_CHECKPOINTS),
            role=get(section, "role"),
        )

    def _sweep(
        self,
        roles: Sequence[RoleSpec],
        gang: Gang,
        framework: Framework,
        checkpoint: CheckpointSpec | None,
        env: Mapping[str, str],
    ) -> SweepSpec | None:
        if "sweep" not in self.properties.sections:
            return None
        from dlapp.application.sweep_section import read_sweep_section, unknown_names  # rarely needed

        sweep = read_sweep_section(self.properties, self.problems, lambda text: _own_path(text, self.directory))
        if sweep is None:
            return None
        if sweep.sampler is Sampler.OPTUNA and (problem := self._optuna_problem()):
            self._add_problem("sweep", "sampler", problem)
        for where, problem in self._not_in_sweeps():
            section, _, key = where.partition(".")
            self.problems.add(self.properties.line(section, key), where, problem)
        self.notes += unknown_names(sweep, self._application("user_shell_args", ()))
        for where, problem in problems_with_sweep(
            sweep, roles=roles, gang=gang, framework=framework, checkpoint=checkpoint, env=env
        ):
            section, _, key = where.partition(".")
            self.problems.add(self.properties.line(section, key), where, problem)
        return sweep

    def _optuna_problem(self) -> str:
        """Return why an ApplicationMaster cannot import Optuna; empty if no reason is known."""
        if self.engine.paths_on_hdfs:
            if self.config.yarn.python_archive:
                return ""
            return "needs yarn.python_archive, an archive of Python with optuna and numpy for the ApplicationMaster"
        import importlib.util

        if importlib.util.find_spec("optuna") is not None:
            return ""
        return "needs Optuna, which is not installed here: pip install optuna numpy, or dlapp with the extra optuna"

    def _not_in_sweeps(self) -> Iterator[tuple[str, str]]:
        """Yield settings without effect in a sweep: the key, and the problem."""
        if self._application("hang_timeout") is not None:
            yield "application.hang_timeout", "has no effect in a sweep; trial_time limits how long a trial runs"
        for name in self._sections("to_hdfs"):
            if self.properties.value(name, "sync") is not None:
                yield (
                    f"{name}.sync",
                    "has no effect in a sweep; commit=trial commits the output of each trial at its end",
                )
        for name in self._sections("from_hdfs"):
            if (mode := self.properties.value(name, "mode", "copy")) in ("feed", "mount"):
                yield f"{name}.mode", f"is {mode}, which the trials of a sweep do not have"
            elif self.properties.value(name, "shard", False):
                yield f"{name}.shard", "is true, and which container runs a trial is not known before"

    def _location(self, text: str, *, pattern: bool) -> str:
        """Return the location of a path: on HDFS or local, by its scheme, else by the engine's default. Raises
        ValueError."""
        match = _SCHEME.match(text)
        scheme = match[1].lower() if match else ""
        if scheme not in ("hdfs", "viewfs") and not self.engine.paths_on_hdfs:
            return resolve_location(text, self.directory, self.config.local.fs_root, pattern=pattern)
        if scheme == "file":
            return self._shared_location(text, pattern=pattern)
        _refuse_references(text)
        if scheme not in ("", "hdfs", "viewfs"):
            return _for_input(scheme, text, "a path or hdfs://", pattern=pattern)
        if self.hdfs is None:
            raise ValueError(f"{_seen(text)} is on HDFS, and {self.engine.no_hdfs}")
        if text.startswith("~"):
            if text[1:2] not in ("", "/"):
                raise ValueError(f"{shown(text)}: on HDFS only ~/ is known, your home directory there; write the path")
            text = text[2:]
        location = self.hdfs.resolve(scheme + text[len(scheme) :])
        self.hdfs.of(location).path(location)
        return location

    def _shared_location(self, text: str, *, pattern: bool) -> str:
        """Return the location of a path that is the same on all nodes. Raises ValueError: it has no such scheme."""
        shared = self.config.storage.shared_paths
        location = resolve_location(text, "/", "/", pattern=pattern) if pattern else ""
        if not any(is_inside(local_path(location), one) for one in shared if location):
            there = "it can be a path or hdfs://"
            if pattern and shared:
                there += f", or file:// in {' or '.join(shared)} (storage.shared_paths)"
            raise ValueError(f"there is no storage for file:// on a cluster, {there}")
        return location

    def _path(self, location: str) -> str:
        """Return the path of a location on its file system."""
        if self.hdfs is None or location.startswith(FILE):
            return local_path(location)
        return self.hdfs.of(location).path(location)

    def _system(self, location: str) -> str:
        """Return the prefix before paths on the file system of a location."""
        if self.hdfs is None or not location.startswith(HDFS):
            return location.partition("://")[0] + "://"
        return self.hdfs.of(location).location

    def _is_inside_workspace(self, section: str, key: str, path: str) -> bool:
        try:
            check_inside_workspace(f"{section}.{key}", path)
            _refuse_references(path)
        except ValueError as refused:
            self._add_problem(section, key, refused.problem if isinstance(refused, SpecError) else refused)
            return False
        return True

    def _check_overlaps(self, inputs: list[InputSpec], outputs: list[OutputSpec], workspace: str | None) -> None:
        """Refuse an output that would replace files of the application, or another output."""
        for place, output in enumerate(outputs):
            section = f"to_hdfs {output.name}".strip()
            target = self._path(output.target)
            system = self._system(output.target)
            for one in inputs:
                for source in one.sources:
                    if self._system(source) != system:
                        continue
                    if output.overwrite and _begins_at(self._path(source), target):
                        continue  # the output of an earlier run: it is copied before the new one replaces it
                    if overlap(target, self._path(source), links=system == FILE):
                        line = self.properties.line(f"from_hdfs {one.name}".strip(), "hdfs")
                        what = f"would overwrite the application's own input{of_line(line)}"
                        self._add_problem(section, "hdfs", f"{_seen(target)} {what}")
            for kept, what in ((workspace, "the workspace"), (self.file, "the properties file")):
                if kept and system == FILE and is_inside(os.path.realpath(kept), os.path.realpath(target)):
                    self._add_problem(section, "hdfs", f"{_seen(target)} would overwrite {what}")
            for other in outputs[:place]:
                if self._system(other.target) != system:
                    continue
                if overlap(target, _WILD.sub(r"\\\1", self._path(other.target)), links=system == FILE):
                    line = self.properties.line(f"to_hdfs {other.name}".strip(), "hdfs")
                    what = f"and the target{of_line(line) or f' of [to_hdfs {other.name}]'} lie in each other"
                    self._add_problem(section, "hdfs", f"{_seen(target)} {what}")


def _begins_at(pattern: str, target: str) -> bool:
    """Return whether a pattern names a target, or a path in it, without a wildcard in the target's own name."""
    parts = _parts(target)
    return all(list(components[: len(parts)]) == parts for components in split_pattern(pattern))


def _script_hint(text: str, workspace: str) -> str:
    """Return a suggestion for a missing script, to be appended to the problem."""
    words = text.split()
    there = [one for one in words if os.path.isfile(os.path.join(workspace, one))]
    if len(words) > 1 and there:
        script, *args = words[words.index(there[0]) :]
        by = "" if script == words[0] else f", with a first line #!/usr/bin/env {os.path.basename(words[0])}"
        more = f", and user_shell_args={' '.join(args)}" if args else ""
        return f"; write user_shell_script={script}{by}{more}"
    above = os.path.dirname(os.path.normpath(text))
    try:
        names = os.listdir(os.path.join(workspace, above))
    except OSError:
        return ""
    import difflib  # only for an error: it costs 5 ms

    near = difflib.get_close_matches(os.path.basename(text), names, n=1)
    return f"; the nearest is {shown(os.path.join(above, near[0]))}" if near else ""


def add_refusal(problems: Problems, properties: Properties, refused: SpecError) -> None:
    """Record the error of a value that the spec, or an engine, refused, with its line in the file."""
    section, _, key = refused.field.partition(".")
    problems.add(properties.line(section, key), refused.field, refused.problem)


def overlap(target: str, pattern: str, *, links: bool = True) -> bool:
    """Return whether a target matches a pattern, or is inside a match, or contains one.

    Args:
        links: whether to follow local symbolic links.

    Raises:
        UsageError: the pattern is invalid.
    """
    targets = [_parts(target), _parts(os.path.realpath(target))] if links else [_parts(target)]
    for components in split_pattern(pattern):
        fixed = next((n for n, one in enumerate(components) if not isinstance(one, str)), len(components))
        start = "/" + "/".join(str(one) for one in components[:fixed])
        start = os.path.realpath(start) if links else start
        for wanted in (components, [*_parts(start), *components[fixed:]]):
            for parts in targets:
                if all(
                    one == part if isinstance(one, str) else one.fullmatch(part)
                    for one, part in zip(wanted, parts, strict=False)
                ):
                    return True
    return False


def read_env_file(path: str) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; values are literal, including quotes.

    Empty lines and lines that begin with ``#`` are skipped. Messages never quote the file: it contains secrets.

    Raises:
        UsageError: others may read it, it is another user's, or a line is not a variable; one line for each error.
    """
    try:
        # Do not block on a FIFO without a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{_seen(path)}: is not a file")
            if status.st_uid not in (os.geteuid(), 0):
                raise UsageError(f"{_seen(path)}: is another user's file")
            if mode := stat.S_IMODE(status.st_mode) & 0o077:
                full = stat.S_IMODE(status.st_mode)
                raise UsageError(f"{_seen(path)}: has mode {full:04o}, others may use it ({mode:04o}); chmod 600 it")
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{_seen(path)}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{_seen(path)}: has more than {MAX_BYTES >> 20} MiB")
    return _variables(data, path)


def _variables(data: bytes, path: str) -> dict[str, str]:
    env: dict[str, str] = {}
    problems: list[str] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{_seen(path)}:{number}"
        try:
            line = raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            problems.append(f"{where}: is not UTF-8")
            continue
        if not line.strip(" \t") or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        try:
            if not separator or not _VARIABLE.fullmatch(name):
                raise ValueError("is not NAME=value")
            check_env_name(name, name)
            if name in env:
                raise ValueError(f"{name}: appears twice")
            if "\0" in value:
                raise ValueError(f"{name}: has a NUL in it")
            if len(raw) >= MAX_ARGUMENT_BYTES:
                raise ValueError(f"{name}: has {len(raw)} bytes, the maximum is {MAX_ARGUMENT_BYTES - 1}")
            env[name] = value
        except ValueError as problem:
            problems.append(f"{where}: {problem}")
    if problems:
        raise UsageError("\n".join(problems[:20]))
    return env


def of_line(line: Line) -> str:
    """Format a line number, or an option, for a message after the name of the key."""
    return f" of {line}" if isinstance(line, str) else f" of line {line}" if line else ""


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _name_of(section: str) -> str:
    return section.partition(" ")[2]


def _seen(path: str) -> str:
    """Return a path for a message: literal if it is printable."""
    return path if path.isprintable() else repr(path)
