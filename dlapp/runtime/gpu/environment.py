"""Variables with which a payload finds its GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.value import fields
from dlapp.values.spec import BY_DEFAULT, BY_INDEX

if TYPE_CHECKING:
    from dlapp.runtime.payload import PayloadDevice

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpu_variables(devices: Sequence[PayloadDevice], *, names: str = BY_DEFAULT, is_plain: bool) -> dict[str, str]:
    """Return the variables of a payload's GPUs; docs/payload.md documents them for users.

    In Docker a container sees only its own GPUs, numbered from 0, so CUDA_VISIBLE_DEVICES is set on request only. A
    plain process sees all GPUs of the host, and the indexes are those of NVML, which CUDA has too with
    CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Args:
        devices: the leased GPUs, in PCI bus order.
        names: `dlapp.values.spec.Placement.cuda_visible_devices`.
        is_plain: the payload runs without Docker.
    """
    uuids = ",".join(device.uuid for device in devices)
    env = {
        "NV_GPU": ",".join(device.place for device in devices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "DLAPP_GPU_UUIDS": uuids,
        "DLAPP_GPUS": json.dumps([_facts_of(device) for device in devices], separators=(",", ":")),
    }
    if names == BY_INDEX:
        env[VISIBLE] = ",".join(str(device.index if is_plain else at) for at, device in enumerate(devices))
    elif is_plain or (devices and names != BY_DEFAULT):
        env[VISIBLE] = uuids
    if not (is_plain or devices):
        # Many images set "all". No requested GPU means no visible GPU, whatever Docker's default runtime is.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return env


def payload_devices(devices: Iterable[Any]) -> tuple[PayloadDevice, ...]:
    """Return leased devices (`dlapp.gpuid.devices.Device`) as devices of a payload."""
    from dlapp.runtime.payload import PayloadDevice

    return tuple(PayloadDevice(**{name: getattr(one, name) for name in fields(PayloadDevice)}) for one in devices)


def _facts_of(device: PayloadDevice) -> dict[str, str | int | None]:
    """Return a GPU as an element of DLAPP_GPUS; what is not known is null."""
    return {
        "uuid": device.uuid,
        "index": device.index,
        "bus_id": device.pci_bus_id or None,
        "model": device.name or None,
        "memory_mib": device.memory_mib or None,
        "numa": device.numa if device.numa >= 0 else None,
        "mig": device.mig if device.mig >= 0 else None,
    }
