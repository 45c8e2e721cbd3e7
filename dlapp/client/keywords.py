"""An application by keywords: `AppSpec` for those who write one line, with the words and units of a properties file."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from dlapp.config import Config
from dlapp.errors import SpecError, UsageError
from dlapp.spec import DEFAULT_KILL_GRACE_S, AppSpec, InputSpec, OutputSpec, Placement, Resources, RoleSpec
from dlapp.system.text import nearest, read_duration_s, read_memory_mib

Path = str | os.PathLike[str]


class ApplicationFields(TypedDict, total=False):
    """The keywords of `Client.submit`, named as the keys of a file; what is not given is as in a file without the key.

    ``workspace`` and ``script`` are required. ``appname`` is the script's name if not given. ``memory`` is text with a
    unit or a number of MiB, durations are text or seconds, ``gcores`` None is auto. ``inputs`` has input_path -> source
    or sources, ``outputs`` has output_path -> target; ``overwrite`` is for all of them. With several inputs or outputs
    each gets its path as name, with ``_`` for what a name cannot have.
    """

    workspace: Path
    script: Path
    appname: str
    username: str
    docker_image: str
    network: str
    exclude: str | Sequence[str]
    exclude_defaults: bool
    containers: int
    memory: str | int
    vcores: int
    gcores: int | None
    retries: int
    placement: str
    nodes: str | Sequence[str]
    exclude_nodes: str | Sequence[str]
    node_label: str
    inputs: Mapping[str, Path | Sequence[Path]]
    outputs: Mapping[str, Path]
    overwrite: bool
    max_runtime: str | float
    kill_grace: str | float
    queue: str
    priority: int
    project: str
    tags: str | Sequence[str]


def spec_of(
    fields: Mapping[str, Any], config: Config, *, has_gpus: bool, args: Sequence[str], env: Mapping[str, str]
) -> AppSpec:
    """Make the spec that keywords describe.

    Args:
        fields: the keywords, `ApplicationFields`.
        config: has the defaults of amounts.
        has_gpus: whether ``auto`` is one GPU.
        args: of the program.
        env: variables of the program; the spec has their names.

    Raises:
        UsageError: a keyword is not known, a required one is missing, or a value is not possible.
    """
    known = ApplicationFields.__annotations__
    if unknown := next((name for name in fields if name not in known), None):
        raise UsageError(f"{unknown}: is not a keyword of an application, {nearest(unknown, known)}")
    if missing := [name for name in ("workspace", "script") if not fields.get(name)]:
        raise UsageError(f"{missing[0]}: is missing; give a properties file, an AppSpec, or workspace and script")
    given = {name: value for name, value in fields.items() if value is not None}
    get, defaults = given.get, config.defaults
    gcores = given.get("gcores", None if "gcores" in fields else defaults.gcores)
    memory = get("memory", defaults.memory_mib)
    overwrite = get("overwrite", False)
    inputs, outputs = get("inputs", {}), get("outputs", {})
    return AppSpec(
        username=get("username") or getpass.getuser(),
        appname=get("appname") or os.path.basename(given["script"]),
        workspace=os.fspath(given["workspace"]),
        script=os.fspath(given["script"]),
        args=tuple(args),
        docker_image=get("docker_image"),
        network=get("network"),
        exclude=_texts(get("exclude", ())),
        exclude_defaults=get("exclude_defaults", True),
        queue=get("queue"),
        priority=get("priority"),
        project=get("project"),
        tags=_texts(get("tags", ())),
        max_runtime_s=_seconds("max_runtime", get("max_runtime")),
        kill_grace_s=DEFAULT_KILL_GRACE_S if get("kill_grace") is None else _seconds("kill_grace", given["kill_grace"]),
        env=tuple(env),
        placement=Placement(
            nodes=_texts(get("nodes", ())),
            exclude_nodes=_texts(get("exclude_nodes", ())),
            node_label=get("node_label"),
            spread=_is_spread(get("placement", "pack")),
        ),
        inputs=tuple(
            InputSpec(
                name=_name(path, inputs),
                sources=_texts(sources),
                input_path=path,
            )
            for path, sources in inputs.items()
        ),
        outputs=tuple(
            OutputSpec(name=_name(path, outputs), output_path=path, target=os.fspath(target), overwrite=overwrite)
            for path, target in outputs.items()
        ),
        roles=(
            RoleSpec(
                instances=get("containers", defaults.containers),
                resources=Resources(
                    memory_mib=memory if isinstance(memory, int) else _read("memory", read_memory_mib, memory),
                    vcores=get("vcores", defaults.vcores),
                    gcores=int(has_gpus) if gcores is None else gcores,
                ),
                retries=get("retries", 0),
            ),
        ),
    )


def _texts(value: Path | Sequence[Path]) -> tuple[str, ...]:
    """Return the texts of a list, or of one value in place of a list."""
    return tuple(os.fspath(one) for one in ([value] if isinstance(value, (str, os.PathLike)) else value))


def _seconds(name: str, value: str | float | None) -> Any:
    return _read(name, read_duration_s, value) if isinstance(value, str) else value


def _read(name: str, read: Any, text: str) -> Any:
    try:
        return read(text)
    except ValueError as problem:
        raise SpecError(name, str(problem)) from None


def _is_spread(text: str) -> bool:
    if text not in ("pack", "spread"):
        raise SpecError("placement", f"is {text!r}, allowed are pack, spread")
    return text == "spread"


def _name(path: str, paths: Mapping[str, Any]) -> str:
    """Return the name of one of several sections: its path, as far as a name can have it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", path).strip("_")[:31] if len(paths) > 1 else ""
