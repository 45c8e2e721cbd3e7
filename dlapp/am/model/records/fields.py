"""Reading and writing of the fields of a value in a journal."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, Self

from dlapp.value import MISSING, Value, fields
from dlapp.values.ids import ContainerId
from dlapp.values.serialization import from_json, to_json

_KEYS: Mapping[str, str] = {"holder": "in", "try_number": "try"}
"""Keys in JSON of the fields whose keys are keywords of Python."""
_MAX_NUMBER = 1 << 63
"""As in `dlapp.values.serialization`."""
_PLAIN = frozenset({str, int, bool, float})
_NUMBERS = frozenset({int, float})


class JournalFields(Value):
    """Value whose fields are those of a JSON object, which omits a field with its default value.

    So the object of an older version is read if it lacks a field that has a default. Fields that a newer version added
    are ignored.
    """

    def write_fields(self, data: dict[str, Any]) -> None:
        """Add the JSON form of the fields to ``data``, without those that have their default value."""
        for name, key, default in _written_fields(type(self)):
            value = getattr(self, name)
            if default is MISSING or value != default:
                kind = type(value)
                data[key] = value if kind in _PLAIN else str(value) if kind is ContainerId else to_json(value)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the value of a JSON object.

        Raises:
            LookupError: a field is missing.
            UsageError, TypeError, ValueError, OverflowError: a field has another type.
        """
        new = cls.__new__(cls)  # as `dlapp.value.replace` does: an attempt reads 100,000 records while tasks wait
        for assign, key, kind, default in _read_fields(cls):
            value = data.get(key, default)
            if value is MISSING:
                raise LookupError(key)
            if type(value) is not kind or kind in _NUMBERS:
                value = value if value is default else _read_field(kind, value, key)
            assign(new, value)
        return new


def _read_field(kind: Any, value: Any, key: str) -> Any:
    """Return the value of a field; the usual kinds without the way through `from_json`, which is five times slower."""
    if kind is ContainerId:
        return _container_id(value)
    if type(value) is kind is int and -_MAX_NUMBER <= value <= _MAX_NUMBER:
        return value
    return from_json(kind, value, path=key)


@functools.lru_cache(maxsize=2048)  # about 0.6 MB; the records of a container are mostly near each other
def _container_id(text: str) -> ContainerId:
    return ContainerId.from_text(text)


@functools.cache
def _written_fields(cls: type[JournalFields]) -> tuple[tuple[str, str, Any], ...]:
    """Return the name, the key in JSON and the default of each field."""
    return tuple((name, _KEYS.get(name, name), one.default) for name, one in fields(cls).items())


@functools.cache
def _read_fields(cls: type[JournalFields]) -> tuple[tuple[Callable[[Any, Any], None], str, Any, Any], ...]:
    """Return the setter, the key in JSON, the type and the default of each field."""
    kinds, setters = typing.get_type_hints(cls), cls.record_setters
    return tuple((setters[name], key, kinds[name], default) for name, key, default in _written_fields(cls))
