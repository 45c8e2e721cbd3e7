"""Base classes with named fields that import fast, and a base class for ``with`` blocks.

`Value` corresponds to a frozen dataclass, `Record` to a mutable one. Dataclasses are expensive to import: the module
loads `inspect` with parts of Python's compiler, and each class compiles six functions. In a task, an ApplicationMaster
and dlapp-launcher that was 30 to 50 % of the CPU time of all imports. The classes here share their methods:

    class Output(Value, kw_only=True):
        path: str
        size_bytes: int = 0

    output = replace(Output(path="a"), size_bytes=5)

Type checkers treat the fields like a dataclass's (PEP 681). Each field is a slot. ``__post_init__`` is called when all
fields are set.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, dataclass_transform

V = TypeVar("V", bound="Value")
MISSING = object()
"""The default of a field without one."""


class Field:
    """Declaration of one field of a class; the arguments are those of `field`."""

    __slots__ = ("compare", "default", "default_factory", "repr")

    def __init__(
        self,
        default: Any = MISSING,
        default_factory: Callable[[], Any] | None = None,
        repr: bool = True,
        compare: bool = True,
    ) -> None:
        self.default, self.default_factory, self.repr, self.compare = default, default_factory, repr, compare

    @property
    def required(self) -> bool:
        """Return True if the field has no default."""
        return self.default is MISSING and self.default_factory is None


def field(
    *, default: Any = MISSING, default_factory: Callable[[], Any] | None = None, repr: bool = True, compare: bool = True
) -> Any:
    """Return a `Field`, typed so that it may stand for the default in a class.

    Args:
        default: the value if none is given, or `MISSING`.
        default_factory: called for the value if none is given.
        repr: include it in the text form; False for secrets.
        compare: include it in equality and hash.
    """
    return Field(default, default_factory, repr, compare)


class _RecordType(type):
    """Metaclass that makes the annotations of a class its fields."""

    record_fields: dict[str, Field]
    record_setters: dict[str, Callable[[Any, Any], None]]
    record_steps: tuple[tuple[str, Callable[[Any, Any], None]], ...]
    record_defaults: dict[str, Any]
    record_key: Callable[[Any], Any]

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, kw_only: bool = False
    ) -> _RecordType:
        base = bases[0] if bases else None
        own, defaults = {}, {**getattr(base, "record_defaults", {})}
        for one in namespace.get("__annotations__", ()):
            default = namespace.pop(one, MISSING)
            own[one] = given = default if isinstance(default, Field) else Field(default)
            defaults[one] = given.default
        fields = {**getattr(base, "record_fields", {}), **own}
        namespace["__slots__"] = (*namespace.get("__slots__", ()), *own)
        namespace["__match_args__"] = () if kw_only else tuple(fields)
        cls = super().__new__(mcls, name, bases, namespace)
        cls.record_fields = fields
        # A slot's own setter also works if assignment is forbidden.
        cls.record_setters = {one: getattr(cls, one).__set__ for one in fields}
        cls.record_steps = tuple(
            cls.record_setters.items()
        )  # a list of all hosts makes 200,000 values: 2 % of its time
        # Without those that are made for each instance.
        cls.record_defaults = {one: default for one, default in defaults.items() if default is not MISSING}
        compared = [one for one in fields if fields[one].compare]
        cls.record_key = staticmethod(attrgetter(*compared) if compared else type)
        return cls


class _Fields(metaclass=_RecordType):
    """Common part of `Value` and `Record`."""

    def __init__(self, /, *args: Any, **values: Any) -> None:
        cls = type(self)
        steps = cls.record_steps
        if not values and len(args) == len(steps) == len(cls.__match_args__):  # type: ignore[attr-defined]
            for (_, assign), value in zip(steps, args, strict=True):  # half of the time of the general case
                assign(self, value)
            self.__post_init__()
            return
        given = cls.record_defaults | values
        if args:
            names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
            if len(args) > len(names) or not values.keys().isdisjoint(names[: len(args)]):
                raise TypeError(f"{cls.__name__} takes {len(names)} positional values, each field once")
            given.update(zip(names, args, strict=False))
        if len(given) != len(steps):
            cls._complete(given)
        try:
            for name, assign in steps:
                assign(self, given[name])
        except KeyError:  # as many as there are fields, but others; to compare the names first takes a tenth more
            cls._complete(given)
            raise
        self.__post_init__()

    @classmethod
    def _complete(cls, given: dict[str, Any]) -> None:
        """Add the values that are made for each instance. Raises TypeError for one that is missing or unknown."""
        for name, one in cls.record_fields.items():
            if name not in given:
                if one.default_factory is None:
                    raise TypeError(f"{cls.__name__} needs {name}")
                given[name] = one.default_factory()
        for name in given.keys() - cls.record_fields.keys():
            raise TypeError(f"{cls.__name__} has no field {name}")

    def __post_init__(self) -> None:
        """Check the fields."""

    def __repr__(self) -> str:
        fields = type(self).record_fields
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields if fields[name].repr)
        return f"{type(self).__qualname__}({shown})"


@dataclass_transform(field_specifiers=(field,))
class Record(_Fields):
    """Class of named fields that can be assigned. Instances are equal only to themselves."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(_Fields):
    """Class of immutable named fields. Instances with equal fields are equal."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __eq__(self, other: object) -> bool:
        cls = type(self)
        if type(other) is not cls:
            return NotImplemented
        return bool(cls.record_key(self) == cls.record_key(other))

    def __hash__(self) -> int:
        return hash(type(self).record_key(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (type(self), {name: getattr(self, name) for name in type(self).record_fields})


def _make(cls: type[V], values: Mapping[str, Any]) -> V:
    """Return a value from its class and fields; called by the module `pickle`."""
    return cls(**values)


def replace(value: V, /, **changes: Any) -> V:
    """Return ``value`` with some of its fields changed."""
    cls = type(value)
    new, setters = cls.__new__(cls), cls.record_setters
    if unknown := changes.keys() - setters.keys():
        raise TypeError(f"{cls.__name__} has no field {min(unknown)}")
    for name, assign in setters.items():
        assign(new, changes[name] if name in changes else getattr(value, name))
    new.__post_init__()
    return new


def fields(cls: type[_Fields]) -> Mapping[str, Field]:
    """Return the fields of a class by name, in their order."""
    return cls.record_fields


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleType(type):
        def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            names = namespace.get("__annotations__", {})
            defaults = [namespace.pop(one) for one in names if one in namespace]
            made = namedtuple(name, names, defaults=defaults, module=namespace["__module__"])
            for key, value in namespace.items():
                if key != "__module__":
                    setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_NamedTupleType, "NamedTuple", (), {})
    """Base like `typing.NamedTuple`, which compiles the annotation of each field: half of the time of a class.

    For modules that every task loads.
    """


class Closeable:
    """Context manager that calls `close` at its end."""

    __slots__ = ()

    def close(self) -> None:
        """Release the object's resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
