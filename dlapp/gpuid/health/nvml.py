"""GPUs of this machine and their state, from NVML; the only user of pynvml.

Without NVML there are no GPUs. A failing GPU affects only that GPU, and a query that a driver or a GPU does not support
affects only its result. NVML is opened anew for each inspection, so a restart of the driver in between has no effect.

Source: nvidia-ml-py loads exactly ``libnvidia-ml.so.1``; NVML API Reference, "Device Queries", "Multi Instance GPU
Management", "NvLink Methods", "Event Handling Methods".
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample, GpuProcess, Reading, xid_fault
from dlapp.system.processes.proc import command_line

_LIBRARY = "libnvidia-ml.so.1"
_NOT_IN_MIG_MODE = -1
_MAX_NVLINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest driver; a GPU returns "invalid argument" after its last link."""
_EVERY_INSTANCE = 0xFFFFFFFF
_MIB = 20


class NvmlError(DlappError):
    """NVML exists and does not work, so the state of the GPUs is not known."""


def has_library() -> bool:
    """Return True if NVML exists; far cheaper than `discover`, for the many machines without GPUs."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def discover() -> tuple[Device, ...]:
    """Return all GPUs that answer, in PCI bus order; empty without NVML. A GPU in MIG mode yields its MIG devices.

    Raises:
        NvmlError: the driver does not work at all (different versions of kernel module and library, for example).
    """
    with _session() as nvml:
        if nvml is None:
            return ()
        gpus = [gpu for _, gpu in _gpus(nvml) if isinstance(gpu, _Gpu)]
        links = _links(nvml, gpus)
        found: list[Device] = []
        for gpu in gpus:
            with contextlib.suppress(nvml.NVMLError):
                found += _devices(nvml, gpu, links[gpu.index])
    if all(one.pci_bus_id for one in found):
        found.sort(key=lambda one: (one.pci_bus_id.upper(), one.mig))
    return tuple(found)


def read(devices: Sequence[Device]) -> dict[str, Reading]:
    """Return the current state of devices: uuid -> reading, one for each requested device.

    Raises:
        NvmlError: NVML no longer exists, or the driver does not work at all.
    """
    with _session() as nvml:
        if nvml is None:
            raise NvmlError("NVML: the driver is gone")
        silent: dict[int, Exception] = {}
        handles: dict[str, Any] = {}
        for index, gpu in _gpus(nvml):
            if isinstance(gpu, Exception):
                silent[index] = gpu
                continue
            try:
                handles[_text(nvml.nvmlDeviceGetUUID(gpu.handle))] = gpu.handle
                handles |= {_text(nvml.nvmlDeviceGetUUID(one)): one for _, one in _parts(nvml, gpu.handle)}
            except nvml.NVMLError as error:
                silent[index] = error
        return {one.uuid: _reading(nvml, one, handles.get(one.uuid), silent.get(one.index)) for one in devices}


class NvmlWatch:
    """Watch of devices while a payload runs: keeps NVML open, and subscribes to their Xid errors.

    Raises:
        NvmlError: NVML does not work.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)
        self._open = contextlib.ExitStack()
        self._handle_of: dict[str, Any] = {}
        self._part_of: dict[str, Any] = {}
        self._instance_of: dict[str, int] = {}
        self._events: Any = None
        with contextlib.ExitStack() as opened:
            self._nvml = nvml = opened.enter_context(_session())
            if nvml is None:
                raise NvmlError("NVML: the driver is gone")
            try:
                self._register(opened)
            except nvml.NVMLError as error:
                raise _broken(error) from error
            self._open = opened.pop_all()

    def _register(self, opened: contextlib.ExitStack) -> None:
        nvml = self._nvml
        gpus = {index: gpu for index, gpu in _gpus(nvml) if isinstance(gpu, _Gpu)}
        for device in self._devices:
            if (gpu := gpus.get(device.index)) is None:
                continue
            self._handle_of[device.uuid] = gpu.handle
            for part, handle in _parts(nvml, gpu.handle) if device.mig >= 0 else ():
                if part == device.mig:
                    self._part_of[device.uuid] = handle
                    self._instance_of[device.uuid] = _or(nvml, _EVERY_INSTANCE, nvml.nvmlDeviceGetGpuInstanceId, handle)
        self._events = _or(nvml, None, nvml.nvmlEventSetCreate)
        if self._events is not None:
            opened.callback(nvml.nvmlEventSetFree, self._events)
            for handle in self._handle_of.values():
                _or(nvml, None, nvml.nvmlDeviceRegisterEvents, handle, _xid_event(nvml), self._events)

    def poll(self) -> dict[str, DeviceFault]:
        """Return the devices that have failed since the last call: uuid -> the failure. Does not block.

        Raises:
            NvmlError: NVML as a whole no longer answers; the state of the GPUs is not known.
        """
        nvml, found = self._nvml, {}
        for device in self._devices:
            if (handle := self._handle_of.get(device.uuid)) is None:
                found[device.uuid] = DeviceFault("lost", "it is not there")
                continue
            try:
                nvml.nvmlDeviceGetMemoryInfo(handle)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    found[device.uuid] = DeviceFault("lost", str(error))
                elif error.value == getattr(nvml, "NVML_ERROR_RESET_REQUIRED", 16):
                    found[device.uuid] = DeviceFault("needs-reset", str(error))
                elif error.value in _OF_ALL:
                    raise _broken(error) from error
        try:
            self._take_events(found)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_GPU_IS_LOST:
                raise _broken(error) from error
        return found

    def sample(self) -> dict[str, DeviceSample]:
        """Return the current usage of the devices, by uuid; one that does not answer is left out."""
        found = {}
        for device in self._devices:
            if (gpu := self._handle_of.get(device.uuid)) is not None:
                with contextlib.suppress(self._nvml.NVMLError):
                    found[device.uuid] = _sample(self._nvml, gpu, self._part_of.get(device.uuid))
        return found

    def _take_events(self, found: dict[str, DeviceFault]) -> None:
        nvml = self._nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return
                raise
            if event.eventType != _xid_event(nvml) or (fault := xid_fault(int(event.eventData))) is None:
                continue
            for uuid, handle in self._handle_of.items():
                of_all = event.gpuInstanceId == _EVERY_INSTANCE
                if _same(handle, event.device) and (
                    of_all or event.gpuInstanceId == self._instance_of.get(uuid, event.gpuInstanceId)
                ):
                    found.setdefault(uuid, fault)

    def close(self) -> None:
        """Close NVML. May be repeated."""
        self._open.close()


# ---- one inspection ----

_OF_ALL = (1, 9, 12, 17, 18)
"""Errors of NVML as a whole: not initialized, driver not loaded, no library, operating system, versions."""


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    """Return the initialized module pynvml; None: this machine has no NVML, or no GPU."""
    if not has_library():
        yield None
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            yield None  # the library without a GPU: an image made for both kinds of machines
            return
        raise _broken(error) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise _broken(error) from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _broken(error: Exception) -> NvmlError:
    return NvmlError(f"NVML: {str(error).rstrip('.')} (local.gcores 0 lets applications without GPUs run)")


class _Gpu:
    """GPU that answers."""

    def __init__(self, index: int, handle: Any, bus_id: str) -> None:
        self.index, self.handle, self.bus_id = index, handle, bus_id


def _gpus(nvml: Any) -> Iterator[tuple[int, _Gpu | Exception]]:
    """Return each GPU by its index, or its error. NVML numbers them in PCI bus order, like nvidia-smi."""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield index, _Gpu(index, handle, _bus_id(_or(nvml, None, nvml.nvmlDeviceGetPciInfo, handle)))
        except nvml.NVMLError as error:
            if error.value in _OF_ALL:
                raise
            yield index, error


def _parts(nvml: Any, handle: Any) -> list[tuple[int, Any]]:
    """Return the MIG devices of a GPU, number and handle; none if it is not in MIG mode."""
    if not _in_mig_mode(nvml, handle):
        return []
    found = []
    for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append((part, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, part)))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
    return found


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    return bool(_or(nvml, (0, 0), nvml.nvmlDeviceGetMigMode, handle)[0] == 1)


def _devices(nvml: Any, gpu: _Gpu, links: tuple[str, ...]) -> list[Device]:
    minor = _or(nvml, -1, nvml.nvmlDeviceGetMinorNumber, gpu.handle)
    numa = _numa_node(nvml, gpu)
    modes = {
        nvml.NVML_COMPUTEMODE_DEFAULT: "default",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    }
    mode = modes.get(_or(nvml, None, nvml.nvmlDeviceGetComputeMode, gpu.handle), "")
    in_mig_mode = _in_mig_mode(nvml, gpu.handle)
    handles = _parts(nvml, gpu.handle) if in_mig_mode else [(_NOT_IN_MIG_MODE, gpu.handle)]
    return [
        Device(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            index=gpu.index,
            minor=minor,
            name=_text(_or(nvml, "", nvml.nvmlDeviceGetName, handle)),
            memory_mib=getattr(_or(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle), "total", 0) >> _MIB,
            pci_bus_id=gpu.bus_id,
            compute_mode=mode,
            numa=numa,
            links=links,
            mig=part,
        )
        for part, handle in handles
    ]


def _numa_node(nvml: Any, gpu: _Gpu) -> int:
    """Return the NUMA node closest to the GPU; -1: none, or not known."""
    nodes = _or(nvml, None, nvml.nvmlDeviceGetMemoryAffinity, gpu.handle, 4, 0)
    if nodes is not None:
        mask = sum(int(word) << 64 * at for at, word in enumerate(nodes))
        return (mask & -mask).bit_length() - 1
    # Not supported before driver 450. The kernel writes a PCI domain with four digits, NVML with eight.
    with contextlib.suppress(OSError, ValueError):
        domain, _, rest = gpu.bus_id.lower().partition(":")
        with open(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node", encoding="ascii") as file:
            return int(file.read())
    return -1


# ---- links ----


def _links(nvml: Any, gpus: Sequence[_Gpu]) -> dict[int, tuple[str, ...]]:
    """Return by index how each GPU is connected to each other one, in the terms of ``nvidia-smi topo -m``."""
    size = max((gpu.index for gpu in gpus), default=-1) + 1
    nvlinks = {gpu.index: _nvlinks(nvml, gpu, gpus) for gpu in gpus}
    table = {gpu.index: ["-"] * size for gpu in gpus}
    for gpu in gpus:
        table[gpu.index][gpu.index] = "X"
        for other in gpus:
            if other.index > gpu.index:
                mine, theirs = nvlinks[gpu.index], nvlinks[other.index]
                # Switches connect all their GPUs, each with all its links to them.
                count = mine.get(other.index, 0) or min(mine.get(_SWITCH, 0), theirs.get(_SWITCH, 0))
                word = f"NV{count}" if count else _pcie_word(nvml, gpu, other)
                table[gpu.index][other.index] = table[other.index][gpu.index] = word
    return {index: tuple(row) for index, row in table.items()}


_SWITCH = -1


def _nvlinks(nvml: Any, gpu: _Gpu, gpus: Sequence[_Gpu]) -> dict[int, int]:
    """Return the number of NVLinks by the index of the GPU at the other end, or `_SWITCH`."""
    by_bus_id = {one.bus_id.upper(): one.index for one in gpus if one.bus_id}
    found: dict[int, int] = {}
    for link in range(_MAX_NVLINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(gpu.handle, link):
                continue
            kind = _or(nvml, None, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu.handle, link)
            end: int | None = _SWITCH
            if kind != nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                bus_id = _bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu.handle, link)).upper()
                # Older drivers do not report the kind, and report a switch, a bridge or a CPU with a bus id that is no
                # GPU's.
                end = by_bus_id.get(bus_id, _SWITCH if kind is None else None)
        except (nvml.NVMLError, AttributeError):
            break  # no such link, or none at all; a lost GPU reports that in another query
        if end is not None:
            found[end] = found.get(end, 0) + 1
    return found


def _pcie_word(nvml: Any, gpu: _Gpu, other: _Gpu) -> str:
    words = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    try:
        return words.get(nvml.nvmlDeviceGetTopologyCommonAncestor(gpu.handle, other.handle), "-")
    except nvml.NVMLError:
        return "-"


# ---- health ----


def _reading(nvml: Any, device: Device, handle: Any, silent: Exception | None) -> Reading:
    if handle is None:
        why = str(silent).rstrip(".") if silent is not None else "it is not there"
        lost = silent is None or getattr(silent, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST
        return Reading(device.uuid, error=why, lost=lost)
    try:
        return _reading_of(nvml, device, handle)
    except nvml.NVMLError as error:
        if error.value in _OF_ALL:
            raise
        lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
        return Reading(device.uuid, error=str(error).rstrip("."), lost=lost)


def _reading_of(nvml: Any, device: Device, handle: Any) -> Reading:
    used, reserved = _memory(nvml, handle)
    compute = _processes(nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
    graphics = _processes(nvml, handle, "nvmlDeviceGetGraphicsRunningProcesses")
    # The following values are of the whole GPU; a MIG device's handle does not support them.
    gpu = nvml.nvmlDeviceGetHandleByIndex(device.index) if device.mig >= 0 else handle
    query = partial(_query, nvml, gpu)
    remapped = query("nvmlDeviceGetRemappedRows")
    utilization = query("nvmlDeviceGetUtilizationRates")
    return Reading(
        device.uuid,
        compute=compute,
        graphics=graphics or (),
        used_mib=used,
        reserved_is_apart=reserved,
        temperature_c=query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        slowdown_c=query("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        # Since the driver was loaded (volatile): older ones were cleared by a reset of the GPU.
        ecc_uncorrected=query(
            "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        reset_pending=bool(query("nvmlDeviceGetRetiredPagesPendingStatus")) or bool(remapped and remapped[2]),
        remap_failed=bool(remapped and remapped[3]),
        recovery=_recovery(nvml, gpu),
        prohibited=query("nvmlDeviceGetComputeMode") == nvml.NVML_COMPUTEMODE_PROHIBITED,
        utilization=None if utilization is None else int(utilization.gpu),
    )


def _sample(nvml: Any, gpu: Any, part: Any) -> DeviceSample:
    """Return the usage of a GPU, or of a MIG device's part of it."""
    handle, query = gpu if part is None else part, partial(_query, nvml, gpu)
    rates = _query(nvml, handle, "nvmlDeviceGetUtilizationRates")
    milliwatts = query("nvmlDeviceGetPowerUsage")
    processes = _listed_processes(nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
    millijoules = query("nvmlDeviceGetTotalEnergyConsumption") if part is None else None
    return DeviceSample(
        utilisation=None if rates is None else min(rates.gpu, 100) / 100,
        used_mib=_memory(nvml, handle)[0],
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        processes=None if processes is None else len(processes),
        energy_j=None if millijoules is None else millijoules / 1000,
    )


def _memory(nvml: Any, handle: Any) -> tuple[int | None, bool]:
    """Return the used memory [MiB], and whether it excludes the driver's reserved memory (memory v2)."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    info = None if version is None else _or(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle, version)
    if info is not None:
        return info.used >> _MIB, True
    info = _or(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if info is None else info.used >> _MIB, False


def _processes(nvml: Any, handle: Any, name: str) -> tuple[GpuProcess, ...] | None:
    """Return the processes on a GPU; None: not supported by this driver."""
    if (found := _listed_processes(nvml, handle, name)) is None:
        return None
    return tuple(GpuProcess(one.pid, _process_name(nvml, one.pid), (one.usedGpuMemory or 0) >> _MIB) for one in found)


def _listed_processes(nvml: Any, handle: Any, name: str) -> Sequence[Any] | None:
    for version in ("_v3", "_v2"):
        found: Sequence[Any] | None = _query(nvml, handle, name + version)
        if found is not None:
            return found
    return None


def _process_name(nvml: Any, pid: int) -> str:
    """Return the program's name; empty: not visible (hidepid, another pid namespace)."""
    program = command_line(pid)[0]
    if not program:
        with contextlib.suppress(nvml.NVMLError):
            program = nvml.nvmlSystemGetProcessName(pid)
    name = _text(program).partition(" ")[0] if program else ""
    return name.rpartition("/")[2]


def _recovery(nvml: Any, gpu: Any) -> str:
    """Return the action that the driver requires before the GPU can be used; empty if none."""
    if (field := getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)) is None:
        return ""
    values = _or(nvml, None, nvml.nvmlDeviceGetFieldValues, gpu, [field])
    if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return ""
    words = {1: "a reset of the GPU", 2: "a reboot", 3: "a drain", 4: "a drain and a reset of the GPU"}
    action = int(values[0].value.uiVal)
    return words.get(action, f"recovery action {action}") if action else ""


# ---- answers ----


def _or(nvml: Any, default: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``query``; ``default`` if the driver or GPU does not support it. Raise other errors."""
    try:
        return query(*arguments)
    except nvml.NVMLError as error:
        none = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION)
        if error.value in (*none, getattr(nvml, "NVML_ERROR_ARGUMENT_VERSION_MISMATCH", 25)):
            return default
        raise


def _query(nvml: Any, handle: Any, name: str, *arguments: Any) -> Any:
    """Return the result of a query by its name; None if pynvml, the driver or the GPU does not support it."""
    query = getattr(nvml, name, None)
    return None if query is None else _or(nvml, None, query, handle, *arguments)


def _xid_event(nvml: Any) -> int:
    return int(nvml.nvmlEventTypeXidCriticalError)


def _same(one: Any, other: Any) -> bool:
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _bus_id(info: Any) -> str:
    return "" if info is None else _text(info.busId)


def _text(value: str | bytes) -> str:
    # Older nvidia-ml-py returns bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value
