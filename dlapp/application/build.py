"""Construction of a spec from the values of its keys, by the table of keys.

The spec is a draft: its paths are as the user wrote them, and its rules are not checked.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlapp import frameworks
from dlapp.application.forms import read_link
from dlapp.application.keys import CACHE, LINK, key_of, named_keys
from dlapp.config import DefaultsConfig
from dlapp.sweep.spec import SweepCommit, SweepSpec
from dlapp.system.owners import user_name
from dlapp.values.rules import changed, unchecked
from dlapp.values.spec import (
    READY_BY_PORT,
    READY_BY_REPORT,
    AppSpec,
    CheckpointSpec,
    FeedSpec,
    Framework,
    Gang,
    InputSpec,
    Kind,
    OutputSpec,
    PayloadCache,
    Placement,
    QuickLink,
    Resources,
    RoleSpec,
)

Settings = Mapping[str, Any]
Values = Mapping[str, Settings]
"""Section (``application``, ``from_hdfs train``) -> key -> value."""


class Keywords(NamedTuple):
    """An application described by keywords.

    Args:
        fields: the keywords.
        env: variables of the program.
        args: arguments of the program.
    """

    fields: Mapping[str, Any]
    env: Mapping[str, str] = {}
    args: Sequence[str] = ()


class Objects(NamedTuple):
    """Parts of an application that were given as values of the spec."""

    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    checkpoint: CheckpointSpec | None = None
    sweep: SweepSpec | None = None

    def added_to(self, spec: AppSpec) -> AppSpec:
        """Return a draft with these parts."""
        return changed(
            spec,
            inputs=(*spec.inputs, *self.inputs),
            outputs=(*spec.outputs, *self.outputs),
            checkpoint=self.checkpoint or spec.checkpoint,
            sweep=self.sweep or spec.sweep,
        )


NO_OBJECTS = Objects()


def sections_of(values: Collection[str], *kinds: str) -> list[str]:
    """Return the sections of some kinds: ``from_hdfs train`` is one of the kind ``from_hdfs``."""
    return [section for section in values if section.partition(" ")[0] in kinds]


def os_user() -> str:
    """Return the operating system's user, as a number if it has no name."""
    return user_name(os.geteuid())


def build(
    values: Values,
    defaults: DefaultsConfig,
    *,
    has_gpus: bool,
    env: Collection[str],
    role_env: Mapping[str, Collection[str]],
    sweep: SweepSpec | None,
) -> AppSpec:
    """Return the draft of an application.

    Args:
        values: the values that were given.
        defaults: the configured defaults.
        has_gpus: whether ``gcores=auto`` means one GPU.
        env: names of the variables of all programs.
        role_env: role -> variables of its programs only.
        sweep: its sweep.
    """
    application = values.get("application", {})
    framework = application.get("framework", Framework.NONE)
    roles = _roles(values, defaults, framework, role_env, has_gpus=has_gpus)
    together = framework is not Framework.NONE or bool(sections_of(values, "role"))
    fields: dict[str, Any] = {
        "username": os_user(),
        "appname": "",
        "gang": Gang.ALL if together else Gang.NONE,
        "success": frameworks.success(framework, roles),
        "idle_guard": defaults.idle_guard_for(
            sum(role.instances for role in roles), has_gpus=any(role.resources.gcores for role in roles)
        ),
        **_fields("application", application),
    }
    return unchecked(
        AppSpec,
        **fields,
        env=tuple(env),
        placement=_placement(values.get("resources", {}), {}),
        inputs=tuple(_inputs(values)),
        outputs=tuple(_outputs(values)),
        caches=tuple(unchecked(PayloadCache, name=name, path=path) for name, path in named_keys(application, CACHE)),
        links=tuple(_links(application)),
        checkpoint=_checkpoint(values),
        sweep=sweep,
        roles=tuple(roles),
        tensorboard=_tensorboard(application),
    )


def _fields(section: str, settings: Settings, prefix: str = "") -> dict[str, Any]:
    """Return field -> value of the keys that set one field; with a prefix, of those of a value in the section's."""
    found = {}
    for name, value in settings.items():
        key = key_of(section, name)
        if key is not None and key.field.startswith(prefix) and "." not in (field := key.field.removeprefix(prefix)):
            found[field] = value
    found.pop("", None)
    return found


# ---- containers ----


def _roles(
    values: Values,
    defaults: DefaultsConfig,
    framework: Framework,
    role_env: Mapping[str, Collection[str]],
    *,
    has_gpus: bool,
) -> list[RoleSpec]:
    """Return the roles, followed by the services; a single role, worker, if there is no ``[role NAME]``."""
    shared = values.get("resources", {})

    def amounts(section: str, settings: Settings) -> Resources:
        fields = {
            "memory_mib": defaults.memory_mib,
            "vcores": defaults.vcores,
            "gcores": defaults.gcores,
            **_fields("resources", shared, "resources."),
            **_fields(section, settings, "resources."),
        }
        if fields["gcores"] is None:
            fields["gcores"] = int(has_gpus)
        return unchecked(Resources, **fields)

    def role(section: str, **by_default: Any) -> RoleSpec:
        settings, name = values[section], section.partition(" ")[2]
        nodes = _fields(section, settings, "placement.")
        fields = {**by_default, **_fields(section, settings)}
        fields["placement"] = _placement(shared, nodes) if nodes else None
        if fields.get("script") is not None:
            fields["script"] = os.path.normpath(fields["script"])
        return unchecked(RoleSpec, name=name, env=tuple(role_env.get(name, ())), **fields)

    sections, found = sections_of(values, "role"), []
    for section in sections:
        resources = amounts(section, values[section])
        found.append(
            role(
                section,
                resources=resources,
                retries=shared.get("retries", 0),
                service=section.partition(" ")[2] in frameworks.services(framework),
                ports=frameworks.ports(framework, resources),
            )
        )
    if not sections and values.get("application", {}).get("kind") is not Kind.SERVICE:
        resources = amounts("resources", {})
        fields = {"instances": defaults.containers, "ports": frameworks.ports(framework, resources)}
        found.append(unchecked(RoleSpec, **fields | _fields("resources", shared), resources=resources))
    for section in sections_of(values, "service"):
        ports = values[section].get("ports", 1)
        ready = READY_BY_PORT if ports else READY_BY_REPORT
        resources = amounts(section, values[section])
        found.append(role(section, resources=resources, service=True, keep_running=True, ports=ports, ready=ready))
    return found


def _placement(shared: Settings, own: Mapping[str, Any]) -> Placement:
    """Return the nodes of a role, else those of ``[resources]``."""
    fields = {**_fields("resources", shared, "placement."), **own}
    return Placement(**fields, spread=shared.get("placement") == "spread")


# ---- files ----


def _inputs(values: Values) -> Iterator[InputSpec]:
    """Yield the inputs; a missing location or path, which is an error already, is empty."""
    for section in sections_of(values, "from_hdfs"):
        settings = values[section]
        mode = settings.get("mode", "copy")
        feed = unchecked(FeedSpec, **_fields(section, settings, "feed.")) if mode == "feed" else None
        more = {"as_list": mode == "list", "mount": mode == "mount", "unpack": settings.get("archive") == "unpack"}
        fields = {"sources": (), "input_path": "", "shard": mode == "feed", **_fields(section, settings)}
        yield unchecked(InputSpec, name=section.partition(" ")[2], feed=feed, **more, **fields)


def _outputs(values: Values) -> Iterator[OutputSpec]:
    """Yield the outputs; a missing location or path, which is an error already, is empty."""
    by_trial = values.get("sweep", {}).get("commit") is SweepCommit.TRIAL
    for section in sections_of(values, "to_hdfs"):
        fields = {"output_path": "", "target": "", **_fields(section, values[section])}
        yield unchecked(OutputSpec, name=section.partition(" ")[2], by_trial=by_trial, **fields)


def _checkpoint(values: Values) -> CheckpointSpec | None:
    """Return the checkpoints; without a location their place is that of the output."""
    if "checkpoint" not in values:
        return None
    return unchecked(CheckpointSpec, **{"path": "", "target": "", **_fields("checkpoint", values["checkpoint"])})


# ---- what is shown ----


def _links(application: Settings) -> Iterator[QuickLink]:
    for name, text in named_keys(application, LINK):
        yield read_link(name, text)


def _tensorboard(application: Settings) -> str | bool:
    """Return the directory, or whether there is a TensorBoard on one that `dlapp.application.description` chooses."""
    wanted: str | bool = application.get("tensorboard", False)
    return wanted or ""
