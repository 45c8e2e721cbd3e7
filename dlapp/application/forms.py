"""Forms of values in a properties file: how each is read from text, and from an object of Python.

A form checks one value alone; the rules on a whole application are in `dlapp.values.spec` and
`dlapp.application.problems`. Limits of numbers are stated beside the fields of the spec.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from dlapp.errors import SpecError
from dlapp.sweep.text_forms import read_values
from dlapp.system.text import (
    read_boolean,
    read_choice,
    read_count,
    read_duration_s,
    read_memory_mib,
    read_size_bytes,
    refuse_brackets,
    shown,
)
from dlapp.values.image_name import parse_image_name
from dlapp.values.spec import (
    Dependency,
    QuickLink,
    Until,
    check_cache_path,
    check_env_name,
    check_gpu_kind,
    check_role_name,
    check_workdir,
    ready_problem,
)

MAX_ARGUMENT_BYTES = 131_071
"""Linux, MAX_ARG_STRLEN: maximum size of an argument or variable, 32 pages with its final NUL."""

REFERENCE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[^}]*\}?|\()|`", re.ASCII)
"""What a shell would replace: ``$NAME``, ``${NAME:-default}``, ``$(command)``, `` `command` ``."""
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
"""Variable that is the same as ``gpu_capabilities``, with the value checked alike."""
_GPU_MEMORY = re.compile(r"(\d{1,6})(?:\.(\d{1,3}))? ?([gm])b?", re.ASCII)
_LIST_SEPARATORS = re.compile(r"[,\n]")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,500}", re.ASCII)
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_LINK = re.compile(r"([^:/]*):(?:port([1-9][0-9]?)?|([0-9]{1,5}))(/.*)?", re.ASCII | re.DOTALL)


class Form(NamedTuple):
    """One form of values.

    Args:
        what: the kind of value, for the schema and messages: ``duration``.
        read: text, without the quotes around it -> value; raises ValueError with the problem, or SpecError.
        take: an object of Python that is not text -> value; raises TypeError with what it must be.
        unit: unit of a number: ``s``, ``MiB``, ``bytes``.
        allowed: all values, where the form is a choice.
        lines: the text may continue in further lines.
        splits: the text is split into arguments, in which quotes are more than a pair around the whole.
        takes_text: an object of Python may be the text of a file.
    """

    what: str
    read: Callable[[str], Any]
    take: Callable[[Any], Any]
    unit: str = ""
    allowed: tuple[str, ...] = ()
    lines: bool = False
    splits: bool = False
    takes_text: bool = True


# ---- from objects of Python ----


def _take_no_object(value: Any) -> Any:
    raise TypeError("text (str)")


def _take_path(value: Any) -> str:
    if not isinstance(value, os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise TypeError("text (str) or a path")
    return path


def _take_integer(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError("a whole number or text as in a properties file") from None


def _take_gcores(value: Any) -> int | None:
    return None if value is None else _take_integer(value)


def _take_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a number of seconds or text such as '1h30m'")
    return value


def _take_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    """Return the items of a list of texts or paths."""
    if isinstance(value, os.PathLike):
        return (_take_path(value),)
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise TypeError("text (str) or a list of texts")
    return tuple(one if isinstance(one, str) else _take_path(one) for one in value)


def _take_words(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list or not all(isinstance(one, str) for one in value):
        raise TypeError("a list of words (str)")
    return tuple(value)


def _take_values(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise TypeError("text (str) or a list of values")
    return tuple(str(one) for one in value)


def _joined(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: read(",".join(_texts(value)))


# ---- from text ----


def text(read: Callable[[str], Any] = str, what: str = "text") -> Form:
    """Return the form of a text, which ``read`` checks."""
    return Form(what, read, _take_no_object)


def value_of(read: Callable[[str], Any], what: str, *kinds: type) -> Form:
    """Return the form of a text that stands for an object, which Python may give itself."""

    def take(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(f"text (str){''.join(f' or {one.__name__}' for one in kinds)}")
        return value

    return Form(what, read, take)


def choice(*allowed: str) -> Form:
    """Return the form of one of some words."""
    return Form("choice", partial(read_choice, allowed=allowed), _take_no_object, allowed=allowed)


def member(of: type[Enum], *, without: Enum | None = None) -> Form:
    """Return the form of a member of an enumeration, by its value."""
    allowed = tuple(one.value for one in of if one is not without)
    return value_of(lambda text: of(read_choice(text, allowed)), "choice", of)._replace(allowed=allowed)


def listed(read: Callable[[str], Any] | None = None, what: str = "list") -> Form:
    """Return the form of a list, whose items are separated by commas or lines; ``read`` checks it."""
    return Form(what, read or split_list, _joined(read) if read else _texts, lines=True)


def split_list(text: str) -> tuple[str, ...]:
    """Return the items of a list, which are separated by commas or lines."""
    refuse_brackets(text)
    items = (item.strip(" \t") for item in _LIST_SEPARATORS.split(text))
    return tuple(item for item in items if item)


def _any_integer(text: str) -> int:
    return read_count(text, minimum=-(10**30), maximum=10**30)


def _gcores(text: str) -> int | None:
    """Parse a number of gcores; None: auto, which is 1 if the engine has GPUs."""
    if text == "auto":
        return None
    try:
        return read_count(text, 0)
    except ValueError as problem:
        raise ValueError(f"{problem} (or auto)") from None


def _gpu_kind(text: str) -> str:
    if text.isdecimal():
        raise ValueError(f"{shown(text)} is not a kind of GPUs (whole, mig, mig:PROFILE); their number is gcores")
    check_gpu_kind("", kind := text.lower())
    return kind


def _gpu_memory_mb(text: str) -> int:
    """Parse the memory of a GPU [MB, 10^6 bytes], rounded up: ``40g``, ``24GB``, ``16000m``."""
    found = _GPU_MEMORY.fullmatch(text.lower())
    if not found:
        raise ValueError(f"{shown(text)} is not the memory of a GPU: a number with g or m (40g)")
    whole, thousandths = int(found[1]), int((found[2] or "").ljust(3, "0"))
    return 1000 * whole + thousandths if found[3] == "g" else whole + (thousandths > 0)


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
    from dlapp.application.shell_words import split_words  # a file may have no arguments

    words = split_words(text)
    for place, word in enumerate(words, start=1):
        if (size := len(word.encode(errors="surrogateescape"))) >= MAX_ARGUMENT_BYTES:
            raise ValueError(f"argument {place} has {size} bytes, the maximum is {MAX_ARGUMENT_BYTES - 1}")
    return words


def _command(text: str) -> tuple[str, ...]:
    return _checked_command(_arguments(text))


def _checked_command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0]:
        raise ValueError("names no program")
    if words[0].startswith("-"):
        raise ValueError(f"begins with {shown(words[0])}, which is an option and no program")
    return words


def _dependencies(text: str) -> tuple[Dependency, ...]:
    found = []
    for one in split_list(text):
        name, _, until = one.partition(":")
        if until not in ("", *(each.value for each in Until)) or one.endswith(":"):
            raise ValueError(f"{shown(one)} is neither a role nor ROLE:ready nor ROLE:done")
        check_role_name("", name)
        found.append(Dependency(name, Until(until) if until else Until.STARTED))
    return tuple(dict.fromkeys(found))


def _success(text: str) -> tuple[str, ...]:
    """Return the names of roles; empty: all."""
    names = split_list(text)
    if names == ("all",):
        return ()
    if "all" in names:
        raise ValueError("has all, and names of roles beside it")
    return tuple(dict.fromkeys(names))


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


def _capabilities(text: str) -> tuple[str, ...]:
    from dlapp.values.program.driver_capabilities import read_capabilities  # few files name any

    return read_capabilities(text)


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
    if problem := ready_problem(text):
        raise ValueError(problem)
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


def _workdir(text: str) -> str:
    check_workdir("", text)
    return text


def _cache_path(text: str) -> str:
    check_cache_path("", text)
    return text


def _role_name(text: str) -> str:
    check_role_name("", text)
    return text


def check_variable(text: str, name: str = "") -> str:
    """Return the value of a variable unchanged.

    Args:
        text: the value.
        name: the name of the variable, if the user wrote its value.

    Raises:
        ValueError: the kernel would not pass it to a process, with it no program would be found, or it names an unknown
            driver capability.
    """
    if name == "PATH" and REFERENCE.search(text):
        raise ValueError(
            "has $NAME in it, which is not replaced, so no program would be found; write all directories, or set PATH "
            "in a start script"
        )
    if name == DRIVER_CAPABILITIES:
        try:
            _capabilities(text)
        except ValueError:  # values are not shown
            raise ValueError("names a driver capability that does not exist; docs/docker.md has all of them") from None
    if "\0" in text:
        raise ValueError("has a NUL in it")
    if (size := len(text.encode(errors="surrogateescape"))) > MAX_ARGUMENT_BYTES - 1000:
        raise ValueError(f"has {size} bytes, the maximum is {MAX_ARGUMENT_BYTES - 1000}")
    return text


TEXT = text()
PATH = Form("path", str, _take_path)
LOCATION = Form("location", str, _take_path)
LOCATIONS = Form("locations", lambda text: tuple(filter(None, text.split("\n"))), _texts, lines=True)
USERNAME = text(_username, "user name")
IMAGE = text(_image, "image name")
NETWORK = text(_network, "network")
QUEUE = text(_queue, "queue")
LABEL = text(_label, "label")
ROLE_NAME = text(_role_name, "role")
READY = text(_ready, "port, report or http:/PATH")
WORKDIR = Form("absolute path", _workdir, _take_path)
CACHE_PATH = Form("absolute path", _cache_path, _take_path)
VARIABLE = Form("text", check_variable, _take_no_object, lines=True)
LINK_TARGET = text(what="ROLE:PORT/path")
LIST = listed()
NODES = listed(_nodes)
VARIABLES = listed(_variables)
CAPABILITIES = listed(_capabilities, "driver capabilities")
VALUES = Form("values", read_values, _take_values, lines=True)
DEPENDENCIES = listed(_dependencies)
SUCCESS = listed(_success)
COUNT = Form("count", _any_integer, _take_integer)
GCORES = Form("count or auto", _gcores, _take_gcores)
GPU_KIND = text(_gpu_kind, "whole, mig or mig:PROFILE")
GPU_MEMORY = Form("memory", _gpu_memory_mb, _take_integer, unit="MB")
MEMORY = Form("memory", read_memory_mib, _take_integer, unit="MiB")
SIZE = Form("size", read_size_bytes, _take_integer, unit="bytes")
DURATION = Form("duration", read_duration_s, _take_seconds, unit="s")
BOOLEAN = Form("boolean", read_boolean, _take_boolean, takes_text=False)
ARGUMENTS = Form("words", _arguments, _take_words, lines=True, splits=True)
COMMAND = Form("words", _command, lambda words: _checked_command(_take_words(words)), lines=True, splits=True)
TENSORBOARD = Form("boolean or path", _tensorboard, lambda one: one if isinstance(one, bool) else _take_path(one))
