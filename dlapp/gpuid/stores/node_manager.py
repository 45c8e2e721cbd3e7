"""GPUs managed by a NodeManager: with ``yarn.io/gpu`` it chooses the devices of a container, and keeps the ledger.

dlapp only locks the GPUs in the machine's ledger, so that no application of the embedded engine gets them too.

The NodeManager's web address reports the devices of the running containers:

    GET /ws/v1/node/resources/yarn.io%2Fgpu
    {"totalGpuDevices": [{"index": 0, "minorNumber": 0}, …],
     "assignedGpuDevices": [{"index": 0, "minorNumber": 0, "containerId": "container_…"}, …], …}

A device is identified by its minor number: with the LinuxContainerExecutor a container sees only its own GPUs, and NVML
numbers the visible ones from 0.

Source: NMWebServices.getNMResourceInfo, NMGpuResourceInfo, AssignedGpuDevice, Hadoop 3.1 and later.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlapp.errors import Unreachable
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import nvml
from dlapp.gpuid.rules import HostRecord, LeaseRequest, LedgerError
from dlapp.gpuid.stores.locked_devices import HeldDevices
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.hadoop.web import NoAddress, Web
from dlapp.value import replace

_PATH = "/ws/v1/node/resources/yarn.io%2Fgpu"
_TIMEOUT_S, _AGAIN_S = 5.0, 0.5


class NodeManagerGpuLedger:
    """Ledger of a task (`dlapp.gpuid.ledger.Ledger`) whose NodeManager assigns the devices.

    Args:
        web: the NodeManager's web address, ``node7:8042``.
        docker_host: the dockerd that is asked for containers; empty: none.
        certificates: CA certificates (PEM) of the NodeManager's web server; empty: OpenSSL's default.
        discover: lists the GPUs that NVML shows here.
    """

    def __init__(
        self,
        web: str,
        directory: str,
        *,
        docker_host: str = "",
        certificates: str = "",
        discover: Callable[[], tuple[Device, ...]] = nvml.discover,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url, self._certificates = f"{web}{_PATH}", certificates
        self._machine = MachineLedger(directory, docker_host=docker_host, discover=discover)
        self._discover, self._sleep = discover, sleep

    @property
    def host(self) -> str:
        """Return the name of this machine."""
        return os.uname().nodename

    def reach(self, *, timeout_s: float) -> None:
        """Do nothing: each call of `acquire` sends a new request."""

    def acquire(self, request: LeaseRequest, *, timeout_s: float = 0.0) -> HeldDevices:
        """Lock the devices that the NodeManager assigned to ``request.container``, and frees when that has ended.

        Raises:
            LedgerError: it assigned none, or another number, NVML does not know them, or the machine's ledger has
                another holder for longer than ``timeout_s``: then none is used, and never all.
            Unreachable: the NodeManager does not report it within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                granted = assigned(self._read(), request.container)
                break
            except Unreachable:
                if time.monotonic() >= deadline:
                    raise
                self._sleep(_AGAIN_S)
        if len(granted) != request.gcores:
            raise LedgerError(
                f"{self._url} names {len(granted)} GPUs of {request.container}, and it asked for {request.gcores}"
            )
        devices, token = matched(granted, self._discover()), secrets.token_hex(16)
        while isinstance(held := self._machine.hold(devices, request, token=token), dict):
            if time.monotonic() >= deadline:
                who = "; ".join(str(held[one.uuid]) for one in devices if one.uuid in held)
                raise LedgerError(f"{self.host}: YARN gave {request.container} what is not free on this machine: {who}")
            self._sleep(_AGAIN_S)
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
        """Raise LedgerError: a NodeManager has no record."""
        raise LedgerError("with yarn.io/gpu the NodeManager owns the GPUs; there is no ledger")

    def reclaim(self) -> list[Any]:
        """Do nothing: no device is leased here."""
        return []

    def quarantine(self, name: str, **_: Any) -> None:
        """Raise LedgerError: a NodeManager's devices are configured by its operator (``allowed-gpu-devices``)."""
        raise LedgerError(f"the NodeManager owns {name}: take it out of yarn.nodemanager.resource-plugins.gpu")

    def heal(self, name: str, **_: Any) -> bool:
        """Raise LedgerError, as `quarantine` does."""
        self.quarantine(name)
        return False

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _read(self) -> Any:
        try:
            with Web(_TIMEOUT_S, self._certificates) as web:
                answer = web.call("GET", self._url)
            if answer.good:
                return json.loads(answer.body)
        except (Unreachable, NoAddress, ValueError, RecursionError) as error:
            raise Unreachable(f"{self._url}: {error}") from error
        raise LedgerError(f"{self._url}: status {answer.status}; the NodeManager has no plug-in yarn.io/gpu")


def assigned(answer: Any, container: str) -> list[tuple[int, int]]:
    """Return index and minor number of each device that the answer assigns to ``container``.

    In some releases a list of one is returned as its element, and the whole answer is wrapped in an outer object.

    Raises:
        LedgerError: the answer is invalid, or the node has no GPU plug-in. Source: a NodeManager of 3.4.2.
    """
    if answer in ({}, None):  # None is Hadoop 2.10's
        raise LedgerError("the NodeManager reports no GPUs; it has no plug-in yarn.io/gpu")
    if isinstance(answer, dict) and len(answer) == 1 and isinstance(inner := next(iter(answer.values())), dict):
        answer = inner
    try:
        devices = answer.get("assignedGpuDevices") or []
        found = devices if isinstance(devices, list) else [devices]
        return sorted((int(one["index"]), int(one["minorNumber"])) for one in found if one["containerId"] == container)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"the NodeManager's answer on its GPUs is not understood: {error!r}") from error


def matched(granted: Sequence[tuple[int, int]], devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the GPUs with these minor numbers, with the indexes used by their node.

    Raises:
        LedgerError: there is no such number here, or the GPU is split (MIG), which yarn.io/gpu does not support.
    """
    found = []
    for index, minor in granted:
        of_it = [device for device in devices if device.minor == minor]
        if len(of_it) != 1 or of_it[0].mig >= 0:
            there = "is split by MIG" if of_it else "is not among the GPUs that NVML shows here"
            raise LedgerError(f"the NodeManager gave GPU {index} (/dev/nvidia{minor}), which {there}")
        found.append(replace(of_it[0], index=index))
    return tuple(found)
