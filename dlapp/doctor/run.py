"""Entry point of dlapp-doctor: checks of the configuration, and then of each part (`dlapp.doctor.findings`)."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlapp.doctor.findings import Check, CheckContext, Finding, failed, passed, run_checks, warned
from dlapp.errors import ConfigError, DlappError
from dlapp.system.text import counted

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.locations import HdfsPlace


ANY, ALL = "any", "all"


def diagnosis(*, cluster: str | None = None, defaults: bool = False, node: str = "") -> Iterator[Finding]:
    """Yield all findings for the configuration of this process, each as soon as it is known.

    Args:
        cluster: the engine, instead of the configured one.
        defaults: also report which keys have their defaults.
        node: also check in a container on `ANY` node of the cluster, or on `ALL`; empty for none. A single machine is
            its own only node.
    """
    from dlapp.config import load_config

    try:
        config = load_config({} if cluster is None else {"cluster": cluster})
    except ConfigError as error:
        for fault in str(error).split("\n"):
            yield failed("config", fault, "correct or remove it; docs/configuration.md has all keys")
        return
    yield from _configuration(config, defaults)
    yield from run_checks(checks(config))
    if node and config.cluster == "yarn":
        from dlapp.doctor.node import on_all_nodes

        check = Check("node", lambda: on_all_nodes(config) if node == ALL else _on_a_node(config))
        yield from map(_of_a_node, run_checks([check]))


def _of_a_node(one: Finding) -> Finding:
    return one if one.subject.startswith("node") else one._replace(subject=f"node.{one.subject}")


def _on_a_node(config: Config) -> Iterator[Finding]:
    from dlapp.client.engines import open_yarn
    from dlapp.doctor.node import on_a_node
    from dlapp.login import own_login

    with open_yarn(config, own_login()) as engine:
        yield from on_a_node(config, engine)


def checks(config: Config) -> Sequence[Check]:
    """Return the checks of the machine where applications are submitted."""
    found: list[Check] = []
    from dlapp.gpuid.health.nvml_subprocess import SHORT_ANSWER_S, NvmlProcess

    context = CheckContext(config, nvml=NvmlProcess(SHORT_ANSWER_S))
    if config.cluster == "yarn":
        from dlapp.doctor import yarn

        found += yarn.checks(context)
        context = context._replace(hdfs=_hdfs_of(config))
    else:
        from dlapp.doctor import local

        found += local.checks(context)
        found.append(Check("storage.cache", functools.partial(_input_cache, config)))
    from dlapp.doctor import docker as runtime
    from dlapp.doctor import gpu as gpuid
    from dlapp.doctor import hdfs as storage

    return [*found, *storage.checks(context), *gpuid.checks(context), *runtime.checks(context)]


def _input_cache(config: Config) -> Iterator[Finding]:
    """Yield whether input can be cached here, and whether there is space up to the cache's limit."""
    from dlapp.client.machine.input_cache import open_input_cache
    from dlapp.cluster.local.state import open_state
    from dlapp.system.text import human_size

    subject = "storage.cache"
    state = open_state(config.local.state_dir, shared=config.local.shared)
    try:
        kept = open_input_cache(config, state.path)
    except ConfigError:
        return  # the check of the operator's file reports it
    place, entries = kept.place, kept.entries()
    taken = sum(one.room_bytes for one in entries)
    found = f"{len(entries)} entries, {human_size(taken)} of {human_size(place.limit_bytes)}, in {place.directory}"
    space = os.statvfs(place.directory)
    if (free := space.f_bavail * space.f_frsize) + taken < place.limit_bytes:
        repair = "lower storage.cache_limit, or what is not in use goes whenever the disk is full (dlapp-cache clear)"
        yield warned(subject, f"{found}; {human_size(free)} are free there", repair)
    else:
        yield passed(subject, found)


def _hdfs_of(config: Config) -> HdfsPlace | None:
    from dlapp.hadoop.configuration import read_configuration
    from dlapp.login import own_login

    try:
        return read_configuration(config.yarn.conf_dir).hdfs(own_login(), config.storage.hdfs)
    except DlappError:
        return None  # the engine's own checks report it


def _configuration(config: Config, defaults: bool) -> Iterator[Finding]:
    from dlapp.config import FILE_VARIABLE, SYSTEM_FILE, USER_FILE

    named = os.environ.get(FILE_VARIABLE, "")
    for path in (SYSTEM_FILE, os.path.expanduser(USER_FILE), named):
        if not path:
            continue
        count = sum(origin.rpartition(":")[0] == path for origin in config.origins.values())
        there = f"{counted(count, 'values')} in effect" if os.path.exists(path) else "not there (it is optional)"
        yield passed("config.file", f"{path}: {there}")
    for line in config.ignored:
        yield warned("config.variable", line, "unset it, or write the name of docs/configuration.md")
    for name, origin in config.origins.items():
        if origin != "default" or defaults:
            yield passed(f"config.{name}", f"{config.texts.get(name, 'not set')} (from {origin})")
    if (command := config.notify.command) and config.cluster == "local" and not os.access(command[0], os.X_OK):
        found = f"notify.command: {command[0]} is not a program that you may run"
        yield warned("notify.command", found, "correct the path, or chmod +x it; without it no notification is sent")
