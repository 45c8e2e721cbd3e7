"""Processes that compute on a GPU, by NVML: the last probe of `dlapp.gpuid.liveness.probes`."""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.gpuid.health import nvml
from dlapp.gpuid.health.inspection import host_limits, is_allowed
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness


def processes_on(uuids: Iterable[str]) -> Liveness:
    """Return the processes that NVML shows on GPUs whose other evidence says that the payload is gone.

    On a GPU that is lost, or not there any more, nothing computes: the driver has ended what did. Where there is no
    driver at all, there are no GPUs. Programs that the host's configuration allows do not count.
    """
    wanted = set(uuids)
    if not wanted or not nvml.has_library():
        return Liveness(GONE)
    try:
        devices = [one for one in nvml.discover() if one.uuid in wanted]
        readings = nvml.read(devices) if devices else {}
    except nvml.NvmlError as error:
        return Liveness(UNKNOWN, str(error))
    finding, allowed = Liveness(GONE), host_limits().allowed
    for device in devices:
        reading = readings[device.uuid]
        if reading.error and not reading.lost:
            finding = Liveness(UNKNOWN, f"{device.label}: {reading.error}")
        for process in reading.compute or ():
            if not is_allowed(process.name, allowed):
                name = f" ({process.name})" if process.name else ""
                return Liveness(ALIVE, f"process {process.pid}{name} computes on {device.label}")
    return finding
