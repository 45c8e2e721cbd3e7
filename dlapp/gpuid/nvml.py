"""What GPUs this machine has, by NVML; the one user of pynvml.

NVML missing means: no GPUs here. A card that fails costs that card only.

Source: nvidia-ml-py loads exactly ``libnvidia-ml.so.1``; NVML API Reference, "Device Queries".
"""

from __future__ import annotations

from typing import Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device

_LIBRARY = "libnvidia-ml.so.1"


class NvmlError(DlappError):
    """NVML is there and does not work, so nothing is known of the cards."""


def library_is_there() -> bool:
    """Whether there is an NVML at all; far cheaper to ask than `discover`, for the many machines without."""
    import ctypes

    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def discover() -> tuple[Device, ...]:
    """All GPUs that answer, in PCI bus order; empty where there is no NVML.

    Raises:
        NvmlError: the driver does not work as a whole (its kernel module and library are of two versions, say).
    """
    if not library_is_there():
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return ()  # a library without a card: a machine from an image that is for both kinds
        raise _broken(error) from error
    try:
        found = []
        for place in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(_device(pynvml, place))
            except pynvml.NVMLError:
                continue
    except pynvml.NVMLError as error:
        raise _broken(error) from error
    finally:
        pynvml.nvmlShutdown()
    if all(one.pci_bus_id for one in found):
        found.sort(key=lambda one: one.pci_bus_id.upper())
    return tuple(found)


def _broken(error: Exception) -> NvmlError:
    return NvmlError(f"NVML: {str(error).rstrip('.')} (local.gcores 0 lets applications without GPUs run)")


def _device(pynvml: Any, place: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(place)
    return Device(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        # NVML numbers the cards in PCI bus order, and this is the number that nvidia-smi shows.
        index=place,
        minor=_or(pynvml, -1, pynvml.nvmlDeviceGetMinorNumber, handle),
        name=_text(_or(pynvml, "", pynvml.nvmlDeviceGetName, handle)),
        memory_mib=getattr(_or(pynvml, None, pynvml.nvmlDeviceGetMemoryInfo, handle), "total", 0) >> 20,
        pci_bus_id=_text(_bus_id(pynvml, handle)),
    )


def _bus_id(pynvml: Any, handle: Any) -> str | bytes:
    info = _or(pynvml, None, pynvml.nvmlDeviceGetPciInfo, handle)
    return "" if info is None else info.busId


def _or(pynvml: Any, default: Any, query: Any, handle: Any) -> Any:
    """What ``query`` answers; ``default`` where this driver or card has no such answer. Others fail."""
    try:
        return query(handle)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return default
        raise


def _text(value: str | bytes) -> str:
    # Older nvidia-ml-py answers with bytes.
    return value.decode() if isinstance(value, bytes) else value
