"""GPUs managed by a NodeManager: with ``yarn.io/gpu`` it chooses the devices of a container, and keeps the ledger.

dlapp locks the GPUs in the machine's ledger, so that no application of the embedded engine gets them too, and keeps
their quarantine there: a container that is given a GPU in quarantine does not use it.

The NodeManager's web address reports the devices of the running containers:

    GET /ws/v1/node/resources/yarn.io%2Fgpu
    {"totalGpuDevices": [{"index": 0, "minorNumber": 0}, …],
     "assignedGpuDevices": [{"index": 0, "minorNumber": 0, "containerId": "container_…"}, …], …}

A device is identified by its minor number: with the LinuxContainerExecutor a container sees only its own GPUs, and NVML
numbers the visible ones from 0. A NodeManager of 3.5.0 leaves out both numbers (``{"containerId": "container_…"}``).
Then the GPUs that the container sees are its own, if they are as many as it was given.

For each request the NodeManager runs ``nvidia-smi`` and waits for it, one at a time, also for a client that has gone.
So the tasks of a node ask one after another, and none asks again before its answer, or a long time limit.

Source: NMWebServices.getNMResourceInfo, NMGpuResourceInfo, AssignedGpuDevice, GpuDiscoverer, Hadoop 3.1 and later.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlapp.errors import Unreachable
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.driver_load import driver_load
from dlapp.gpuid.health.inspection import is_closed
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.ledger import Inspect, LeaseStatus, uninspected
from dlapp.gpuid.needs import asked_text, inventory_text
from dlapp.gpuid.rules import DeviceRecord, HostRecord, InQuarantine, LeaseRequest, LedgerError
from dlapp.gpuid.stores.host_lock import waiting_lock
from dlapp.gpuid.stores.locked_devices import HeldDevices
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.hadoop.web import NoAddress, Web
from dlapp.system import clock
from dlapp.value import replace

_PATH = "/ws/v1/node/resources/yarn.io%2Fgpu"
TURN = "node-manager"
"""Name of the lock file for which the tasks of a node wait before they ask."""
TURN_S = 120.0
"""How long a task waits for the others: sixteen containers of a node whose nvidia-smi takes 5 s need 80 s. Then it asks
without the lock: any user of the machine can hold it."""
ANSWER_S = 60.0
"""Time limit of an answer. The NodeManager ends nvidia-smi after 10 s, and its own polls and the requests of killed
tasks may come first."""
_AGAIN_S = 0.5
UNKNOWN = -1
"""Number of a device that the NodeManager leaves out."""
_MAX_MESSAGE = 200


class NodeManagerGpuLedger:
    """Ledger of a task (`dlapp.gpuid.ledger.Ledger`) whose NodeManager assigns the devices.

    Args:
        web: the NodeManager's web address, ``node7:8042``.
        directory: of the machine's ledger.
        docker_host: the dockerd that is asked for containers; empty: none.
        certificates: CA certificates (PEM) of the NodeManager's web server; empty: OpenSSL's default.
        inspect: checks the health of the given GPUs before they are used.
        nvml: calls NVML; None: a process of its own.
        discover: lists the GPUs that NVML shows here; None: NVML does.
        answer_s: time limit of an answer of the NodeManager [s].
    """

    def __init__(
        self,
        web: str,
        directory: str,
        *,
        docker_host: str = "",
        certificates: str = "",
        inspect: Inspect = uninspected,
        nvml: NvmlProcess | None = None,
        discover: Callable[[], tuple[Device, ...]] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._url, self._certificates, self._answer_s = f"{web}{_PATH}", certificates, answer_s
        self._machine = MachineLedger(directory, docker_host=docker_host, nvml=nvml, discover=discover, inspect=inspect)
        self._sleep = sleep

    @property
    def host(self) -> str:
        """Return the name of this machine."""
        return os.uname().nodename

    def reach(self, *, timeout_s: float) -> None:
        """Do nothing: each call of `acquire` sends a request."""

    def acquire(self, request: LeaseRequest, *, timeout_s: float = 0.0) -> HeldDevices:
        """Lock the devices that the NodeManager assigned to ``request.container``, and frees when that has ended.

        Raises:
            InQuarantine: a GPU that it assigned is in quarantine, or all are that this container sees.
            LedgerError: it assigned none, another number, or GPUs with less memory than asked for, NVML does not know
                them, or the machine's ledger has another holder for longer than ``timeout_s``: then none is used, and
                never all.
            Unreachable: the NodeManager does not answer; it may still be busy with the request.
        """
        self._refuse_quarantined(request)
        with self._turn():
            granted = assigned(self._read(), request.container)
        if len(granted) != request.gcores:
            raise LedgerError(
                f"{self._url} names {len(granted)} GPUs of {request.container}, and it asked for {request.gcores}"
            )
        devices, token = matched(granted, self._machine.devices()), secrets.token_hex(16)
        if not all(map(request.need.accepts, devices)):
            asked, given = asked_text(request.demands, devices), inventory_text(devices)
            raise LedgerError(f"{self.host}: asked for {asked}, YARN gave {request.container} {given}")
        deadline = time.monotonic() + timeout_s
        while isinstance(held := self._machine.hold(devices, request, token=token), dict):
            if time.monotonic() >= deadline:
                who = "; ".join(str(held[one.uuid]) for one in devices if one.uuid in held)
                raise LedgerError(f"{self.host}: YARN gave {request.container} what is not free on this machine: {who}")
            self._sleep(_AGAIN_S)
        with contextlib.ExitStack() as kept:
            kept.callback(held.release)
            if out := self._machine.inspect_held(held):
                label = {one.uuid: one.label for one in devices}
                raise InQuarantine(self._refusal(request, [(label[one.uuid], one) for one in out]))
            kept.pop_all()
        return held

    @property
    def directory(self) -> str:
        """Return the path of the directory of this machine's ledger."""
        return self._machine.directory

    @property
    def problems(self) -> Mapping[str, str]:
        """Return the problems of this machine's files, by path."""
        return self._machine.problems

    def record(self) -> HostRecord:
        """Return the record of this machine's own ledger, with the GPUs that are visible here."""
        return self._machine.record()

    def remove_excess(self) -> None:
        """Remove files of the machine's ledger that are not read."""
        self._machine.remove_excess()

    def reclaim(self) -> list[LeaseStatus]:
        """End leases of the machine's ledger whose payload is gone."""
        return self._machine.reclaim()

    def quarantine(self, name: str, **options: Any) -> None:
        """Put a device into quarantine in the machine's ledger; ``options`` as in `dlapp.gpuid.ledger.Ledger`.

        The NodeManager assigns it nevertheless; containers that are given it do not use it.
        """
        self._machine.quarantine(name, **options)

    def quarantine_all(self, **options: Any) -> None:
        """Put all devices into quarantine in the machine's ledger; ``options`` as in `dlapp.gpuid.ledger.Ledger`."""
        self._machine.quarantine_all(**options)

    def heal(self, name: str, **options: Any) -> bool:
        """End the quarantine of a device; ``options`` as in `dlapp.gpuid.ledger.Ledger`."""
        return self._machine.heal(name, **options)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _refuse_quarantined(self, request: LeaseRequest) -> None:
        """Refuse a container at once, before the slow answer of the NodeManager, if it cannot have healthy GPUs.

        Raises:
            InQuarantine: fewer of the GPUs that it sees may be used than it was given.
        """
        now_ms = clock.now_ms()
        record, driver = self._machine.record(), driver_load()
        there = [one for one in record.devices if one.present and request.need.accepts(one.device)]
        # A condition may be over: the GPUs are inspected when it is known which they are.
        out = [one for one in there if is_closed(one, record.boot_id, now_ms, driver)]
        if out and len(there) - len(out) < request.gcores:
            raise InQuarantine(self._refusal(request, [(one.device.label, one) for one in out]))

    def _refusal(self, request: LeaseRequest, out: Sequence[tuple[str, DeviceRecord]]) -> str:
        which = ", ".join(f"{label} ({one.uuid}) is {one.quarantine}" for label, one in out)
        return f"{self.host}: YARN gave {request.container} GPUs that must not be used: {which}"

    def _turn(self) -> contextlib.AbstractContextManager[bool]:
        return waiting_lock(self.directory, TURN, timeout_s=TURN_S, sleep=self._sleep)

    def _read(self) -> Any:
        try:
            with Web(self._answer_s, self._certificates) as web:
                answer = web.call("GET", self._url)
            if answer.good:
                return json.loads(answer.body)
        except (Unreachable, NoAddress, ValueError, RecursionError) as error:
            raise Unreachable(f"{self._url}: {error}") from error
        if answer.status == 404:
            raise LedgerError(f"{self._url}: status 404; the NodeManager has no plug-in yarn.io/gpu")
        raise LedgerError(f"{self._url}: status {answer.status}: {_message(answer.body)}")


def assigned(answer: Any, container: str) -> list[tuple[int, int]]:
    """Return index and minor number of each device that the answer assigns to ``container``; `UNKNOWN`: left out.

    In some releases a list of one is returned as its element, and the whole answer is wrapped in an outer object.

    Raises:
        LedgerError: the answer is invalid, or the node has no GPU plug-in. Source: NodeManagers of 3.4.2 and 3.5.0.
    """
    if answer in ({}, None):  # None is Hadoop 2.10's
        raise LedgerError("the NodeManager reports no GPUs; it has no plug-in yarn.io/gpu")
    if isinstance(answer, dict) and len(answer) == 1 and isinstance(inner := next(iter(answer.values())), dict):
        answer = inner
    try:
        devices = answer.get("assignedGpuDevices") or []
        found = devices if isinstance(devices, list) else [devices]
        return sorted(_numbers(one) for one in found if one["containerId"] == container)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"the NodeManager's answer on its GPUs is not understood: {error!r}") from error


def _numbers(device: Mapping[str, Any]) -> tuple[int, int]:
    if device.keys().isdisjoint(("index", "minorNumber")):
        return UNKNOWN, UNKNOWN
    return int(device["index"]), int(device["minorNumber"])


def matched(granted: Sequence[tuple[int, int]], devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the GPUs with these minor numbers, with the indexes used by their node.

    If the NodeManager gave no numbers, these are all GPUs that the container sees, with the indexes that it sees.

    Raises:
        LedgerError: there is no such number here, the container sees more or fewer GPUs than it was given, or a GPU is
            split (MIG), which yarn.io/gpu does not support.
    """
    if (UNKNOWN, UNKNOWN) in granted:
        if len(devices) != len(granted) or any(one.mig >= 0 for one in devices):
            raise LedgerError(
                f"the NodeManager does not say which GPUs it gave (Hadoop 3.5.0): it gave {len(granted)}, and this "
                f"container sees {len(devices)}; the NodeManager must isolate them (LinuxContainerExecutor, "
                "module gpu of container-executor.cfg)"
            )
        return tuple(devices)
    found = []
    for index, minor in granted:
        of_it = [device for device in devices if device.minor == minor]
        if len(of_it) != 1 or of_it[0].mig >= 0:
            there = "is split by MIG" if of_it else "is not among the GPUs that NVML shows here"
            raise LedgerError(f"the NodeManager gave GPU {index} (/dev/nvidia{minor}), which {there}")
        found.append(replace(of_it[0], index=index))
    return tuple(found)


def _message(body: bytes) -> str:
    """Return the message in Hadoop's answer of an error, one line."""
    try:
        text = str(json.loads(body)["RemoteException"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return "no reason is given"
    return " ".join(text.split())[:_MAX_MESSAGE]
