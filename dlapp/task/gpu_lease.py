"""GPUs of a task: leased from the ledger before its payload is created, released when nothing uses them any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dlapp.errors import UsageError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.factory import open_ledger
from dlapp.gpuid.health.inspection import Inspector
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.health.watch import DeviceUse
from dlapp.gpuid.ledger import Lease, reclaim_all
from dlapp.gpuid.liveness.probes import this_task
from dlapp.gpuid.needs import DeviceNeed
from dlapp.gpuid.rules import LeaseRequest, check_indexes
from dlapp.runtime.docker.labels import LABEL_CONTAINER
from dlapp.runtime.payload import PayloadPlace
from dlapp.system.waits import Wait
from dlapp.task.environment import node_name
from dlapp.task.gpu_health import LeasedDevices
from dlapp.task.payload.ownership import OwnProcesses
from dlapp.task.step_errors import REACH_S
from dlapp.values.launch_spec import LaunchSpec, LedgerSettings
from dlapp.values.messages import Assignment
from dlapp.values.spec import BY_INDEX


class GpuLease:
    """Lease of the GPUs of one container.

    Attributes:
        service: name for users of the service that leasing depends on; empty if it depends on none.

    Raises:
        UsageError: there is no ledger.
    """

    def __init__(
        self,
        assignment: Assignment,
        launch: LaunchSpec,
        container_dir: str,
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._assignment, self._launch, self._container_dir = assignment, launch, container_dir
        self._note, self._warn = note, warn
        settings = _settings(launch)
        self.service = f"ZooKeeper at {settings.ensemble}" if settings.ensemble else ""
        self._waits_for = ""
        if settings.web:
            # The NodeManager, which assigns the GPUs, runs nvidia-smi for each answer.
            self.service = self._waits_for = f"the NodeManager on {node_name()}"
        self._nvml = NvmlProcess()
        inspect = Inspector(read=self._nvml.read)
        self._ledger = open_ledger(settings, _web_certificates(launch), inspect=inspect, nvml=self._nvml)
        self._lease: Lease | None = None
        self._health: LeasedDevices | None = None

    def acquire(self) -> None:
        """Lease the GPUs. Call once.

        Raises:
            Unreachable: ZooKeeper or the NodeManager does not answer; the caller may retry.
            DlappError: they cannot be leased.
        """
        one, gcores, timeout_s = self._assignment, self._assignment.resources.gcores, self._launch.lease_timeout_s
        if one.live is not None and _settings(self._launch).covers_cluster:
            timeout_s = one.live.lease_timeout_s
        # A plain payload inherits the lease's descriptors; one in Docker cannot.
        evidence = self._evidence_of_docker() if one.docker_image else {}
        ask = LeaseRequest(
            application=str(one.application_id),
            container=str(one.container_id),
            user=one.username,
            gcores=gcores,
            evidence=evidence,
            spread=one.spread,
            role=one.role,
            container_index=str(one.index),
            need=DeviceNeed(one.gpu, one.gpu_memory_mb),
        )
        self._ledger.reach(timeout_s=REACH_S)
        free = f"{gcores} free GPU{'' if gcores == 1 else 's'} of this node"
        with Wait(self._waits_for or free, None if self._waits_for else timeout_s):
            self._lease = self._ledger.acquire(ask, timeout_s=timeout_s)
        if one.cuda_visible_devices == BY_INDEX and one.docker_image is None:
            check_indexes(self._ledger.record())
        self._health = LeasedDevices(self._ledger, self._nvml, self._lease.devices, self._note, self._warn)
        # A payload runs for days. With permanent sessions, the restart of an ensemble would get all of them back at
        # once; so a release reconnects.
        self._ledger.close()

    @property
    def devices(self) -> Sequence[Device]:
        """Return the leased devices; empty before the lease and after the release."""
        return () if self._lease is None else self._lease.devices

    @property
    def indexes(self) -> tuple[int, ...]:
        """Return the indexes of the leased devices, in NVML's PCI order."""
        return tuple(one.index for one in self.devices)

    @property
    def nvml_pids(self) -> Collection[int]:
        """Return the processes of this task that call NVML: a hanging driver does not let them end."""
        return self._nvml.pids

    @property
    def is_exclusive(self) -> bool:
        """Return whether a leased device allows only one process, by its compute mode."""
        return any(one.compute_mode == "exclusive" for one in self.devices)

    @property
    def fds(self) -> Sequence[int]:
        """Return the descriptors that hold the lease while the payload lives."""
        return () if self._lease is None else self._lease.fds

    def watched(
        self, wake: Callable[[], None], places: Callable[[], Collection[PayloadPlace]]
    ) -> AbstractContextManager[None]:
        """Monitor the devices during a block; other processes than the payloads' are named.

        Args:
            wake: called from another thread when a device has failed.
            places: returns, to another thread, where the payloads run.
        """
        assert self._health is not None
        own = OwnProcesses(in_docker=self._assignment.docker_image is not None, places=places)
        return self._health.watched(wake, own)

    @property
    def use(self) -> Mapping[str, DeviceUse]:
        """Return the usage of the devices while payloads ran, by uuid; empty after the release."""
        return {} if self._health is None else self._health.use

    @property
    def has_failed(self) -> bool:
        """Return True if a device has failed under the payload."""
        return self._health is not None and self._health.failed

    def failure_message(self) -> str:
        """Return a line on the GPUs of a failed payload; empty if they are not the cause."""
        return "" if self._health is None else self._health.failure_message()

    def xid_message(self, devices: Sequence[Device] | None = None) -> str:
        """Return a line on the Xid error that ended a payload which has just failed; empty: none did.

        Args:
            devices: those of the payload; None: all.
        """
        return "" if self._health is None else self._health.xid_message(devices)

    def foreign_use(self) -> str:
        """Return how much memory of the GPUs other processes used when the payload failed; see `LeasedDevices`."""
        return "" if self._health is None else self._health.foreign_use()

    def release(self) -> None:
        """Release the GPUs, which nothing uses any more. Idempotent.

        If the driver hangs, the lease stays until this process ends, and then as long as its evidence does not say that
        the payload is gone. A later call tries again.
        """
        if self._health is not None:
            if not self._health.quarantine_failed():
                self._ledger.close()
                self._nvml.close()
                return
            self._health = None
        if self._lease is not None:
            if not self._lease.release():
                self._warn("the GPU ledger cannot be reached: the GPUs are free when others detect this task's end")
            self._lease = None
        self._ledger.close()
        self._nvml.close()

    def _evidence_of_docker(self) -> dict[str, Any]:
        label = f"{LABEL_CONTAINER}={self._assignment.container_id}"
        # With the task's name, another task that needs the GPUs may remove leftovers of this one after its death.
        return {
            "task": this_task(),
            "fifo": os.path.join(self._container_dir, "life"),
            "docker": {"host": self._launch.docker.host, "label": label},
        }


def collected_gpus(launch: LaunchSpec) -> Mapping[str, Any]:
    """Reclaim the leases of this host whose holders have died; return them by host name.

    Raises:
        DlappError: there is no ledger, or it is unreachable.
    """
    ledger = open_ledger(_settings(launch), _web_certificates(launch))
    try:
        return {"host": ledger.host, "leases": reclaim_all(ledger)}
    finally:
        ledger.close()


def _web_certificates(launch: LaunchSpec) -> str:
    """Return the CA certificates (PEM) of YARN's web servers: those of HDFS."""
    return "" if launch.hdfs is None else launch.hdfs.certificates


def _settings(launch: LaunchSpec) -> LedgerSettings:
    if launch.ledger is None:
        raise UsageError("there is no GPU ledger")
    return launch.ledger
