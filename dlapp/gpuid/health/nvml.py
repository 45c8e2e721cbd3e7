"""GPUs of this machine and their state, from NVML; the only user of pynvml.

Without NVML there are no GPUs. A failing GPU affects only that GPU, and a query that a driver or a GPU does not answer
affects only its result, whatever the error: WSL2, virtual GPUs and new cards answer with errors that no list has. NVML
is opened anew for each inspection, so a restart of the driver in between has no effect.

A GPU that a process has open can be neither reset nor drained nor partitioned. So only `discover` opens all of them,
and closes them before it returns; everything else opens exactly the GPUs that it is asked for, by their PCI bus ids.
An index finds no GPU: NVML numbers those that a process may see, which differ in a container of YARN.

Source: nvidia-ml-py loads exactly ``libnvidia-ml.so.1``; NVML API Reference, "Device Queries" (nvmlDeviceGetHandleBy…),
"Multi Instance GPU Management", "NvLink Methods", "Event Handling Methods".
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import driver
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample, GpuProcess, ListedProcess, Reading
from dlapp.system.processes.proc import command_line

if TYPE_CHECKING:
    from dlapp.gpuid.health import condition
    from dlapp.gpuid.health.gpm import GpmMeter

_LIBRARY = "libnvidia-ml.so.1"
SPLIT, NO_INSTANCES = "split by MIG", "in MIG mode, without instances"
"""Reasons why a GPU in MIG mode is not leased itself."""
_NOT_IN_MIG_MODE = -1
_EVERY_INSTANCE = 0xFFFFFFFF
_WSL = "/dev/dxg"
"""Device of WSL2, in whose NVML the list of processes is empty. Source: CUDA on WSL User Guide, "Features not yet
supported"."""
_MAX_EVENTS = 1000
"""Events of one poll: a program may cause them faster than they are read."""
_MIB = 20


class NvmlError(DlappError):
    """NVML exists and does not work, so the state of the GPUs is not known.

    Args:
        problem: why.
        repair: what helps; empty: not known.
    """

    def __init__(self, problem: str, repair: str = "") -> None:
        super().__init__(problem, repair)
        self.problem, self.repair = problem, repair

    def __str__(self) -> str:
        return f"{self.problem}; {self.repair}" if self.repair else self.problem


class NoDriver(NvmlError):
    """Absence of NVML, or of a loaded driver: no process has a GPU open."""


def has_library() -> bool:
    """Return True if NVML exists; far cheaper than `discover`, for the many machines without GPUs."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def discover() -> tuple[Device, ...]:
    """Return all GPUs that answer, in PCI bus order; empty without NVML. A GPU in MIG mode yields its MIG devices.

    This opens all GPUs of the machine for a moment.

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
            with _unless_broken(nvml):
                found += _devices(nvml, gpu, links[gpu.index])
    if all(one.pci_bus_id for one in found):
        found.sort(key=lambda one: (one.pci_bus_id.upper(), one.mig))
    return tuple(found)


def discover_unleasable(known: Collection[int] = ()) -> tuple[tuple[Device, str], ...]:
    """Return the GPUs that `discover` does not list, each with the reason: those in MIG mode, of which it lists the MIG
    devices, if there are any, and those that do not answer, of which only the index is known.

    Args:
        known: indexes of GPUs that are left out, and not opened.

    Raises:
        NvmlError: the driver does not work at all.
    """
    found: list[tuple[Device, str]] = []
    with _session() as nvml:
        for index, gpu in () if nvml is None else _gpus(nvml, but=known):
            try:
                if isinstance(gpu, Exception):
                    raise gpu
                (device,) = _devices(nvml, gpu, (), is_whole=True)
                if _in_mig_mode(nvml, gpu.handle):
                    found.append((device, SPLIT if _parts(nvml, gpu.handle) else NO_INSTANCES))
            except nvml.NVMLError as error:
                if error.value in _OF_ALL:
                    raise
                found.append((Device("", index, -1), _words(error)))
    return tuple(found)


def read(devices: Sequence[Device], *, detailed: bool = False) -> dict[str, Reading]:
    """Return the current state of devices: uuid -> reading, one for each requested device. Opens no other GPU.

    Args:
        detailed: read also what is only shown: `Reading.notes` and ``persistent``.

    Raises:
        NoDriver: NVML or the driver no longer exists.
        NvmlError: the driver does not work at all.
    """
    with _session() as nvml:
        if nvml is None:
            raise NoDriver("NVML: the driver is gone")
        return {one.uuid: _reading(nvml, one, detailed) for one in devices}


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
        self._gpm_of: dict[str, GpmMeter] = {}
        self._events: Any = None
        with contextlib.ExitStack() as opened:
            self._nvml = nvml = opened.enter_context(_session())
            if nvml is None:
                raise NoDriver("NVML: the driver is gone")
            try:
                self._register(opened)
            except nvml.NVMLError as error:
                raise _broken(error) from error
            self._open = opened.pop_all()

    def _register(self, opened: contextlib.ExitStack) -> None:
        nvml = self._nvml
        self._events = _or(nvml, None, nvml.nvmlEventSetCreate)
        if self._events is not None:
            opened.callback(nvml.nvmlEventSetFree, self._events)
        for device in self._devices:
            # One that is not found is looked for again by `poll`, which says if it is lost.
            with _unless_broken(nvml):
                self._handle(device)

    def _handle(self, device: Device) -> Any:
        """Return the handle of a device's GPU; the first time, open it and subscribe to its events."""
        nvml, uuid = self._nvml, device.uuid
        if uuid not in self._handle_of:
            gpu, part = _find(nvml, device)
            if part is not None:
                self._part_of[uuid] = part
                self._instance_of[uuid] = _or(nvml, _EVERY_INSTANCE, nvml.nvmlDeviceGetGpuInstanceId, part)
            if self._events is not None:
                _or(nvml, None, nvml.nvmlDeviceRegisterEvents, gpu, _xid_event(nvml), self._events)
            self._handle_of[uuid] = gpu
        return self._handle_of[uuid]

    def poll(self) -> dict[str, DeviceFault]:
        """Return the devices that have failed since the last call: uuid -> the failure. Does not block.

        Raises:
            NvmlError: NVML as a whole no longer answers; the state of the GPUs is not known.
        """
        nvml, found = self._nvml, {}
        for device in self._devices:
            try:
                nvml.nvmlDeviceGetMemoryInfo(self._handle(device))
            except nvml.NVMLError as error:
                if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, *_NOT_THERE):
                    found[device.uuid] = DeviceFault("lost", _words(error))
                elif error.value == _RESET_REQUIRED:
                    found[device.uuid] = DeviceFault("needs-reset", _words(error))
                elif error.value in _OF_ALL:
                    raise _broken(error) from error
        return found

    def take_xids(self) -> list[tuple[str, int]]:
        """Return the Xid errors since the last call: the uuid of the device, and the code. Does not block.

        Raises:
            NvmlError: NVML as a whole no longer answers.
        """
        found: list[tuple[str, int]] = []
        try:
            self._take_events(found)
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise _broken(error) from error
        return found

    def sample(self) -> dict[str, DeviceSample]:
        """Return the current usage of the devices, by uuid; one that does not answer is left out."""
        found = {}
        for device in self._devices:
            if (gpu := self._handle_of.get(device.uuid)) is not None:
                with contextlib.suppress(self._nvml.NVMLError):
                    sample = _sample(self._nvml, gpu, self._part_of.get(device.uuid))
                    found[device.uuid] = sample._replace(activity=self._gpm(device, gpu).activity())
        return found

    def _gpm(self, device: Device, gpu: Any) -> GpmMeter:
        if (meter := self._gpm_of.get(device.uuid)) is None:
            from dlapp.gpuid.health.gpm import GpmMeter

            instance = self._instance_of.get(device.uuid, _EVERY_INSTANCE) if device.mig >= 0 else None
            meter = self._gpm_of[device.uuid] = GpmMeter(self._nvml, gpu, instance)
            self._open.callback(meter.close)  # before NVML is closed
        return meter

    def _take_events(self, found: list[tuple[str, int]]) -> None:
        nvml = self._nvml
        while self._events is not None and len(found) < _MAX_EVENTS:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return
                raise
            if event.eventType != _xid_event(nvml):
                continue
            for uuid, handle in self._handle_of.items():
                of_all = event.gpuInstanceId == _EVERY_INSTANCE
                if _same(handle, event.device) and (
                    of_all or event.gpuInstanceId == self._instance_of.get(uuid, event.gpuInstanceId)
                ):
                    found.append((uuid, int(event.eventData)))

    def close(self) -> None:
        """Close NVML. May be repeated."""
        self._open.close()


# ---- one inspection ----

_OF_ALL = (1, 9, 12, 17, 18)
"""Errors of NVML as a whole: not initialized, driver not loaded, no library, operating system, versions."""
_RESET_REQUIRED = 16
_OF_A_DEVICE = (15, _RESET_REQUIRED)
"""Errors of a GPU as a whole: it is lost, or requires a reset."""
_NOT_THERE = (6, 28)
"""NVML_ERROR_NOT_FOUND and NVML_ERROR_GPU_NOT_FOUND."""
_NO_SUCH_QUERY = (2, 3, 13)
"""Invalid argument (the link after the last), not supported, function not found."""
_PLAINLY_UNSUPPORTED = (*_NO_SUCH_QUERY, 4, 25)
"""The same, no permission, version of an argument: nothing to tell anyone."""


class _Session:
    """The initialized module pynvml.

    Attributes:
        errors: queries that were not answered, and not because they are not supported: their names -> a text.
    """

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self.errors: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pynvml, name)


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    """Return a `_Session`; None: this machine has no NVML, or no GPU."""
    if not has_library():
        yield None
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_absent = error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED and not driver.hardware()
        if is_absent or error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            yield None  # the library without a GPU: an image made for both kinds of machines
            return
        raise _broken(error) from error
    try:
        yield _Session(pynvml)
    except pynvml.NVMLError as error:
        raise _broken(error) from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _broken(error: Any) -> NvmlError:
    return NvmlError(*driver.problem_of(error.value, str(error)))


class _Gpu:
    """GPU that answers."""

    def __init__(self, index: int, handle: Any, bus_id: str) -> None:
        self.index, self.handle, self.bus_id = index, handle, bus_id


def _gpus(nvml: Any, but: Collection[int] = ()) -> Iterator[tuple[int, _Gpu | Exception]]:
    """Return each GPU by its index, or its error, except those with the indexes ``but``. NVML numbers them in PCI bus
    order, like nvidia-smi."""
    for index in range(nvml.nvmlDeviceGetCount()):
        if index in but:
            continue
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield index, _Gpu(index, handle, _bus_id(_or(nvml, None, nvml.nvmlDeviceGetPciInfo, handle)))
        except nvml.NVMLError as error:
            if error.value in _OF_ALL:
                raise
            yield index, error


def _find(nvml: Any, device: Device) -> tuple[Any, Any]:
    """Return the handle of a device's GPU, and that of a MIG device on it, else None. Raises NVMLError.

    The bus id opens exactly that GPU. The uuid finds a GPU that is elsewhere now, or has no bus id; NVML may open
    others on its search.
    """
    is_mig = device.uuid.startswith("MIG-")
    if device.pci_bus_id:
        try:
            gpu = nvml.nvmlDeviceGetHandleByPciBusId(device.pci_bus_id)
        except nvml.NVMLError as error:
            # Without permission, or with an unknown error, it is there; a search by uuid would not find it.
            if error.value not in (*_NO_SUCH_QUERY, *_NOT_THERE):
                raise
        else:
            if not is_mig and _text(nvml.nvmlDeviceGetUUID(gpu)) == device.uuid:
                return gpu, None
            for _, part in _parts(nvml, gpu) if is_mig else ():
                if _text(nvml.nvmlDeviceGetUUID(part)) == device.uuid:
                    return gpu, part
    try:
        found = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_INVALID_ARGUMENT:
            raise
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND) from error  # what a record names is no uuid
    return (nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found), found) if is_mig else (found, None)


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


def _devices(nvml: Any, gpu: _Gpu, links: tuple[str, ...], *, is_whole: bool = False) -> list[Device]:
    """Return the devices of a GPU: itself, or its MIG devices unless ``is_whole``."""
    minor = _or(nvml, -1, nvml.nvmlDeviceGetMinorNumber, gpu.handle)
    numa = _numa_node(nvml, gpu)
    modes = {
        nvml.NVML_COMPUTEMODE_DEFAULT: "default",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    }
    mode = modes.get(_or(nvml, None, nvml.nvmlDeviceGetComputeMode, gpu.handle), "")
    in_parts = not is_whole and _in_mig_mode(nvml, gpu.handle)
    handles = _parts(nvml, gpu.handle) if in_parts else [(_NOT_IN_MIG_MODE, gpu.handle)]
    return [
        Device(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            index=gpu.index,
            minor=minor,
            name=_text(_or(nvml, "", nvml.nvmlDeviceGetName, handle)),
            memory_mib=_total_mib(nvml, handle, part),
            pci_bus_id=gpu.bus_id,
            compute_mode=mode,
            numa=numa,
            links=links,
            mig=part,
            gpu_instance=_instance(nvml, nvml.nvmlDeviceGetGpuInstanceId, part, handle),
            compute_instance=_instance(nvml, nvml.nvmlDeviceGetComputeInstanceId, part, handle),
        )
        for part, handle in handles
    ]


def _total_mib(nvml: Any, handle: Any, part: int) -> int:
    """Return the memory of a GPU or a slice [MiB]; 0: the driver does not say."""
    if (info := _or(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle)) is not None:
        return int(info.total >> _MIB)
    # The name of a slice has a rounded size: a slice 1g.18gb may have 16 GiB. Source: NVML,
    # nvmlDeviceAttributes_t, of MIG devices only: memorySizeMB is in MiB.
    attributes = None if part == _NOT_IN_MIG_MODE else _query(nvml, handle, "nvmlDeviceGetAttributes")
    return 0 if attributes is None else int(attributes.memorySizeMB)


def _instance(nvml: Any, get: Any, part: int, handle: Any) -> int:
    """Return the number of an instance of a MIG device; -1: it is a whole GPU, or the driver does not tell it."""
    return -1 if part == _NOT_IN_MIG_MODE else int(_or(nvml, -1, get, handle))


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
    from dlapp.gpuid.health import condition  # most commands only look whether there is NVML

    by_bus_id = {one.bus_id.upper(): one.index for one in gpus if one.bus_id}
    found: dict[int, int] = {}
    for link in range(condition.MAX_NVLINKS):
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


def _reading(nvml: Any, device: Device, detailed: bool) -> Reading:
    nvml.errors.clear()
    try:
        reading = _reading_of(nvml, device.uuid, *_find(nvml, device), detailed)
        return reading._replace(notes=(*reading.notes, *nvml.errors.values())) if nvml.errors else reading
    except nvml.NVMLError as error:
        if error.value in _OF_ALL:
            raise
        if error.value == _RESET_REQUIRED:
            return Reading(device.uuid, recovery="a reset of the GPU")
        lost = error.value in (nvml.NVML_ERROR_GPU_IS_LOST, *_NOT_THERE)
        return Reading(device.uuid, error=_words(error), lost=lost)


def _reading_of(nvml: Any, uuid: str, gpu: Any, part: Any, detailed: bool) -> Reading:
    """Return the state of a GPU, or of a MIG device on it, whose handle supports only memory and processes."""
    from dlapp.gpuid.health import condition

    handle, query = gpu if part is None else part, partial(_query, nvml, gpu)
    used, reserved = _memory(nvml, handle)
    compute = _processes(nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
    graphics = _processes(nvml, handle, "nvmlDeviceGetGraphicsRunningProcesses")
    remapped = query("nvmlDeviceGetRemappedRows")
    utilization = query("nvmlDeviceGetUtilizationRates")
    temperature_c = _temperature_c(nvml, gpu)
    fields = _fields(nvml, gpu, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT")
    # A program on a MIG device uses no NVLink.
    fabric = None if part is not None else _fabric(nvml, gpu)
    return Reading(
        uuid,
        compute=compute,
        graphics=graphics or (),
        used_mib=used,
        reserved_is_apart=reserved,
        temperature_c=temperature_c,
        slowdown_c=_slowdown_c(nvml, gpu, temperature_c, fields[1]),
        ecc_uncorrected=_ecc_uncorrected(nvml, gpu),
        reset_pending=bool(query("nvmlDeviceGetRetiredPagesPendingStatus")) or bool(remapped and remapped[2]),
        remap_failed=bool(remapped and remapped[3]),
        recovery=_recovery(fields[0]),
        needs_no_recovery=fields[0] == 0,
        prohibited=query("nvmlDeviceGetComputeMode") == nvml.NVML_COMPUTEMODE_PROHIBITED,
        utilization=None if utilization is None else int(utilization.gpu),
        mps_clients=_processes(nvml, handle, "nvmlDeviceGetMPSComputeRunningProcesses") or (),
        memory_node=query("nvmlDeviceGetNumaNodeId") if used and not compute and not graphics else None,
        fabric="" if fabric is None else condition.fabric_problem(fabric),
        fabric_is_starting=fabric is not None and fabric.state == condition.FABRIC_IN_PROGRESS,
        notes=condition.notes(query, fabric, utilization) if detailed else (),
        persistent=None if not detailed or (mode := query("nvmlDeviceGetPersistenceMode")) is None else bool(mode),
    )


def _sample(nvml: Any, gpu: Any, part: Any) -> DeviceSample:
    """Return the usage of a GPU, or of a MIG device's part of it."""
    handle, query = gpu if part is None else part, partial(_query, nvml, gpu)
    rates = _query(nvml, handle, "nvmlDeviceGetUtilizationRates")
    milliwatts = query("nvmlDeviceGetPowerUsage")
    processes = _listed_processes(nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
    if processes is not None:
        processes = [*processes, *(_listed_processes(nvml, handle, "nvmlDeviceGetMPSComputeRunningProcesses") or ())]
    millijoules = query("nvmlDeviceGetTotalEnergyConsumption") if part is None else None
    return DeviceSample(
        utilisation=None if rates is None else min(rates.gpu, 100) / 100,
        used_mib=_memory(nvml, handle)[0],
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=_temperature_c(nvml, gpu),
        processes=None if processes is None else len(processes),
        listed=tuple(ListedProcess(one.pid, _mib(one.usedGpuMemory)) for one in processes or ()),
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


def _mib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else size_bytes >> _MIB


def _processes(nvml: Any, handle: Any, name: str) -> tuple[GpuProcess, ...] | None:
    """Return the processes on a GPU; None: not supported by this driver."""
    if (found := _listed_processes(nvml, handle, name)) is None:
        return None
    return tuple(GpuProcess(one.pid, _process_name(nvml, one.pid), (one.usedGpuMemory or 0) >> _MIB) for one in found)


def _listed_processes(nvml: Any, handle: Any, name: str) -> Sequence[Any] | None:
    for version in ("_v3", "_v2"):
        found: Sequence[Any] | None = _query(nvml, handle, name + version)
        if found is not None:
            return None if not found and os.path.exists(_WSL) else found
    return None


def _process_name(nvml: Any, pid: int) -> str:
    """Return the program's name; empty: not visible (hidepid, another pid namespace)."""
    program = command_line(pid)[0]
    if not program:
        with contextlib.suppress(nvml.NVMLError):
            program = nvml.nvmlSystemGetProcessName(pid)
    name = _text(program).partition(" ")[0] if program else ""
    return name.rpartition("/")[2]


def _temperature_c(nvml: Any, gpu: Any) -> int | None:
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"):  # the second goes with CUDA 14
        found: int | None = _query(nvml, gpu, name, nvml.NVML_TEMPERATURE_GPU)
        if found is not None:
            return found
    return None


def _slowdown_c(nvml: Any, gpu: Any, temperature_c: int | None, slowdown_margin: int | None) -> int | None:
    """Return the temperature at which a GPU slows down.

    GPUs since Ada report how far they are from their maximum, and how far they slow down, instead of temperatures.
    Source: NVML API Reference, nvmlDeviceGetTemperatureThreshold and nvmlDeviceGetMarginTemperature.
    """
    if slowdown_margin is not None and temperature_c is not None:
        margin: int | None = _query(nvml, gpu, "nvmlDeviceGetMarginTemperature")
        if margin is not None:
            return temperature_c + margin - slowdown_margin
    threshold: int | None = _query(
        nvml, gpu, "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    return threshold


def _ecc_uncorrected(nvml: Any, gpu: Any) -> int | None:
    """Return the number of uncorrectable errors since the driver was loaded, or the GPU was reset (volatile)."""
    kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    total: int | None = _query(nvml, gpu, "nvmlDeviceGetTotalEccErrors", *kind)
    if total is not None:
        return total
    places = [_query(nvml, gpu, "nvmlDeviceGetMemoryErrorCounter", *kind, place) for place in _ECC_PLACES]
    known = [one for one in places if one is not None]
    return sum(known) if known else None


_ECC_PLACES = (2, 7)
"""NVML_MEMORY_LOCATION_DRAM, and _SRAM, which comprises the caches and the register file."""


def _fields(nvml: Any, gpu: Any, *names: str) -> list[int | None]:
    """Return the values of fields, by their names in pynvml; None: not known to pynvml, the driver or the GPU."""
    ids = [getattr(nvml, name, None) for name in names]
    asked = [one for one in ids if one is not None]
    values = _query(nvml, gpu, "nvmlDeviceGetFieldValues", asked) if asked else None
    found = {one.fieldId: one.value.siVal for one in values or () if one.nvmlReturn == nvml.NVML_SUCCESS}
    return [found.get(one) for one in ids]


def _fabric(nvml: Any, gpu: Any) -> condition.Fabric | None:
    """Return the state of a GPU in its NVLink fabric; None: it is in none, or the driver does not report it."""
    from dlapp.gpuid.health import condition

    if (kind := getattr(nvml, "c_nvmlGpuFabricInfo_v2_t", None)) is None:
        return None
    info = kind()
    if _query(nvml, gpu, "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
        return None
    # The state is one byte of the library's, and the three after it are not written.
    return condition.Fabric(int(info.state) & 0xFF, int(info.status), int(info.healthMask))


def _recovery(action: int | None) -> str:
    """Return the action that the driver requires before the GPU can be used; empty if none.

    Source: nvmlDeviceGpuRecoveryAction_t.
    """
    words = {
        1: "a reset of the GPU",
        2: "a reboot",
        3: "a drain",
        4: "a drain and a reset of the GPU",
        5: "a recovery of its IMEX domain",
        6: "a reset of its bus",
        7: "a reboot of the system",
    }
    return words.get(action, f"recovery action {action}") if action else ""


# ---- answers ----


def _or(nvml: Any, default: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of ``query``; ``default`` if the driver or the GPU does not answer it, for whatever reason.

    Raises:
        NVMLError: the GPU is lost or requires a reset, or NVML as a whole does not work.
    """
    try:
        return query(*arguments)
    except nvml.NVMLError as error:
        if error.value in (*_OF_ALL, *_OF_A_DEVICE):
            raise
        if error.value not in _PLAINLY_UNSUPPORTED:
            name = query.__name__.partition("_v")[0]
            nvml.errors[name] = f"{name}: {_words(error)}"
        return default


@contextlib.contextmanager
def _unless_broken(nvml: Any) -> Iterator[None]:
    """Ignore errors of a single GPU."""
    try:
        yield
    except nvml.NVMLError as error:
        if error.value in _OF_ALL:
            raise


def _words(error: Any) -> str:
    return "it is not there" if error.value in _NOT_THERE else str(error).rstrip(".")


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
