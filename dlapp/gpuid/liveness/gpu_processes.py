"""Processes that compute on a GPU, by NVML: the last probe of `dlapp.gpuid.liveness.probes`."""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import nvml
from dlapp.gpuid.health.inspection import host_limits, is_allowed
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.system.machine import namespaces_of_its_own

_NO_CONTEXT_MIB = 32
"""Maximum used memory of a GPU on which nothing computes: a CUDA context alone takes more than twice as much."""


def processes_on(uuids: Iterable[str], nvml_process: NvmlProcess, *, is_apart: bool | None = None) -> Liveness:
    """Return the processes that NVML shows on GPUs whose other evidence says that the payload is gone.

    On a GPU that is lost, or not there any more, nothing computes: the driver has ended what did. Where there is no
    driver at all, there are no GPUs. Programs that the host's configuration allows do not count; clients of an MPS
    server do.

    The driver shows a process only the processes of its own pid namespace and of those below. So in a namespace that
    is not the machine's, an empty list counts only for a GPU whose memory is not in use either.

    Args:
        uuids: the GPUs, and MIG devices; no other GPU is opened, except on NVML's search for these.
        is_apart: whether this process is in such a namespace; None: as the kernel says.
    """
    devices = [Device(one, index=-1, minor=-1) for one in sorted(set(uuids))]
    if not devices or not nvml.has_library():
        return Liveness(GONE)
    try:
        readings = nvml_process.read(devices)
    except nvml.NoDriver:
        return Liveness(GONE)
    except nvml.NvmlError as error:
        return Liveness(UNKNOWN, str(error))
    finding, allowed = Liveness(GONE), host_limits().allowed
    is_apart = namespaces_of_its_own()[0] if is_apart is None else is_apart
    for device in devices:
        reading = readings[device.uuid]
        if reading.error and not reading.lost:
            finding = Liveness(UNKNOWN, f"{device.label}: {reading.error}")
        for process in (*(reading.compute or ()), *reading.mps_clients):
            if not is_allowed(process.name, allowed):
                name = f" ({process.name})" if process.name else ""
                return Liveness(ALIVE, f"process {process.pid}{name} computes on {device.label}")
        is_hidden = is_apart or reading.compute is None
        if is_hidden and not reading.error and (reading.used_mib is None or reading.used_mib > _NO_CONTEXT_MIB):
            used = "unknown memory" if reading.used_mib is None else f"{reading.used_mib} MiB"
            reason = "does not list processes" if reading.compute is None else "hides processes of other pid namespaces"
            why = f"{used} of it is in use, and the driver {reason}"
            finding = Liveness(UNKNOWN, f"{device.label}: {why}")
    return finding
