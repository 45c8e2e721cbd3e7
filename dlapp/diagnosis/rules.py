"""Rules for causes of failures: those of dlapp, ``rules.yaml``, and those of the node's operator."""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import Any

from dlapp.errors import ConfigError
from dlapp.system.yaml_keys import plain_yaml
from dlapp.value import Value
from dlapp.values.messages import Fault

OPERATORS_FILE = "/etc/dlapp/diagnosis.yaml"
"""Rules of the operator of a node, which come before those of dlapp. It belongs to root, like ``node.yaml``."""
_BUILT_IN_RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rules.yaml")
ADDRESS_IN_USE = "address_in_use"
"""Name of the rule for a program that may not listen on its address, because another one does."""
GPU_MEMORY = "gpu_memory"
"""Name of the rule for a program that has used up the memory of a GPU."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_MAX_TEXT = 500


class Where(Enum):
    """Text that a rule is matched against."""

    LOG = "log"
    """The end of the program's stderr and stdout."""
    MESSAGE = "message"
    """Text of dlapp itself on the end."""
    TRACEBACK = "traceback"
    """The line of a Python exception that no other rule matches."""
    EXIT = "exit"
    """The program's exit code or signal alone."""


class Act(Enum):
    """Action of a rule, in addition to naming the cause."""

    NONE = ""
    RETRY = "retry"
    """The index is retried as after a failure of the node, which does not count against ``retries``."""
    NO_RETRY = "no_retry"
    """The index is not retried."""
    AVOID_NODE = "avoid_node"
    """The index is retried like with RETRY, on another node if there is one."""


class Rule(Value, kw_only=True):
    """One rule.

    Args:
        cause: one line for the user; ``{group}`` is a named group of ``line``.
        fault: USER, NODE, SERVICE or DATA.
        contains: texts, one of which must be in the line.
        line: what such a line must match as well; None: nothing.
        exit_code, signal: of the program, where ``where`` is EXIT; 0 with MESSAGE is for programs that did not fail.
        needs_gpus: whether it is for containers that hold GPUs only.
        needs_exclusive: whether it is only for those that hold a GPU in compute mode exclusive.
        is_consequence: whether it follows from the failure of another process.
    """

    name: str
    cause: str
    fault: Fault
    next_step: str
    where: Where = Where.LOG
    contains: tuple[bytes, ...] = ()
    line: re.Pattern[str] | None = None
    exit_code: int | None = None
    signal: int | None = None
    act: Act = Act.NONE
    is_consequence: bool = False
    needs_gpus: bool = False
    needs_exclusive: bool = False


_BOOLEANS = {"true": True, "false": False}
_KEYS = frozenset(
    (
        *("rule", "cause", "fault", "where", "contains", "line", "exit_code", "signal", "next_step", "act"),
        *("consequence", "gpus", "exclusive"),
    )
)
_FAULTS = {one.value: one for one in (Fault.USER, Fault.NODE, Fault.SERVICE, Fault.DATA)}


def load_rules(operators_file: str = OPERATORS_FILE, *, owner: int = 0) -> tuple[Rule, ...]:
    """Return the rules of the operator, if any, followed by those of dlapp.

    Args:
        operators_file: path of the operator's.
        owner: user id that it must belong to.

    Raises:
        ConfigError: a file is invalid; the message has all its errors.
    """
    from dlapp.node_policy import read_operators_file

    data = read_operators_file(operators_file, owner=owner)
    built_in = __loader__.get_data(_BUILT_IN_RULES)  # type: ignore[name-defined]  # dlapp may run from a zip
    return (*(read_rules(data, operators_file) if data is not None else ()), *read_rules(built_in, "rules.yaml"))


def read_rules(data: bytes, path: str) -> tuple[Rule, ...]:
    """Read a file of rules.

    Args:
        data: its content.
        path: its path, for messages.

    Raises:
        ConfigError: it is invalid; the message has all its errors.
    """
    try:
        found = plain_yaml(data)
    except ValueError as error:
        raise ConfigError(f"{path} {error}") from error
    if not isinstance(found, list):
        raise ConfigError(f"{path} must be a list of rules")
    faults: list[str] = []
    rules: dict[str, Rule] = {}
    for number, one in enumerate(found, 1):
        try:
            rule = _read_rule(one)
            if rule.name in rules:
                raise ValueError(f"rule {rule.name}: appears twice")
            rules[rule.name] = rule
        except ValueError as error:
            faults.append(f"{path}, rule {number}: {error}")
    if faults:
        raise ConfigError("\n".join(faults))
    return tuple(rules.values())


def _read_rule(found: Any) -> Rule:
    if not isinstance(found, dict):
        raise ValueError("must have keys")
    if unknown := sorted(set(map(str, found)) - _KEYS):
        raise ValueError(f"{unknown[0]}: is not known, keys are {', '.join(sorted(_KEYS))}")
    name = _text(found, "rule")
    if not _NAME.fullmatch(name):
        raise ValueError(f"rule: {name!r} is no name of lower-case letters, digits and underscores")
    where = _choice(found, "where", {one.value: one for one in Where}, Where.LOG)
    contains = found.get("contains", ())
    if not isinstance(contains, (list, tuple)) or not all(isinstance(one, str) and one for one in contains):
        raise ValueError("contains: must be a list of texts")
    if (where in (Where.LOG, Where.MESSAGE)) != bool(contains):
        raise ValueError("contains: is needed for where: log and message, and has no meaning elsewhere")
    try:
        line = re.compile(_text(found, "line")) if "line" in found else None
    except re.error as error:
        raise ValueError(f"line: is no regular expression: {error}") from error
    cause, next_step = _text(found, "cause"), _text(found, "next_step")
    groups = dict.fromkeys(line.groupindex if line else (), "x")
    for key, text in (("cause", cause), ("next_step", next_step)):
        try:
            text.format_map(groups)
        except (LookupError, ValueError) as error:
            raise ValueError(f"{key}: has braces that are no named group of line") from error
    return Rule(
        name=name,
        cause=cause,
        fault=_choice(found, "fault", _FAULTS, None),
        next_step=next_step,
        where=where,
        contains=tuple(one.encode() for one in contains),
        line=line,
        exit_code=_number(found, "exit_code", 255, least=0 if where is Where.MESSAGE else 1),
        signal=_number(found, "signal", 64),
        act=_choice(found, "act", {one.value: one for one in Act if one.value}, Act.NONE),
        is_consequence=_choice(found, "consequence", _BOOLEANS, False),
        needs_gpus=_choice(found, "gpus", _BOOLEANS, False),
        needs_exclusive=_choice(found, "exclusive", _BOOLEANS, False),
    )


def _text(found: dict[str, Any], key: str) -> str:
    text = found.get(key)
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_TEXT:
        raise ValueError(f"{key}: must be a text of 1 to {_MAX_TEXT} characters")
    return text


def _choice(found: dict[str, Any], key: str, allowed: dict[str, Any], default: Any) -> Any:
    text = found.get(key)
    if text is None and default is not None:
        return default
    if not isinstance(text, str) or text not in allowed:
        raise ValueError(f"{key}: must be one of {', '.join(allowed)}")
    return allowed[text]


def _number(found: dict[str, Any], key: str, most: int, least: int = 1) -> int | None:
    text = found.get(key)
    if text is None:
        return None
    if not (
        isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 5 and least <= int(text) <= most
    ):
        raise ValueError(f"{key}: must be a number from {least} to {most}")
    return int(text)
