"""The ledger of a worker's plan, whole or with one of the mistakes that are easily made; the history must show them.

session       what a lost session of ZooKeeper held is taken for free
no-evidence   what others hold is taken for free without asking
unknown       what cannot be known is taken for gone
recreate      an empty record is deleted, and made again by the next
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from kazoo.exceptions import NodeExistsError

from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import GONE, UNKNOWN, Liveness
from dlapp.gpuid.rules import LeaseRecord
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from tests.services.processes.ledger_process import fake_devices
from tests.services.zookeeper import ledger_settings

PLANTS = ("session", "no-evidence", "unknown", "recreate")


class _Planted(LivenessProbes):
    def __init__(self, plant: str) -> None:
        super().__init__()
        self.plant = plant
        self.ledger: OnZooKeeper | None = None

    def check(self, evidence: Mapping[str, Any], boot_id: str, uuids: Iterable[str] = (), **more: Any) -> Liveness:
        if self.plant == "no-evidence":
            return Liveness(GONE)
        if self.plant == "session" and self.ledger is not None and self.ledger.is_over(evidence["session"]):
            return Liveness(GONE)
        found = super().check(evidence, boot_id, uuids, **more)
        return Liveness(GONE) if found.state == UNKNOWN and self.plant == "unknown" else found


class OnZooKeeper(ZooKeeperLedger):
    """Ledger with the mistakes that need its inside."""

    plant = ""

    def planted_evidence(self, container: str) -> dict[str, str]:
        if self.plant != "session":
            return {}
        path = f"/sessions/{container}"
        deadline = self._clock() + 60
        with contextlib.suppress(NodeExistsError):  # by a call whose answer was lost
            self._ensemble._call(lambda client: client.create_async(path, b"", ephemeral=True, makepath=True), deadline)
        return {"session": path}

    def is_over(self, path: str) -> bool:
        """Return whether the session that made a node is."""
        return self._ensemble._call(lambda client: client.exists_async(path), self._clock() + 60) is None

    def _release_now(self, lease: LeaseRecord, wait_s: float) -> None:
        super()._release_now(lease, wait_s)
        if self.plant == "recreate" and not self.record().leases:
            with contextlib.suppress(Exception):
                self._ensemble._client.delete(f"{self._hosts_path}/{self.host}")


class OnMachine(MachineLedger):
    """Without mistakes of its own."""

    def planted_evidence(self, container: str) -> dict[str, str]:
        return {}


def open_planted(plan: dict[str, Any]) -> OnZooKeeper | OnMachine:
    """The ledger of a plan; ``plan["plant"]`` names the mistake."""
    plant, devices = plan["plant"], fake_devices(plan["cards"])
    probes = _Planted(plant)
    if plan["store"] == "machine":
        return OnMachine(plan["directory"], discover=lambda: devices, probes=probes)
    ledger = OnZooKeeper(
        ledger_settings(**plan["settings"]), host=plan["host"], discover=lambda: devices, probes=probes
    )
    ledger.plant, probes.ledger = plant, ledger
    return ledger
