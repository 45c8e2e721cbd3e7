"""A host's record as it is stored: JSON, in which what this version does not know is kept."""

from __future__ import annotations

import functools
import json
from typing import Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import FORMAT, DeviceRecord, HostRecord, LeaseRecord, LedgerError, Quarantine
from dlapp.serialization import from_json, to_json
from dlapp.value import fields

MOST_BYTES = 512 << 10
"""The longest record: a ZooKeeper server takes 1 MiB for a whole request (jute.maxbuffer)."""
_DEVICE_FIELDS = tuple(fields(Device))


def to_bytes(record: HostRecord) -> bytes:
    """The record as it is stored.

    Raises:
        LedgerError: this version may not write it, or it is longer than `MOST_BYTES`.
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
    if record.forgotten_ms:
        whole |= {"forgotten_ms": record.forgotten_ms, "forgotten_by": record.forgotten_by}
    leases = ",".join(map(_lease_text, record.leases))
    data = f'{_compact(whole)[:-1]},"leases":[{leases}]'.encode() + _end_of(record.devices)
    if len(data) > MOST_BYTES:
        raise LedgerError(f"{record.host}: its record in the GPU ledger has {len(data)} bytes, {MOST_BYTES} are most")
    return data


def from_bytes(data: bytes, host: str) -> HostRecord:
    """Read a record; an empty one is that of a host without devices.

    Raises:
        LedgerError: it is none; the message says where it lies.
    """
    if not data:
        return HostRecord(host)
    kept, end = _last_end
    try:
        is_known = bool(kept) and data.endswith(end)
        whole = json.loads(data[: -len(end)] + b"}" if is_known else data)
        if not isinstance(whole, dict):
            raise ValueError("is not an object")
        devices = kept if is_known else tuple(_device_from_json(one) for one in _take(whole, "devices", list, []))
        return HostRecord(
            host=host,
            devices=devices,
            leases=tuple(_lease_from_json(one) for one in _take(whole, "leases", list, [])),
            machine=_take(whole, "machine", str, ""),
            boot_id=_take(whole, "boot_id", str, ""),
            seen_ms=_take(whole, "seen_ms", int, 0),
            forgotten_ms=_take(whole, "forgotten_ms", int, 0),
            forgotten_by=_take(whole, "forgotten_by", str, ""),
            format=_take(whole, "format", int, None),
            least_writer=_take(whole, "least_writer", int, None),
            unknown={key: value for key, value in whole.items() if key != "host"},
        )
    except (ValueError, TypeError, RecursionError, DlappError) as error:
        raise LedgerError(f"{host}: its record in the GPU ledger cannot be read: {error}") from error


_last_end: tuple[tuple[DeviceRecord, ...], bytes] = (), b""
"""The devices that were written last, and how a record with them ends. A host's are the same for days: who writes its
record again and again needs neither make that text anew nor read it."""


def _end_of(devices: tuple[DeviceRecord, ...]) -> bytes:
    global _last_end
    if (last := _last_end)[0] is not devices or not devices:
        _last_end = last = devices, f',"devices":[{",".join(map(_device_text, devices))}]}}'.encode()
    return last[1]


_lease_texts: dict[int, tuple[LeaseRecord, str]] = {}
"""By identity; the record itself is kept so that no other one gets that."""


def _lease_text(one: LeaseRecord) -> str:
    if (known := _lease_texts.get(id(one))) is not None:
        return known[1]
    if len(_lease_texts) >= _MOST_TEXTS:
        _lease_texts.clear()
    text = _compact(_plain(one))
    _lease_texts[id(one)] = one, text
    return text


_MOST_TEXTS = 256


def _take(whole: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """Take a field out of ``whole``, so that what is left is what we do not know."""
    value = whole.pop(name, default)
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r:.40}" if value is not None else f"it has no {name}")
    return value


def _plain(one: LeaseRecord | Quarantine) -> dict[str, Any]:
    """The fields of a value that says something, and what it did not know."""
    names = _LEASE_FIELDS if isinstance(one, LeaseRecord) else _QUARANTINE_FIELDS
    return {**one.unknown, **{name: value for name in names if (value := getattr(one, name))}}


def _lease_from_json(data: Any) -> LeaseRecord:
    if not isinstance(data, dict):
        raise ValueError(f"a lease is {data!r:.40}")
    whole = dict(data)
    uuids = _take(whole, "devices", list, None)
    if not all(type(one) is str for one in uuids):
        raise ValueError(f"devices of a lease are {uuids!r:.60}")
    return LeaseRecord(
        container=_take(whole, "container", str, None),
        application=_take(whole, "application", str, None),
        user=_take(whole, "user", str, ""),
        devices=tuple(uuids),
        since_ms=_take(whole, "since_ms", int, 0),
        token=_take(whole, "token", str, ""),
        boot_id=_take(whole, "boot_id", str, ""),
        evidence=_take(whole, "evidence", dict, {}),
        doubt=_take(whole, "doubt", str, ""),
        unknown=whole,
    )


def quarantine_to_json(one: Quarantine) -> dict[str, Any]:
    """The JSON form, also of the machine's store."""
    return _plain(one)


def quarantine_from_json(data: Any) -> Quarantine:
    """Read it. Raises ValueError where it is none."""
    if not isinstance(data, dict):
        raise ValueError(f"a quarantine is {data!r:.40}")
    whole = dict(data)
    return Quarantine(
        cause=_take(whole, "cause", str, None),
        detail=_take(whole, "detail", str, ""),
        since_ms=_take(whole, "since_ms", int, 0),
        count=_take(whole, "count", int, 1),
        probe_at_ms=_take(whole, "probe_at_ms", int, 0),
        by=_take(whole, "by", str, ""),
        unknown=whole,
    )


def _device_text(one: DeviceRecord) -> str:
    text = _text_of(one.device)
    more: dict[str, Any] = dict(one.unknown)
    if not one.present:
        more["present"] = False
    if one.failures:
        more["failures"] = one.failures
    if one.quarantine is not None:
        more["quarantine"] = _plain(one.quarantine)
    return f"{text[:-1]},{_compact(more)[1:]}" if more else text


@functools.lru_cache(maxsize=1024)
def _text_of(device: Device) -> str:
    return _compact(to_json(device))


_compact = json.JSONEncoder(separators=(",", ":")).encode


def _device_from_json(data: Any) -> DeviceRecord:
    if not isinstance(data, dict):
        raise ValueError(f"a device is {data!r:.40}")
    whole = dict(data)
    present = _take(whole, "present", bool, True)
    failures = _take(whole, "failures", int, 0)
    quarantine = whole.pop("quarantine", None)
    if not whole.keys() >= _NEEDED:
        raise ValueError(f"a device has no {', '.join(sorted(_NEEDED - whole.keys()))}")
    # What is simply text or a number is checked here: a list of all hosts has a hundred thousand devices.
    simple = {name: whole.pop(name) for name, kind in _SIMPLE.items() if type(whole.get(name)) is kind}
    others = {name: whole.pop(name) for name in _DEVICE_FIELDS if name in whole}
    if type(links := others.get("links")) is list and all(type(one) is str for one in links):
        simple["links"] = tuple(others.pop("links"))
    device = from_json(Device, {**simple, **others}) if others else Device(**simple)
    return DeviceRecord(
        device=device,
        present=present,
        failures=failures,
        quarantine=None if quarantine is None else quarantine_from_json(quarantine),
        unknown=whole,
    )


_SIMPLE: dict[str, type] = {
    name: kind for name, text in Device.__annotations__.items() for kind in (str, int) if text == kind.__name__
}
_NEEDED = {name for name, one in fields(Device).items() if one.required}
_LEASE_FIELDS = tuple(name for name in fields(LeaseRecord) if name != "unknown")
_QUARANTINE_FIELDS = tuple(name for name in fields(Quarantine) if name != "unknown")
