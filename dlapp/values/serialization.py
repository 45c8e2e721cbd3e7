"""Conversion of values to JSON and back: a `Value` or named tuple is an object, a tuple an array, an id its text.

There are two modes for unknown fields. ``strict``, for text that a user wrote, refuses them. The other mode, for data
that another version of dlapp wrote, keeps them in the value's field ``unknown`` if it has one, and ignores them
otherwise. So formats that outlive a version can grow by added fields.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from dlapp.errors import SpecError
from dlapp.value import Value, fields
from dlapp.values.ids import ApplicationId, ContainerId

T = TypeVar("T")
_IDS = (ApplicationId, ContainerId)
UNKNOWN = "unknown"
_MAX_NUMBER = 1 << 63
"""Limit of numbers: no amount, time or id is larger, and larger numbers may not fit into a float or a date."""


def parse_json(data: bytes | str) -> Any:
    """Parse JSON from an untrusted source.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    import json

    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def to_json(value: Any) -> Any:
    """Return the form of a value that json.dumps accepts; the content of ``unknown`` returns to its original place."""
    if isinstance(value, _IDS):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Value):
        out: dict[str, Any] = {}
        for name in fields(type(value)):
            if name == UNKNOWN and _keeps_unknown(type(value)):
                out.update(getattr(value, UNKNOWN))
            else:
                out[name] = to_json(getattr(value, name))
        return out
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: to_json(getattr(value, name)) for name in value._fields}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any, *, strict: bool = False, path: str = "") -> T:
    """Return a value of ``cls`` from its JSON form.

    Args:
        cls: a `Value`, or another type that fields may have.
        data: the parsed JSON.
        strict: refuse unknown fields.
        path: path of ``data`` in a larger value, for messages.

    Raises:
        SpecError: a field is missing, has another type, or (with ``strict``) is unknown; the message has the field's
            path.
    """
    return typing.cast(T, _read(cls, data, strict, path))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns=cls.late_types() if hasattr(cls, "late_types") else None)


def _read(kind: Any, data: Any, strict: bool, path: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return data
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in typing.get_args(kind):
            return None
        (inner,) = [arm for arm in typing.get_args(kind) if arm is not type(None)]
        return _read(inner, data, strict, path)
    if origin is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(data, (list, tuple)):
            raise SpecError(path or "value", f"is {_kind_of(data)}, not an array")
        return tuple(_read(item, one, strict, f"{path}[{place}]") for place, one in enumerate(data))
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise SpecError(path or "value", f"is {_kind_of(data)}, not an object")
        item = typing.get_args(kind)[1]
        return {str(key): _read(item, one, strict, f"{path}.{key}") for key, one in data.items()}
    if kind in _IDS:
        return kind.from_text(_read(str, data, strict, path))
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            allowed = ", ".join(str(member.value) for member in kind)
            raise SpecError(path, f"is {data!r}, allowed are {allowed}") from None
    if isinstance(kind, type) and issubclass(kind, (Value, tuple)):
        return _read_object(kind, data, strict, path)
    if kind in (int, float) and isinstance(data, (int, float)) and not -_MAX_NUMBER <= data <= _MAX_NUMBER:
        raise SpecError(path or "value", "is not a valid number")  # nan and inf are none, too
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise SpecError(path or "value", f"is {_kind_of(data)}, not {kind.__name__}")
    return data


def _read_object(cls: Any, data: Any, strict: bool, path: str) -> Any:
    if not isinstance(data, dict):
        raise SpecError(path or cls.__name__, f"is {_kind_of(data)}, not an object")
    hints, values, left = _hints(cls), {}, dict(data)
    required = _required(cls)
    keeps_unknown = _keeps_unknown(cls)
    for name in required:
        if name == UNKNOWN and keeps_unknown:
            continue
        where = f"{path}.{name}" if path else name
        if name in left:
            values[name] = _read(hints[name], left.pop(name), strict, where)
        elif required[name]:
            raise SpecError(where, "is missing")
    if left and strict:
        raise SpecError(f"{path}.{min(left)}" if path else str(min(left)), "is not known")
    if keeps_unknown:
        values[UNKNOWN] = left
    return cls(**values)


@functools.cache
def _keeps_unknown(cls: Any) -> bool:
    """Return whether a class keeps unknown fields; in other classes ``unknown`` may be an ordinary field."""
    return issubclass(cls, Value) and UNKNOWN in fields(cls) and fields(cls)[UNKNOWN].default_factory is not None


@functools.cache
def _required(cls: Any) -> dict[str, bool]:
    """Return the names of the fields of a `Value` or named tuple, and whether each has no default."""
    if issubclass(cls, Value):
        return {name: one.required for name, one in fields(cls).items()}
    return {name: name not in cls._field_defaults for name in cls._fields}


def _kind_of(data: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(data), f"the number {data!r}" if isinstance(data, (int, float)) else type(data).__name__)
