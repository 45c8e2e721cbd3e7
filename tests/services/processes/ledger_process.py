"""A process that uses the machine's GPU ledger by commands, one a line: the ledger's tests start and kill it.

    python -I ledger_process.py DIRECTORY CARDS                  lines of JSON on stdin, an answer to each on stdout
    python -I ledger_process.py DIRECTORY CARDS storm N WITNESS  N reservations of random size, each witnessed

The witness is a file per GPU, made with O_EXCL and removed before the GPU is given back: should two ever hold one
GPU, the second finds the file.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger


def fake_devices(count: int) -> tuple[Device, ...]:
    """``count`` devices that are nowhere."""
    return tuple(Device(f"GPU-{place}", place, place) for place in range(count))


def main(argv: list[str]) -> int:
    """Serve stdin, or be a part of a storm."""
    devices = fake_devices(int(argv[1]))
    ledger = MachineLedger(argv[0], docker_host="unix:///nowhere", discover=lambda: devices)
    if argv[2:3] == ["storm"]:
        return storm(ledger, len(devices), int(argv[3]), argv[4])
    kept: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = serve(ledger, kept, **asked)
        except DlappError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


def serve(ledger: MachineLedger, kept: dict[str, Any], do: str, name: str = "", **more: Any) -> dict[str, Any]:
    """Carry out one line."""
    if do == "close":
        kept.pop(name).close()
    elif do == "release":
        kept.pop(name).release()
    elif do == "ticket":
        kept[name] = ledger.ticket(**more)
    elif do == "reserve":
        if "ticket" in more:
            more["ticket"] = kept[more["ticket"]]
        kept[name] = ledger.reserve(**more)
    elif do == "lease":
        kept[name] = ledger.lease(LeaseRequest(**more))
    elif do == "holders":
        return {uuid: str(holder) for uuid, holder in ledger.holders().items()}
    elif do == "reclaim":
        ledger.reclaim(**more)
    elif do == "child":
        # A process that inherits what is held, as a payload does.
        for fd in kept[name].fds:
            os.set_inheritable(fd, True)
        child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        return {"pid": child}
    held = kept.get(name)
    return {"devices": [device.index for device in getattr(held, "devices", ())]}


def storm(ledger: MachineLedger, there: int, operations: int, witness: str) -> int:
    """Reserve, lease, check, give back; the exit code is 1 when somebody else had one of our GPUs."""
    me, choice = f"application_1_{os.getpid():04d}", random.Random(os.getpid())
    for _ in range(operations):
        count = choice.randint(1, there)
        try:
            with ledger.ticket(me, count, since_ms=time.time_ns() // 1_000_000) as ticket:
                while True:
                    try:
                        reservation = ledger.reserve(me, count, ticket=ticket)
                        break
                    except NotEnough:
                        time.sleep(choice.uniform(0, 0.002))
            with reservation:
                lease = ledger.lease(LeaseRequest(me, "c", "tony", count), timeout_s=5)
                paths = [os.path.join(witness, device.uuid) for device in lease.devices]
                for path in paths:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                for path in paths:
                    os.unlink(path)
                lease.release()
        except FileExistsError as error:
            print(f"held by two: {error.filename}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
