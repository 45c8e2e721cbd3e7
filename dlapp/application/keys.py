"""Sections and keys of a properties file: one table for parsing, for checks and for suggestions of names.

The checks here need only the text; `dlapp.application.resolve` checks files, users and other facts of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from dlapp.application.shell_words import split_words
from dlapp.config import read_containers, read_events, read_vcores
from dlapp.errors import SpecError
from dlapp.sweep.spec import (
    MAX_SEED,
    MAX_TRIAL_RETRIES,
    MAX_TRIALS,
    MAX_TRIALS_PER_CONTAINER,
    Goal,
    SweepCommit,
)
from dlapp.sweep.text_forms import (
    OPTUNA_PRUNERS,
    read_asha,
    read_distribution,
    read_metric,
    read_sampler,
    read_values,
)
from dlapp.system.text import (
    nearest,
    read_boolean,
    read_choice,
    read_count,
    read_duration_s,
    read_memory_mib,
    read_size_bytes,
    shown,
)
from dlapp.values.access import read_access_list
from dlapp.values.idle_guard import read_idle_guard
from dlapp.values.image_name import parse_image_name
from dlapp.values.spec import (
    MAX_CHECKPOINTS,
    MAX_EPOCHS,
    MAX_PORTS,
    MAX_PREVIOUS,
    MAX_RETRIES,
    MIN_CHECKPOINT_EVERY_S,
    MIN_FEED_BUFFER_BYTES,
    MIN_SYNC_S,
    READY_BY_HTTP,
    READY_BY_PORT,
    READY_BY_REPORT,
    URL_PATH,
    Dependency,
    FeedFormat,
    Kind,
    QuickLink,
    Until,
    check_cache_path,
    check_env_name,
    check_role_name,
)
from dlapp.values.start_conditions import read_after

NOT_BUILT = "is not built yet"
ENV = "env."
CACHE = "cache."
"""Prefixes of keys of ``[application]`` that set a variable, or the path of a cache, each."""
LINK = "link."
"""Prefix of keys of ``[application]`` that set a link each."""
GRID = "grid."
RANDOM = "random."
"""Prefixes of keys of ``[sweep]`` that set a parameter each."""

MAX_ARGUMENT_BYTES = 131_071
"""Linux, MAX_ARG_STRLEN: maximum size of an argument or variable, 32 pages with its final NUL."""

_LIST_SEPARATORS = re.compile(r"[,\n]")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,500}", re.ASCII)
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_LINK = re.compile(r"([^:/]*):(?:port([1-9][0-9]?)?|([0-9]{1,5}))(/.*)?", re.ASCII | re.DOTALL)
SECTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}", re.ASCII)


class PropertyKey(NamedTuple):
    """One key of a section.

    Args:
        read: text, without the quotes around it -> value; raises ValueError with the problem, or SpecError.
        required: the section must have it.
        lines: the value may continue in further lines.
        may_be_empty: an empty value is valid.
        keeps_quotes: quotes around the whole value are part of it.
    """

    read: Callable[[str], Any]
    required: bool = False
    lines: bool = False
    may_be_empty: bool = False
    keeps_quotes: bool = False


def _text(text: str) -> str:
    return text


def _username(text: str) -> str:
    if re.search(r"[\s/:]", text) or text.startswith("-"):
        raise ValueError(f"{shown(text)} is not a user name: no spaces, '/' or ':' in it, no '-' before it")
    return text


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"{shown(text)} is not an image name: name, registry/name:tag or name@digest")
    parse_image_name(text)
    return text


def _network(text: str) -> str:
    if not _NETWORK.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a network for containers: bridge, none, host, or a network's name")
    return text


def _arguments(text: str) -> tuple[str, ...]:
    words = split_words(text)
    for place, word in enumerate(words, start=1):
        if (size := len(word.encode(errors="surrogateescape"))) >= MAX_ARGUMENT_BYTES:
            raise ValueError(f"argument {place} has {size} bytes, the maximum is {MAX_ARGUMENT_BYTES - 1}")
    return words


def _command(text: str) -> tuple[str, ...]:
    words = _arguments(text)
    if not words or not words[0]:
        raise ValueError("names no program")
    if words[0].startswith("-"):
        raise ValueError(f"begins with {shown(words[0])}, which is an option and no program")
    return words


def _dependencies(text: str) -> tuple[Dependency, ...]:
    found = []
    for one in _list(text):
        name, _, until = one.partition(":")
        if until not in ("", *(each.value for each in Until)) or one.endswith(":"):
            raise ValueError(f"{shown(one)} is neither a role nor ROLE:ready nor ROLE:done")
        check_role_name("", name)
        found.append(Dependency(name, Until(until) if until else Until.STARTED))
    return tuple(dict.fromkeys(found))


def _success(text: str) -> tuple[str, ...]:
    """Return the names of roles; empty: all."""
    names = _list(text)
    if names == ("all",):
        return ()
    if "all" in names:
        raise ValueError("has all, and names of roles beside it")
    return tuple(dict.fromkeys(names))


def _list(text: str) -> tuple[str, ...]:
    items = (item.strip(" \t") for item in _LIST_SEPARATORS.split(text))
    return tuple(item for item in items if item)


def _variables(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(re.split(r"[,\s]+", text.strip(", \t\n"))))
    for name in names:
        try:
            check_env_name(name, name)
        except SpecError as refused:
            raise ValueError(f"{name}: {refused.problem}") from None
    return names


def _nodes(text: str) -> tuple[str, ...]:
    nodes = tuple(re.split(r"[,\s]+", text.strip(", \t\n")))
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise ValueError(f"{shown(node)} is not a node name")
    return nodes


def _label(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", text, re.ASCII):
        raise ValueError(f"{shown(text)} is not a label: letters, digits, '_' and '-'")
    return text


def _queue(text: str) -> str:
    if not re.fullmatch(r"[^\s,]{1,500}", text):
        raise ValueError(f"{shown(text)} is not a queue: one word")
    return text


def _tensorboard(text: str) -> str | bool:
    """Return a path, or whether to start TensorBoard."""
    try:
        return read_boolean(text)
    except ValueError:
        return text


def _ready(text: str) -> str:
    if text.startswith(READY_BY_HTTP):
        if not URL_PATH.fullmatch(text[len(READY_BY_HTTP) :]):
            raise ValueError(f"{shown(text)} is not http: and the path of a URL, such as http:/health")
        return text
    if text not in (READY_BY_PORT, READY_BY_REPORT):
        hint = nearest(text, (READY_BY_PORT, READY_BY_REPORT)) if ":" not in text else "http is followed by :/PATH"
        raise ValueError(f"{shown(text)} is neither port, report nor http:/PATH; {hint}")
    return text


def read_link(name: str, text: str) -> QuickLink:
    """Parse the value of a key ``link.NAME``.

    Raises:
        SpecError: the role or path is invalid.
        ValueError: the value has another form; the message is the problem.
    """
    if (found := _LINK.fullmatch(text)) is None:
        raise ValueError(
            f"{shown(text)} is not ROLE:PORT/path, where PORT is a number, or port, port2, ... of the role"
        )
    role, place, port, path = found.groups()
    return QuickLink(name, role, int(port) if port else None, int(place or 1) - 1, path or "/")


def _gcores(text: str) -> int | None:
    """Parse a number of gcores; None: auto, which is 1 if the engine has GPUs."""
    if text == "auto":
        return None
    try:
        return read_count(text, 0)
    except ValueError as problem:
        raise ValueError(f"{problem} (or auto)") from None


def _cache_path(text: str) -> str:
    check_cache_path("", text)
    return text


def _max_runtime_s(text: str) -> float:
    if (seconds := read_duration_s(text)) <= 0:
        raise ValueError("is 0, it must be more")
    return seconds


def _checkpoint_role(text: str) -> str:
    check_role_name("", text)
    return text


def _locations(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.split("\n") if line)


def _feed_buffer_bytes(text: str) -> int:
    if (size_bytes := read_size_bytes(text)) < MIN_FEED_BUFFER_BYTES:
        raise ValueError(f"is {text}, the minimum is {MIN_FEED_BUFFER_BYTES >> 20}m")
    return size_bytes


def check_variable(text: str) -> str:
    """Return the value of a variable unchanged. Raises ValueError: the kernel would not pass it to a process."""
    if "\0" in text:
        raise ValueError("has a NUL in it")
    if (size := len(text.encode(errors="surrogateescape"))) > MAX_ARGUMENT_BYTES - 1000:
        raise ValueError(f"has {size} bytes, the maximum is {MAX_ARGUMENT_BYTES - 1000}")
    return text


_UNBUILT = PropertyKey(_text)
"""A key that `read_value` refuses."""

_OF_A_CONTAINER: Mapping[str, PropertyKey] = {
    "memory": PropertyKey(read_memory_mib),
    "vcores": PropertyKey(read_vcores),
    "gcores": PropertyKey(_gcores),
    "nodes": PropertyKey(_nodes, lines=True),
    "exclude_nodes": PropertyKey(_nodes, lines=True),
    "node_label": PropertyKey(_label),
}
"""Keys of amounts and nodes, which ``[resources]``, ``[role NAME]`` and ``[service NAME]`` share."""

_OF_ONE_ROLE: Mapping[str, PropertyKey] = {
    "instances": PropertyKey(read_containers),
    "script": PropertyKey(_text),
    "command": PropertyKey(_command, lines=True),
    "args": PropertyKey(_arguments, lines=True, may_be_empty=True),
    "docker_image": PropertyKey(_image),
    **_OF_A_CONTAINER,
}
"""Keys that ``[role NAME]`` and ``[service NAME]`` share."""

SECTIONS: Mapping[str, Mapping[str, PropertyKey]] = {
    "application": {
        "kind": PropertyKey(partial(read_choice, allowed=[one.value for one in Kind])),
        "username": PropertyKey(_username),
        "appname": PropertyKey(_text, required=True, keeps_quotes=True),
        "docker_image": PropertyKey(_image),
        "network": PropertyKey(_network),
        "user_dev_workspace_path": PropertyKey(_text),
        "user_dev_workspace_exclude_list": PropertyKey(_list, lines=True, may_be_empty=True),
        "user_dev_workspace_exclude_defaults": PropertyKey(read_boolean),
        "user_shell_script": PropertyKey(_text),
        "user_shell_args": PropertyKey(_arguments, lines=True, may_be_empty=True),
        "command": PropertyKey(_command, lines=True),
        "queue": PropertyKey(_queue),
        "priority": PropertyKey(read_count),
        "project": PropertyKey(_text),
        "tags": PropertyKey(_list, lines=True),
        "max_runtime": PropertyKey(_max_runtime_s),
        "kill_grace": PropertyKey(read_duration_s),
        "output_patience": PropertyKey(read_duration_s),
        "service_patience": PropertyKey(read_duration_s),
        "on_container_failure": PropertyKey(partial(read_choice, allowed=("stop", "continue"))),
        "env_file": PropertyKey(_text),
        "pass_env": PropertyKey(_variables, lines=True),
        "framework": PropertyKey(
            partial(read_choice, allowed=("none", "tensorflow", "pytorch", "torchrun", "mpi", "dmlc"))
        ),
        "gang": PropertyKey(partial(read_choice, allowed=("all", "role", "none"))),
        "success": PropertyKey(_success, lines=True),
        "gang_window": PropertyKey(read_duration_s),
        "failure_settle": PropertyKey(read_duration_s),
        "keep_failed": PropertyKey(read_duration_s),
        "hang_timeout": PropertyKey(read_duration_s),
        "hang_idle": PropertyKey(read_boolean),
        "idle_guard": PropertyKey(read_idle_guard),
        "notify": PropertyKey(read_events, lines=True),
        "after": PropertyKey(read_after, lines=True, may_be_empty=True),
        "hold": PropertyKey(read_boolean),
        "tensorboard": PropertyKey(_tensorboard),
        "requeue": PropertyKey(read_boolean),
        "view_acl": PropertyKey(read_access_list),
        "modify_acl": PropertyKey(read_access_list),
    },
    "resources": {
        "containers": PropertyKey(read_containers),
        **_OF_A_CONTAINER,
        "retries": PropertyKey(partial(read_count, maximum=MAX_RETRIES)),
        "prefer_nodes": _UNBUILT,
        "gpu_model": _UNBUILT,
        "gpu_memory": _UNBUILT,
        "placement": PropertyKey(partial(read_choice, allowed=("pack", "spread"))),
    },
    "role": {
        **_OF_ONE_ROLE,
        "retries": PropertyKey(partial(read_count, maximum=MAX_RETRIES)),
        "on_failure": PropertyKey(partial(read_choice, allowed=("restart", "restart_gang", "fail"))),
        "depends_on": PropertyKey(_dependencies, lines=True),
        "service": PropertyKey(read_boolean),
        "ports": PropertyKey(partial(read_count, maximum=MAX_PORTS)),
    },
    "service": {
        **_OF_ONE_ROLE,
        "depends_on": PropertyKey(_dependencies, lines=True),
        "ports": PropertyKey(partial(read_count, maximum=MAX_PORTS)),
        "ready": PropertyKey(_ready),
        "max_idle": PropertyKey(_max_runtime_s),
    },
    "from_hdfs": {
        "hdfs": PropertyKey(_locations, required=True, lines=True),
        "input_path": PropertyKey(_text, required=True),
        "archive": PropertyKey(partial(read_choice, allowed=("keep", "unpack"))),
        "mode": PropertyKey(partial(read_choice, allowed=("copy", "list", "feed", "mount"))),
        "shard": PropertyKey(read_boolean),
        "optional": PropertyKey(read_boolean),
        "feed.format": PropertyKey(partial(read_choice, allowed=[one.value for one in FeedFormat])),
        "feed.epochs": PropertyKey(partial(read_count, minimum=1, maximum=MAX_EPOCHS)),
        "feed.shuffle": PropertyKey(partial(read_count, maximum=MAX_SEED)),
        "feed.buffer": PropertyKey(_feed_buffer_bytes),
    },
    "to_hdfs": {
        "output_path": PropertyKey(_text, required=True),
        "hdfs": PropertyKey(_text, required=True),
        "overwrite": PropertyKey(read_boolean),
        "on_failure": PropertyKey(partial(read_choice, allowed=("keep", "drop"))),
        "keep_previous": PropertyKey(partial(read_count, maximum=MAX_PREVIOUS)),
        "sync": PropertyKey(partial(read_duration_s, minimum_s=MIN_SYNC_S)),
    },
    "checkpoint": {
        "path": PropertyKey(_text, required=True),
        "hdfs": PropertyKey(_text),
        "every": PropertyKey(partial(read_duration_s, minimum_s=MIN_CHECKPOINT_EVERY_S)),
        "keep": PropertyKey(partial(read_count, minimum=1, maximum=MAX_CHECKPOINTS)),
        "role": PropertyKey(_checkpoint_role),
    },
    "sweep": {
        "list": PropertyKey(_text),
        "sampler": PropertyKey(read_sampler),
        "pruner": PropertyKey(partial(read_choice, allowed=OPTUNA_PRUNERS)),
        "trials": PropertyKey(partial(read_count, minimum=1, maximum=MAX_TRIALS)),
        "seed": PropertyKey(partial(read_count, maximum=MAX_SEED)),
        "metric": PropertyKey(read_metric),
        "goal": PropertyKey(partial(read_choice, allowed=[one.value for one in Goal])),
        "asha": PropertyKey(read_asha),
        "concurrency": PropertyKey(partial(read_count, minimum=1, maximum=MAX_TRIALS)),
        "trials_per_container": PropertyKey(partial(read_count, minimum=1, maximum=MAX_TRIALS_PER_CONTAINER)),
        "trial_time": PropertyKey(_max_runtime_s),
        "retries": PropertyKey(partial(read_count, maximum=MAX_TRIAL_RETRIES)),
        "max_failures": PropertyKey(partial(read_count, maximum=MAX_TRIALS)),
        "commit": PropertyKey(partial(read_choice, allowed=[one.value for one in SweepCommit])),
    },
}

SYNONYMS = {
    other: key
    for key, others in (
        ("application.notify", "notifications mail email mailtype onfailure alert"),
        ("application.appname", "name jobname taskname title"),
        ("application.docker_image", "image container containerimage docker imagename"),
        (
            "application.user_dev_workspace_path",
            "workspace workdir workingdir workingdirectory code sourcedir cwd chdir",
        ),
        ("application.user_dev_workspace_exclude_list", "exclude excludes ignore excludelist"),
        ("application.user_shell_script", "script entrypoint main program run"),
        ("application.command", "cmd"),
        ("application.user_shell_args", "args arguments parameters params argv"),
        ("application.max_runtime", "timeout timelimit walltime maxtime runtime maxduration deadline time"),
        ("application.kill_grace", "grace graceperiod terminationgraceperiod killtimeout"),
        ("application.env.NAME", "env environment envvars variables"),
        ("application.cache.NAME", "cache caches cachedir volume volumes"),
        ("application.tags", "labels tag"),
        ("application.after", "dependency dependson depends waitfor"),
        ("application.hold", "held begin"),
        ("application.username", "user owner"),
        ("application.tensorboard", "board tb logdir"),
        ("application.kind", "type apptype jobtype applicationtype"),
        ("application.view_acl", "acl viewers readers viewacls mapreducejobaclviewjob"),
        ("application.modify_acl", "modifiers admins modifyacls mapreducejobaclmodifyjob"),
        ("application.link.NAME", "link links quicklink quicklinks url urls"),
        ("service.ready", "readiness readinessprobe healthcheck health probe"),
        ("service.max_idle", "idletimeout maxidletime idle culltimeout shutdownafter"),
        ("service.ports", "port"),
        ("resources.containers", "instances replicas workers tasks ntasks numcontainers count parallelism"),
        ("resources.memory", "mem ram memorymb memorymib memorylimit"),
        ("resources.vcores", "cpu cpus cores vcpus vcpu ncpus numcpus threads"),
        ("resources.gcores", "gpu gpus ngpus numgpus gres devices"),
        ("resources.retries", "retry maxretries attempts maxattempts restarts maxrestarts backofflimit"),
        ("resources.exclude_nodes", "excludehosts excludednodes"),
        ("resources.nodes", "node hosts host nodelist"),
        ("from_hdfs.hdfs", "source sources src from"),
        ("from_hdfs.input_path", "destination dest"),
        ("from_hdfs.archive", "unpack extract"),
        ("from_hdfs.mode", "stream streaming"),
        ("from_hdfs.feed.epochs", "epoch numepochs repeat"),
        ("from_hdfs.feed.shuffle", "shuffleseed feedseed"),
        ("from_hdfs.feed.buffer", "buffersize prefetch"),
        ("to_hdfs.hdfs", "target to"),
        ("to_hdfs.overwrite", "replace force"),
        ("checkpoint.every", "interval checkpointinterval"),
        ("sweep.trials", "numsamples ntrials samples maxtrials"),
        ("sweep.goal", "direction objective maximize minimize"),
        ("sweep.concurrency", "maxconcurrent maxconcurrenttrials paralleltrials njobs"),
        ("sweep.trial_time", "trialtimeout"),
        ("sweep.asha", "earlystopping scheduler rungs graceperiodsteps reductionfactor"),
    )
    for other in others.split()
}
"""Names of keys in other programs: folded name -> section and key."""

ROLE_KEYS = {"containers": "instances", "user_shell_script": "script", "user_shell_args": "args"}
"""Name of a key of another section -> its name in a role."""

SECTION_SYNONYMS = {"app": "application", "job": "application", "input": "from_hdfs", "inputs": "from_hdfs"} | {
    "output": "to_hdfs",
    "outputs": "to_hdfs",
    "checkpoints": "checkpoint",
    "sweeps": "sweep",
    "search": "sweep",
    "tune": "sweep",
    "hyperparameters": "sweep",
    "services": "service",
    "server": "service",
    "serve": "service",
}

NAMED = ("role", "service", "from_hdfs", "to_hdfs")
"""Sections that may appear several times, each with another NAME: ``[from_hdfs train]``."""
OF_ROLES = ("role", "service")
"""Sections that describe a role; they always have a NAME."""

REQUIRED_SECTIONS = ("application",)
ENV_KEY = PropertyKey(check_variable, lines=True, may_be_empty=True)
CACHE_KEY = PropertyKey(_cache_path)
LINK_KEY = PropertyKey(_text)
GRID_KEY = PropertyKey(read_values, lines=True, keeps_quotes=True)
RANDOM_KEY = PropertyKey(read_distribution, lines=True, keeps_quotes=True)


def key_of(section: str, name: str) -> PropertyKey | None:
    """Return the key ``name`` of a section (``from_hdfs train``); None: there is no such key."""
    kind = section.partition(" ")[0]
    if kind in ("application", *OF_ROLES) and name.startswith(ENV):
        return ENV_KEY
    if kind == "application" and name.startswith((CACHE, LINK)):
        return CACHE_KEY if name.startswith(CACHE) else LINK_KEY
    if kind == "sweep" and name.startswith((GRID, RANDOM)):
        return GRID_KEY if name.startswith(GRID) else RANDOM_KEY
    return SECTIONS[kind].get(name)


def names_of(section: str) -> list[str]:
    """Return the keys that a section may have, without those that are not implemented."""
    kind = section.partition(" ")[0]
    names = [name for name, key in SECTIONS[kind].items() if key is not _UNBUILT]
    if kind in ("application", *OF_ROLES):
        names.append(f"{ENV}NAME")
    if kind == "sweep":
        names += [f"{GRID}NAME", f"{RANDOM}NAME"]
    return [*names, f"{CACHE}NAME", f"{LINK}NAME"] if kind == "application" else names


def nearest_section(kind: str) -> str:
    """Return a hint for an unknown section: the right section, or all sections."""
    if (right := SECTION_SYNONYMS.get(kind.lower())) is not None:
        return f"use [{right}]"
    return nearest(kind, SECTIONS)


def nearest_key(section: str, name: str) -> str:
    """Return a hint for an unknown key: the right key in this or another section, or all keys of the section.

    Args:
        section: the section with the unknown key (``from_hdfs train``); empty: none.
    """
    kind = section.partition(" ")[0]
    if f"{name.lower()}s" in SECTIONS.get(kind, {}):
        return f"the nearest is {name.lower()}s"  # for example container in [resources], else a synonym for the image
    if kind in OF_ROLES and name.lower() in ROLE_KEYS:
        return f"use {ROLE_KEYS[name.lower()]}"
    folded = re.sub(r"[\s_.-]", "", name[:100].lower())
    if (right := SYNONYMS.get(folded)) is not None:
        of, _, key = right.partition(".")
        if kind in OF_ROLES and (own := ROLE_KEYS.get(key, key)) in SECTIONS[kind]:
            return f"use {own}"
        if not kind:
            return f"use {right}"
        return f"use {key}" if of == kind else f"use {key} in [{of}]"
    if (right := SECTION_SYNONYMS.get(folded)) not in (None, kind):
        return f"use the section [{right}]"
    for other, keys in SECTIONS.items():
        if other != kind and name.lower() in keys:
            return f"use {name.lower()} in [{other}]" if kind else f"use {other}.{name.lower()}"
    return nearest(name, names_of(section)) if kind else "write SECTION.KEY=VALUE, such as resources.memory=4g"


def without_quotes(text: str) -> str:
    """Return ``text`` without the quotes around the whole of it, if there are any.

    The last character must close the first quote: ``'a b' 'c d'`` is unchanged.
    """
    if len(text) >= 2 and text[0] in "'\"" and text.find(text[0], 1) == len(text) - 1:
        return text[1:-1]
    return text


def read_value(key: PropertyKey, text: str) -> Any:
    """Parse the value of ``key`` from its text in the file.

    Raises:
        ValueError: the value is invalid; the message is the problem.
    """
    if key is _UNBUILT:
        raise ValueError(NOT_BUILT)
    if not key.lines and "\n" in text:
        raise ValueError("continues in the next line, which begins with a blank; this key takes one line")
    if key.read not in (_arguments, _command) and text[:1] in ("'", '"') and text.find(text[0], 1) < 0:
        raise ValueError(f"the quote {text[0]} before {shown(text[1:21])} does not close")
    bare = without_quotes(text)
    if not bare and not key.may_be_empty:
        raise ValueError("is empty")
    return key.read(text if key.keeps_quotes else bare)
