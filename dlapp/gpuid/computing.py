"""Whether a process computes on a card: the last witness of `dlapp.gpuid.evidence`, by NVML."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dlapp.gpuid import nvml
from dlapp.gpuid.finding import ALIVE, GONE, UNKNOWN, Finding
from dlapp.gpuid.health import is_allowed, limits_here


def processes_on(uuids: Iterable[str], *, allowed: Collection[str] | None = None) -> Finding:
    """What NVML knows of processes on cards whose other witnesses say that all is over.

    On a card that is lost, or not there any more, nothing computes: the driver has ended what did. Where there is no
    driver at all, there are no cards.

    Args:
        allowed: programs that do not count; None: as this host is configured.
    """
    wanted = set(uuids)
    if not wanted or not nvml.library_is_there():
        return Finding(GONE)
    try:
        devices = [one for one in nvml.discover() if one.uuid in wanted]
        readings = nvml.read(devices) if devices else {}
    except nvml.NvmlError as error:
        return Finding(UNKNOWN, str(error))
    finding = Finding(GONE)
    allowed = limits_here().allowed if allowed is None else allowed
    for device in devices:
        reading = readings[device.uuid]
        if reading.error and not reading.lost:
            finding = Finding(UNKNOWN, f"{device.label}: {reading.error}")
        for process in reading.compute or ():
            if not is_allowed(process.name, allowed):
                name = f" ({process.name})" if process.name else ""
                return Finding(ALIVE, f"process {process.pid}{name} computes on {device.label}")
    return finding
