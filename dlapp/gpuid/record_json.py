"""Stored form of a host's record: JSON, whose unknown fields are kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import FORMAT, DeviceRecord, ForcedRelease, HostRecord, LeaseRecord, LedgerError, Quarantine
from dlapp.value import MISSING, Value, fields
from dlapp.values.serialization import to_json

V = TypeVar("V", bound=Value)
MAX_BYTES = 512 << 10
"""Size limit of a record: a ZooKeeper server accepts 1 MiB for a whole request (jute.maxbuffer)."""


def to_bytes(record: HostRecord) -> bytes:
    """Return the stored form of a record.

    Raises:
        LedgerError: this version may not write it, or it is longer than `MAX_BYTES`.
    """
    if record.least_writer > FORMAT:
        raise LedgerError(
            f"{record.host}: its record in the GPU ledger may be written by format {record.least_writer} or later, "
            f"this dlapp has {FORMAT}: update it"
        )
    whole: dict[str, Any] = {
        **record.unknown,
        "format": max(FORMAT, record.format),
        "least_writer": record.least_writer,
        "host": record.host,
        "machine": record.machine,
        "boot_id": record.boot_id,
        "seen_ms": record.seen_ms,
    }
    if record.full_name:
        whole["full_name"] = record.full_name
    if record.forgotten_ms:
        whole |= {"forgotten_ms": record.forgotten_ms, "forgotten_by": record.forgotten_by}
    if record.releases:
        whole["releases"] = [fields_to_json(one) for one in record.releases]
    leases = ",".join(map(_lease_text, record.leases))
    data = f'{_compact(whole)[:-1]},"leases":[{leases}]'.encode() + _end_of(record.devices)
    if len(data) > MAX_BYTES:
        raise LedgerError(f"{record.host}: its record in the GPU ledger has {len(data)} bytes, {MAX_BYTES} are most")
    return data


def from_bytes(data: bytes, host: str) -> HostRecord:
    """Read a record; an empty one is that of a host without devices.

    Raises:
        LedgerError: it is invalid; the message has where it is stored.
    """
    if not data:
        return HostRecord(host)
    kept, end = _last_end
    try:
        is_known = bool(kept) and data.endswith(end)
        whole = json.loads(data[: -len(end)] + b"}" if is_known else data)
        if not isinstance(whole, dict):
            raise ValueError("is not an object")
        whole["host"] = host
        for name in ("format", "least_writer"):
            whole.setdefault(name)
        devices = kept if is_known else tuple(map(_device_from_json, _list(whole, "devices")))
        leases = tuple(_value_from_json(LeaseRecord, "a lease", one) for one in _list(whole, "leases"))
        releases = tuple(_value_from_json(ForcedRelease, "a release", one) for one in _list(whole, "releases"))
        found = _known(HostRecord, whole)
        unknown = _unknown(whole, _NAMES[HostRecord], len(found))
        return HostRecord(devices=devices, leases=leases, releases=releases, **found, unknown=unknown)
    except (ValueError, TypeError, RecursionError) as error:
        raise LedgerError(f"{host}: its record in the GPU ledger cannot be read: {error}") from error


_last_end: tuple[tuple[DeviceRecord, ...], bytes] = (), b""
"""The last written devices and their JSON at the end of a record. The devices of a host rarely change, so repeated
writes of its record neither format nor parse this text again."""


def _end_of(devices: tuple[DeviceRecord, ...]) -> bytes:
    global _last_end
    if (last := _last_end)[0] is not devices or not devices:
        _last_end = last = devices, f',"devices":[{",".join(map(_device_text, devices))}]}}'.encode()
    return last[1]


_lease_texts: dict[int, tuple[LeaseRecord, str]] = {}
"""JSON of leases, by the identity of the record; the record itself is kept, so that its identity is not reused."""


def _lease_text(one: LeaseRecord) -> str:
    if (known := _lease_texts.get(id(one))) is not None:
        return known[1]
    if len(_lease_texts) >= _MAX_TEXTS:
        _lease_texts.clear()
    text = _compact(fields_to_json(one))
    _lease_texts[id(one)] = one, text
    return text


_MAX_TEXTS = 256


_TYPES: dict[str, type] = {"str": str, "int": int, "bool": bool, "tuple[str, ...]": list, "Mapping[str, Any]": dict}
"""JSON types of the fields that `_known` reads, by their declared types."""
_PLAIN: dict[type[Value], list[tuple[str, type, bool]]] = {
    kind: [(name, _TYPES[text], fields(kind)[name].required) for name, text in declared.items() if text in _TYPES]
    for kind in (HostRecord, DeviceRecord, Device, LeaseRecord, ForcedRelease, Quarantine)
    if (declared := kind.__annotations__)
}


def _known(kind: type[Value], whole: Mapping[str, Any], what: str = "it") -> dict[str, Any]:
    """Return the known fields of a value in ``whole``."""
    found: dict[str, Any] = {}
    for name, type_, is_required in _PLAIN[kind]:
        value = whole.get(name, MISSING)
        if type(value) is type_:
            found[name] = value if type_ is not list else _texts(name, value, what)
        elif value is None or (value is MISSING and is_required):
            raise ValueError(f"{what} has no {name}")
        elif value is not MISSING:
            raise ValueError(f"{name} is {value!r:.40}")
    return found


_NAMES = {kind: frozenset(name for name, _, _ in those) for kind, those in _PLAIN.items()}
_OF_A_DEVICE = _NAMES[Device] | _NAMES[DeviceRecord] | {"quarantine"}


def _unknown(whole: Mapping[str, Any], known: frozenset[str], count: int) -> dict[str, Any]:
    """Return the fields in ``whole`` that this version does not know; ``count`` of the others were found in it."""
    return {name: value for name, value in whole.items() if name not in known} if len(whole) != count else {}


def _texts(name: str, value: Any, what: str) -> tuple[str, ...]:
    for one in value:
        if type(one) is not str:
            raise ValueError(f"{name} of {what} are {value!r:.60}")
    return tuple(value)


def _list(whole: dict[str, Any], name: str) -> list[Any]:
    value = whole.pop(name, [])
    if type(value) is not list:
        raise ValueError(f"{name} is {value!r:.40}" if value is not None else f"it has no {name}")
    return value


def _value_from_json(kind: type[V], what: str, data: Any) -> V:
    if not isinstance(data, dict):
        raise ValueError(f"{what} is {data!r:.40}")
    found = _known(kind, data, what)
    return kind(**found, unknown=_unknown(data, _NAMES[kind], len(found)))


def fields_to_json(one: LeaseRecord | ForcedRelease | Quarantine) -> dict[str, Any]:
    """Return the fields of a value that are not empty, and its unknown fields; also for the machine's store."""
    said = {name: value for name, _, _ in _PLAIN[type(one)] if (value := getattr(one, name))}
    return {**one.unknown, **said}


def quarantine_from_json(data: Any) -> Quarantine:
    """Read a quarantine. Raises ValueError where it is none."""
    return _value_from_json(Quarantine, "a quarantine", data)


def health_to_json(one: DeviceRecord) -> dict[str, Any]:
    """Return the fields on the health of a device that are not empty; also for the machine's store."""
    counted = {name: value for name in HEALTH_TIMES if (value := getattr(one, name))}
    return counted if one.quarantine is None else {**counted, "quarantine": fields_to_json(one.quarantine)}


HEALTH_TIMES = ("failures", "failed_ms", "healed_ms")
"""Fields of a `DeviceRecord` with numbers on its health."""


def _device_text(one: DeviceRecord) -> str:
    text = _text_of(one.device)
    more: dict[str, Any] = dict(one.unknown)
    if not one.present:
        more["present"] = False
    more |= health_to_json(one)
    return f"{text[:-1]},{_compact(more)[1:]}" if more else text


@functools.lru_cache(maxsize=1024)
def _text_of(device: Device) -> str:
    return _compact(to_json(device))


_compact = json.JSONEncoder(separators=(",", ":")).encode


@functools.lru_cache(maxsize=64)
def _is_plain(names: tuple[str, ...], types: tuple[type, ...]) -> bool:
    """Return whether an object with these names and types is a device without anything else. Of a list of 10,000 hosts
    nearly all are, with the same names: to check each field of each takes half of the time."""
    wanted = {name: type_ for name, type_, _ in _PLAIN[Device]}
    required = {name for name, _, is_required in _PLAIN[Device] if is_required}
    return required.issubset(names) and all(wanted.get(name) is one for name, one in zip(names, types, strict=True))


def _device_from_json(data: Any) -> DeviceRecord:
    if not isinstance(data, dict):
        raise ValueError(f"a device is {data!r:.40}")
    if _is_plain(tuple(data), tuple(map(type, data.values()))):
        if (links := data.get("links")) is not None:
            data["links"] = _texts("links", links, "a device")
        return DeviceRecord(device=Device(**data), unknown={})
    device, found = _known(Device, data, "a device"), _known(DeviceRecord, data)
    if (quarantine := data.get("quarantine")) is not None:
        found["quarantine"] = quarantine_from_json(quarantine)
    unknown = _unknown(data, _OF_A_DEVICE, len(device) + len(found))
    return DeviceRecord(device=Device(**device), **found, unknown=unknown)
