"""Xid errors of GPUs: their table, and what follows from each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from dlapp.config import MAX_XID, XID_CLASSES
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample
from dlapp.gpuid.health.watch import DeviceWatch
from dlapp.gpuid.health.xids import XidClass, XidTable, read_table
from tests.services.polling import PATIENCE_S

DEVICES = (Device("GPU-0", 0, 0), Device("GPU-1", 1, 1))
SOURCES = {"catalog", "errors", "memory"}


# ---- the table ----


def test_the_table_has_each_code_of_the_catalog_once_with_a_class_a_meaning_and_a_source() -> None:
    rows = read_table()
    assert [row.code for row in rows] == list(range(1, 173))
    assert all(row.meaning and row.source and set(row.source.split("+")) <= SOURCES for row in rows)
    assert {row.kind for row in rows} == set(XidClass)


@pytest.mark.parametrize(
    ("action", "kinds"),
    [
        ("IGNORE", {"ignore"}),
        ("RESET_GPU", {"reset"}),
        ("RESTART_BM", {"node"}),
        ("RESTART_VM", {"node"}),
        ("RESTART_APP", {"program", "program-probe"}),
        ("CONTACT_SUPPORT", {"program-probe"}),
        ("", {"ignore", "program-probe"}),
    ],
)
def test_the_class_of_a_code_follows_from_the_action_of_the_catalog(action: str, kinds: set[str]) -> None:
    assert {row.kind for row in read_table() if row.action == action} == kinds


def test_only_documented_fatal_codes_end_a_payload() -> None:
    ends = {row.code for row in read_table() if row.fault is not None}
    assert ends == {46, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158}
    asks = {row.code for row in read_table() if row.action in ("RESET_GPU", "RESTART_BM", "RESTART_VM")}
    assert ends == asks | {74}


@pytest.mark.parametrize("code", [63, 92, 94, 121, 137, 154, 43, 45])
def test_errors_that_the_driver_handled_end_no_payload(code: int) -> None:
    assert XidTable()[code].fault is None


def test_an_unknown_code_is_shown_and_ends_no_payload() -> None:
    found = XidTable()[4711]
    assert (str(found), found.fault) == ("Xid 4711: not known", None)


def test_an_operator_may_give_any_code_another_class() -> None:
    table = XidTable({63: "reset", 79: "ignore", 4711: "node"})
    faults = [table[code].fault for code in (63, 79, 4711)]
    detail = "a memory page or row is to be retired or remapped (Xid 63)"
    assert faults == [
        DeviceFault("needs-reset", detail, until="needs-reset"),
        None,
        DeviceFault("needs-reboot", "Xid 4711", until="needs-reboot"),
    ]
    assert table[31] == XidTable()[31]


def test_the_classes_of_the_configuration_are_those_of_the_table() -> None:
    assert tuple(XidClass) == XID_CLASSES
    assert max(row.code for row in read_table()) < MAX_XID


# ---- while a payload runs ----


class Driver:
    """Stand-in for NVML with Xid errors, turn by turn; the last turn repeats without any."""

    def __init__(self, *turns: Sequence[tuple[str, int]]) -> None:
        self.turns, self.ended = list(turns), threading.Event()

    def poll(self) -> dict[str, DeviceFault]:
        return {}

    def take_xids(self) -> list[tuple[str, int]]:
        if self.turns:
            return list(self.turns.pop(0))
        self.ended.set()
        return []

    def sample(self) -> dict[str, DeviceSample]:
        return {}

    def close(self) -> None:
        self.ended.set()


class Seen:
    """Xid errors as a watch tells of them."""

    def __init__(self, *turns: Sequence[tuple[str, int]], classes: Mapping[int, str] = {}) -> None:
        self.notes: list[str] = []
        self.recorded: list[Mapping[str, Mapping[int, int]]] = []
        driver = Driver(*turns)
        self.watch = DeviceWatch(
            DEVICES,
            note=self.notes.append,
            open=lambda _: driver,
            every_s=0.001,
            xids=XidTable(classes),
            on_xids=self.recorded.append,
        )
        with self.watch:
            assert driver.ended.wait(PATIENCE_S)
        self.notes.remove("the GPUs are monitored")

    def cause(self, *uuids: str) -> str:
        return self.watch.xid_message(uuids or ("GPU-0", "GPU-1"))


def test_ignore_is_noted_counted_and_neither_a_failure_nor_a_cause() -> None:
    seen = Seen([("GPU-0", 63), ("GPU-0", 63)], [("GPU-0", 63)])
    assert (seen.watch.failed, seen.cause()) == ({}, "")
    assert seen.watch.use["GPU-0"].xids == {63: 3}
    assert seen.notes == ["gpu0: Xid 63: a memory page or row is to be retired or remapped (ignore)"]
    assert seen.recorded == [{"GPU-0": {63: 2}}, {"GPU-0": {63: 1}}]


def test_a_program_xid_ends_no_payload_and_is_the_cause_if_the_program_fails() -> None:
    seen = Seen([("GPU-1", 31)], [("GPU-1", 43)])
    assert seen.watch.failed == {}
    assert (
        seen.cause() == "gpu1 reported Xid 31: page fault: a kernel used an address that is not mapped (the program's)"
    )
    assert seen.cause("GPU-0") == "", "the program has other GPUs"


def test_a_program_probe_xid_ends_no_payload_and_is_a_node_cause() -> None:
    seen = Seen([("GPU-0", 94)])
    assert seen.watch.failed == {}
    message = "contained memory error: only the programs that used it were ended"
    assert seen.cause() == f"gpu0 reported Xid 94: {message} (not the program's)"


def test_reset_is_a_failure_of_the_device() -> None:
    seen = Seen([("GPU-1", 109)])
    assert seen.watch.failed == {
        "GPU-1": DeviceFault("needs-reset", "a context switch timed out (Xid 109)", until="needs-reset")
    }
    assert seen.watch.message() == "gpu1 failed: a context switch timed out (Xid 109)"


def test_node_is_a_failure_of_the_host() -> None:
    seen = Seen([("GPU-1", 79)])
    assert seen.watch.failed == {
        "GPU-1": DeviceFault("needs-reboot", "it fell off the bus (Xid 79)", until="needs-reboot")
    }


def test_an_unknown_code_is_noted_and_counted() -> None:
    seen = Seen([("GPU-0", 4711)])
    assert (seen.watch.failed, seen.cause(), seen.watch.use["GPU-0"].xids) == ({}, "", {4711: 1})
    assert seen.notes == ["gpu0: Xid 4711: not known (recorded only)"]


def test_the_operators_class_counts() -> None:
    assert Seen([("GPU-0", 63)], classes={63: "reset"}).watch.failed.keys() == {"GPU-0"}
    assert Seen([("GPU-0", 109)], classes={109: "ignore"}).watch.failed == {}


def test_an_error_from_long_before_the_end_is_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlapp.gpuid.health import watch

    seen = Seen([("GPU-0", 31)])
    assert seen.cause() != ""
    monkeypatch.setattr(watch, "CAUSE_S", -1.0)
    assert seen.cause() == ""


def test_the_counts_of_earlier_payloads_of_the_lease_are_kept() -> None:
    first = Seen([("GPU-0", 31)])
    driver = Driver([("GPU-0", 31), ("GPU-0", 13)])
    with DeviceWatch(DEVICES, open=lambda _: driver, every_s=0.001, use=first.watch.use) as watch:
        assert driver.ended.wait(PATIENCE_S)
    assert watch.use["GPU-0"].xids == {31: 2, 13: 1}
