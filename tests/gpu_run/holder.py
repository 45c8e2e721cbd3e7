"""The hold on the GPU of the run: python -m tests.gpu_run.holder LOCK_DIR [stub]

It selects an idle GPU, takes it in the machine's own ledger where that exists, so that no other user's application
gets it meanwhile, and keeps it until its standard input ends. In the ledger of the run (LOCK_DIR) it puts all other
GPUs into quarantine, so that the applications of the run get this one. It prints one line: the GPU as JSON, or
``error``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from dlapp.config import load_config
from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import nvml
from dlapp.gpuid.health.inspection import Inspector, classify_reading, host_limits
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.owners import user_text
from dlapp.values.serialization import to_json

WHO = "make test-gpu"
MACHINE_LEDGER = Path("/run/lock/dlapp")
"""The default of gpuid.lock_dir; the run does not read the user's configuration."""


def main(argv: list[str]) -> int:
    """Select, hold, and wait."""
    try:
        with contextlib.ExitStack() as held:
            device, devices = select(held, stub="stub" in argv[1:])
            set_apart(Path(argv[0]), device, devices)
            answer: dict[str, Any] = {
                **to_json(device),
                "count": len(devices),
                "uuids": [item.uuid for item in devices],
            }
            print(json.dumps(answer), flush=True)
            sys.stdin.read()
    except DlappError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


def select(held: contextlib.ExitStack, *, stub: bool) -> tuple[Device, tuple[Device, ...]]:
    """Return an idle GPU, and all of the machine. Raises DlappError: none is idle, or NVML does not work."""
    devices = nvml.discover()
    if not devices:
        raise DlappError("NVML shows no GPU")
    if not stub and MACHINE_LEDGER.is_dir():
        ledger = MachineLedger(
            str(MACHINE_LEDGER), docker_host=load_config().runtime.docker.host, inspect=Inspector(read=nvml.read)
        )
        ask = LeaseRequest(application=WHO, container=f"{WHO} {os.getpid()}", user=user_text(os.geteuid()), gcores=1)
        lease = held.enter_context(ledger.acquire(ask))
        held.callback(lease.release)
        return lease.devices[0], devices
    readings, limits, why = nvml.read(devices), host_limits(), []
    for device in devices:
        if (fault := classify_reading(readings[device.uuid], limits)) is None:
            return device, devices
        why.append(f"{device.label}: {fault.detail}")
    raise DlappError(f"no GPU is idle: {'; '.join(why)}")


def set_apart(lock_dir: Path, device: Device, devices: tuple[Device, ...]) -> None:
    """Put all GPUs but one into quarantine in a ledger."""
    ledger = MachineLedger(str(lock_dir), docker_host=load_config().runtime.docker.host)
    for item in devices:
        if item.uuid != device.uuid:
            ledger.quarantine(item.uuid, cause="operator", detail=f"not of this {WHO}", by=WHO)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
