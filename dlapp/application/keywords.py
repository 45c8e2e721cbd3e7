"""An application described by keywords: `AppSpec` with the names and units of a properties file."""

from __future__ import annotations

import getpass
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from dlapp.application.keys import SECTIONS
from dlapp.application.overrides import Overrides
from dlapp.config import Config
from dlapp.errors import SpecError, UsageError
from dlapp.system.text import nearest, read_duration_s
from dlapp.values.spec import (
    DEFAULT_KILL_GRACE_S,
    DEFAULT_OUTPUT_PATIENCE_S,
    DEFAULT_SERVICE_PATIENCE_S,
    MAX_CONTAINERS,
    AppSpec,
    ContainerFailure,
    InputSpec,
    OutputSpec,
    PayloadCache,
    Placement,
    Resources,
    RoleSpec,
)
from dlapp.values.start_conditions import read_after

Path = str | os.PathLike[str]

_ALTERNATIVES = {
    **dict.fromkeys(
        ("gang", "gang_window", "failure_settle", "keep_failed", "success", "depends_on", "service", "roles"),
        "an AppSpec",
    ),
    **dict.fromkeys(("pass_env", "env_file"), 'env={"NAME": os.environ["NAME"]}'),
    **dict.fromkeys(("archive", "mode", "shard", "optional"), "inputs=[InputSpec(...)]"),
    **dict.fromkeys(("keep_previous", "on_failure"), "outputs=[OutputSpec(...)]"),
    **dict.fromkeys(("checkpoint", "every", "keep", "sweep"), "an AppSpec"),
    **dict.fromkeys(("kind", "ready", "max_idle", "link", "tensorboard", "view_acl", "modify_acl"), "an AppSpec"),
}
"""Keys of a file that are not keywords -> the alternative."""


class ApplicationFields(TypedDict, total=False):
    """Keywords of `Client.submit`, named like the keys of a file; an omitted keyword has the default of the missing
    key.

    ``workspace`` and ``script`` are required, or ``command``: its words, or text as in a file. ``appname`` is the
    program's name if not given. Amounts and durations are
    numbers (MiB, seconds) or text as in a file; ``gcores`` None is auto. ``inputs`` has input_path -> source or
    sources, ``outputs`` has output_path -> target; ``overwrite`` is for all of them. ``after`` has ids, each with
    ``:any`` or ``:failed`` behind it where not ``:ok`` is meant. With several inputs or outputs
    each gets its path as name, with ``_`` for what a name cannot have. Sequences of `InputSpec` and `OutputSpec` are
    used as they are. ``caches`` has name -> path.
    """

    workspace: Path
    script: Path
    command: str | Sequence[str]
    appname: str
    username: str
    docker_image: str
    network: str
    exclude: str | Sequence[str]
    exclude_defaults: bool
    containers: int | str
    memory: str | int
    vcores: int | str
    gcores: int | str | None
    retries: int | str
    placement: str
    nodes: str | Sequence[str]
    exclude_nodes: str | Sequence[str]
    node_label: str
    inputs: Mapping[str, Path | Sequence[Path]] | Sequence[InputSpec]
    outputs: Mapping[str, Path] | Sequence[OutputSpec]
    overwrite: bool
    caches: Mapping[str, Path]
    max_runtime: str | float
    kill_grace: str | float
    output_patience: str | float
    service_patience: str | float
    on_container_failure: str
    idle_guard: str
    queue: str
    priority: int | str
    project: str
    tags: str | Sequence[str]
    after: str | Sequence[str]
    hold: bool
    requeue: bool


class SubmitOptions(TypedDict, total=False):
    """Keywords that `Client.resume` and `Client.again` share with `Client.submit`, which documents them."""

    env: Mapping[str, str] | None
    args: Sequence[str] | None
    overrides: Mapping[str, object] | Overrides | None
    say: Callable[[str], None]
    note: Callable[[str], None]
    progress: Callable[[int, int], None] | None


def spec_of(
    fields: Mapping[str, Any], config: Config, *, has_gpus: bool, args: Sequence[str], env: Mapping[str, str]
) -> AppSpec:
    """Build the spec that keywords describe.

    Args:
        fields: the keywords, `ApplicationFields`.
        config: has the default amounts.
        has_gpus: whether ``auto`` means one GPU.
        args: the arguments of the program.
        env: variables of the program; the spec contains their names only.

    Raises:
        UsageError: a keyword is unknown or a required one is missing.
        SpecError: a value is invalid.
    """
    known = ApplicationFields.__annotations__
    if unknown := next((name for name in fields if name not in known), None):
        alternative = _ALTERNATIVES.get(unknown)
        hint = f"use {alternative}" if alternative else nearest(unknown, known)
        raise UsageError(f"{unknown}: is not a keyword of an application, {hint}")
    command = _command(fields.get("command"))
    if command and fields.get("script"):
        raise UsageError("command: is given, and so is script; an application has one of them")
    if missing := [name for name in ("workspace", "script") if not command and not fields.get(name)]:
        raise UsageError(f"{missing[0]}: is missing; give a properties file, an AppSpec, or workspace and script")
    values = {name: value for name, value in fields.items() if value is not None}
    defaults = config.defaults
    gcores = _amount(values, "gcores", None if "gcores" in fields else defaults.gcores)
    placement = _text(values, "placement", "pack")
    failure = _text(values, "on_container_failure", ContainerFailure.STOP.value)
    script = "" if command else _path("script", values["script"])
    containers = _amount(values, "containers", defaults.containers)
    if not 1 <= containers <= MAX_CONTAINERS:
        raise SpecError("containers", f"is {containers}, allowed are 1 to {MAX_CONTAINERS}")
    resources = Resources(
        memory_mib=_amount(values, "memory", defaults.memory_mib),
        vcores=_amount(values, "vcores", defaults.vcores),
        gcores=int(has_gpus) if gcores is None else gcores,
    )
    idle_guard = _text(values, "idle_guard")
    return AppSpec(
        username=_text(values, "username") or getpass.getuser(),
        appname=_text(values, "appname") or os.path.basename(command[0] if command else script),
        workspace=_path("workspace", values.get("workspace", "")),
        script=script,
        command=command,
        args=tuple(args),
        docker_image=_text(values, "docker_image"),
        network=_text(values, "network"),
        exclude=_paths("exclude", values.get("exclude", ())),
        exclude_defaults=_flag(values, "exclude_defaults", default=True),
        queue=_text(values, "queue"),
        priority=_amount(values, "priority", None, "application"),
        project=_text(values, "project"),
        tags=_paths("tags", values.get("tags", ())),
        after=_read("after", read_after, ",".join(_paths("after", values.get("after", ())))),
        hold=_flag(values, "hold", default=False),
        requeue=_flag(values, "requeue", default=False),
        max_runtime_s=_seconds(values, "max_runtime", None),
        kill_grace_s=_seconds(values, "kill_grace", DEFAULT_KILL_GRACE_S),
        output_patience_s=_seconds(values, "output_patience", DEFAULT_OUTPUT_PATIENCE_S),
        service_patience_s=_seconds(values, "service_patience", DEFAULT_SERVICE_PATIENCE_S),
        on_container_failure=ContainerFailure(
            _read("on_container_failure", SECTIONS["application"]["on_container_failure"].read, failure)
        ),
        idle_guard=defaults.idle_guard_for(containers, has_gpus=resources.gcores > 0)
        if idle_guard is None
        else _read("idle_guard", SECTIONS["application"]["idle_guard"].read, idle_guard),
        env=tuple(env),
        placement=Placement(
            nodes=_paths("nodes", values.get("nodes", ())),
            exclude_nodes=_paths("exclude_nodes", values.get("exclude_nodes", ())),
            node_label=_text(values, "node_label"),
            spread=_read("placement", SECTIONS["resources"]["placement"].read, placement) == "spread",
        ),
        inputs=_inputs(values.get("inputs", {})),
        outputs=_outputs(values.get("outputs", {}), overwrite=_flag(values, "overwrite", default=False)),
        caches=_caches(values.get("caches", {})),
        roles=(
            RoleSpec(
                instances=containers,
                resources=resources,
                retries=_amount(values, "retries", 0),
            ),
        ),
    )


def check_texts(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse arguments and variables that are not text; messages do not contain the values of variables.

    Raises:
        SpecError: one is not text.
    """
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise SpecError("args", "is not a list of words")
    for place, word in enumerate(args):
        if not isinstance(word, str):
            raise SpecError(f"args[{place}]", f"is {word!r}, it must be text (str)")
    if not isinstance(env, Mapping):
        raise SpecError("env", "is not a mapping of names to values")
    for name, value in env.items():
        if not isinstance(name, str):
            raise SpecError("env", f"the name {name!r} must be text (str)")
        if not isinstance(value, str):
            raise SpecError(f"env.{name}", f"is of type {type(value).__name__}, it must be text (str)")


def _command(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(_read("command", SECTIONS["application"]["command"].read, value))
    words = () if value is None else value
    check_texts(words, {})  # type: ignore[arg-type]
    return tuple(words)  # type: ignore[arg-type]


def _text(values: Mapping[str, Any], name: str, default: str | None = None) -> Any:
    value = values.get(name, default)
    if not isinstance(value, (str, type(None))):
        raise SpecError(name, f"is {value!r}, it must be text (str)")
    return value


def _flag(values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise SpecError(name, f"is {value!r}, allowed are True, False")
    return value


def _amount(values: Mapping[str, Any], name: str, default: int | None, section: str = "resources") -> Any:
    """Return a whole number; text is parsed as in a file."""
    value = values.get(name, default)
    if isinstance(value, str):
        return _read(name, SECTIONS[section][name].read, value)
    try:
        if isinstance(value, bool):
            raise TypeError
        return None if value is None else operator.index(value)
    except TypeError:
        problem = f"is {value!r}, it must be a whole number or text as in a properties file"
        raise SpecError(name, problem) from None


def _seconds(values: Mapping[str, Any], name: str, default: float | None) -> Any:
    value = values.get(name, default)
    if isinstance(value, str):
        return _read(name, read_duration_s, value)
    if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        raise SpecError(name, f"is {value!r}, it must be a number of seconds or text such as '1h30m'")
    return value


def _path(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or not isinstance(path := os.fspath(value), str):
        raise SpecError(name, f"is {value!r}, it must be text (str) or a path")
    return path


def _paths(name: str, value: object) -> tuple[str, ...]:
    """Return the texts of a list, or a single text as a list."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(_path(name, one) for one in value)
    return (_path(name, value),)


def _inputs(value: object) -> tuple[InputSpec, ...]:
    if isinstance(value, Mapping):
        return tuple(
            InputSpec(name=_name("inputs", path, value), sources=_paths("inputs", sources), input_path=path)
            for path, sources in value.items()
        )
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, InputSpec) for one in value):
        raise SpecError("inputs", "is neither a mapping of input_path to sources nor a list of InputSpec")
    return tuple(value)


def _caches(value: object) -> tuple[PayloadCache, ...]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SpecError("caches", "is not a mapping of names to paths")
    return tuple(PayloadCache(name, _path("caches", path)) for name, path in value.items())


def _outputs(value: object, *, overwrite: bool) -> tuple[OutputSpec, ...]:
    if isinstance(value, Mapping):
        return tuple(
            OutputSpec(
                name=_name("outputs", path, value),
                output_path=path,
                target=_path("outputs", target),
                overwrite=overwrite,
            )
            for path, target in value.items()
        )
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, OutputSpec) for one in value):
        raise SpecError("outputs", "is neither a mapping of output_path to target nor a list of OutputSpec")
    if overwrite:
        raise SpecError("overwrite", "is for a mapping; give OutputSpec(..., overwrite=True)")
    return tuple(value)


def _read(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as problem:
        raise SpecError(name, str(problem)) from None


def _name(field: str, path: object, paths: Mapping[Any, Any]) -> str:
    """Return the name of one of several sections: its path, with invalid characters replaced."""
    if not isinstance(path, str):
        raise SpecError(field, f"the path {path!r} must be text (str)")
    return re.sub(r"[^A-Za-z0-9_-]", "_", path).strip("_")[:31] if len(paths) > 1 else ""
