"""Records of leases in the machine's GPU ledger whose locks are free: whether their payloads still use the devices."""

from __future__ import annotations

import os
import time

from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.stores.device_files import Entry, file_name, parts, text_of
from dlapp.system.owners import user_text

_ONE_USER = 0.4
"""Share of a check's time that the records of one user may take, so that the records of others are checked, too."""


class RecordLiveness:
    """Checks of records with free locks, within a time for all of them.

    Args:
        probes: the sources of evidence about a payload.
        problems: takes remarks on records that hold nothing: path -> remark.
        directory: the ledger's, for these paths.
    """

    def __init__(self, probes: LivenessProbes, problems: dict[str, str], directory: str) -> None:
        self.boot_id = probes.boot_id
        self._probes, self._problems, self._directory = probes, problems, directory
        self._until = 0.0
        self._patience_s = 0.0
        self._left_s: dict[int, float] = {}
        self._gone: set[tuple[str, str, int]] = set()

    def begin(self, patience_s: float) -> None:
        """Let the checks from now on take at most ``patience_s`` [s]."""
        self._until, self._patience_s, self._left_s = time.monotonic() + patience_s, _ONE_USER * patience_s, {}

    def check(self, one: Entry) -> Liveness:
        """Return whether the payload of a lease with a free lock is gone; without evidence the lock decides.

        A record of several devices is checked for each: a process on one of them keeps no other one.
        """
        evidence, boot_id = one.record.get("evidence"), one.record.get("boot_id")
        key = one.name, one.device, one.changed_ns
        if key in self._gone or not isinstance(evidence, dict) or not evidence or boot_id != self.boot_id:
            return Liveness(GONE)
        # Its own lock is known to be free, and no other directory is read.
        others = {name: value for name, value in evidence.items() if name != "lock"}
        began_s = time.monotonic()
        until = min(self._until, began_s + self._left_s.get(one.uid, self._patience_s))
        finding = self._probes.check(others, str(boot_id), [uuid_of(one)], owner=one.uid, until=until)
        self._left_s[one.uid] = until - time.monotonic()
        if finding.state == UNKNOWN and one.uid != os.geteuid():
            # A user without access to dockerd still sees computing processes by the driver.
            check_gpu_processes = self._probes.check_gpu_processes([uuid_of(one)])
            return check_gpu_processes if check_gpu_processes.state == ALIVE else finding
        if finding.state == GONE:
            self._gone.add(key)
        return finding

    def doubt(self, one: Entry) -> str:
        """Return why a lease whose lock is free may still be in use; empty: it is not."""
        if not one.is_lease or one.is_live or (finding := self.check(one)).state == GONE:
            return ""
        if finding.state == ALIVE:
            return "its payload is still running"
        if one.uid == os.geteuid():
            return "it is not known if its payload is gone"
        # Anybody can write a record of a payload that nobody here can know of.
        self._problems[os.path.join(self._directory, one.name)] = f"holds no GPU: {who_removes(one, finding.why)}"
        return ""

    def has_ended(self, one: Entry) -> bool:
        """Return whether a record with a free lock holds none of its devices any more."""
        return one.is_reservation or all(self.check(part).state == GONE for part in parts(one))

    def remove_leftovers(self, one: Entry) -> bool:
        """Remove what a dead task left in Docker; see `LivenessProbes.remove_leftovers`."""
        evidence = {name: value for name, value in one.record["evidence"].items() if name != "lock"}
        return self._probes.remove_leftovers(evidence, self.boot_id, owner=one.uid, until=self._until)


def uuid_of(one: Entry) -> str:
    """Return the uuid in a record if it is that of the device's file; else the file's name."""
    uuid = text_of(one.record, "uuid")
    return uuid if file_name(uuid) == one.device else one.device


def who_removes(one: Entry, why: str) -> str:
    """Return ``why``, and who can remove a record that cannot be verified."""
    who = user_text(one.uid) if one.uid == 0 else f"{user_text(one.uid)} or root"
    return f"{why}; if nothing of it runs, {who} removes {one.name}"
