"""Xid errors of a task's GPUs: which end the payload, and what is found after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import Quarantine
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.xid_files import read_xids
from dlapp.values.messages import Fault, TaskResult, TrialOrder, TrialWork
from dlapp.values.spec import Resources
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.task.fake_am import FakeAm, ledger_of, workspace_archive

pytestmark = pytest.mark.slow

STUBS = (StubDevice(uuid="GPU-0"), StubDevice(uuid="GPU-1"))
DEVICES = tuple(Device(device.uuid, place, place) for place, device in enumerate(STUBS))
WAITS = "echo ready; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done; "
SAVES = "trap 'cat $DLAPP_STOP; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"


class Run:
    """A program on GPU-0 of a machine with two GPUs."""

    def __init__(self, place: Path, am: FakeAm, ledger: MachineLedger) -> None:
        self.place, self.am, self.ledger = place, am, ledger

    @property
    def log(self) -> str:
        return (self.am.home / "dlapp.log").read_text()

    def report(self, xid: int) -> None:
        """Let the driver report an Xid, and wait until the task has seen it."""
        with_devices(self.place, [replace(STUBS[0], xid=xid), STUBS[1]])
        self.am.wait_until(lambda: f"Xid {xid}" in self.log)

    def finish(self) -> None:
        (self.am.home / "tmp" / "finish").touch()

    def quarantines(self) -> dict[str, Quarantine]:
        found = {device.uuid: device.quarantine for device in self.ledger.record().devices}
        return {uuid: one for uuid, one in found.items() if one is not None}


@contextmanager
def running(place: Path, script: str) -> Iterator[Run]:
    packed = workspace_archive(place, {"run.sh": script})
    ledger = MachineLedger(str(place / "locks"), discover=lambda: DEVICES)
    with (
        ledger.reserve("the application", 1, uuids=("GPU-0",)),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=1)) as am,
    ):
        am.start(process_env=with_devices(place, STUBS), ledger=ledger_of(place))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        run = Run(place, am, ledger)
        am.wait_until(lambda: "the GPUs are monitored" in run.log)
        yield run


def test_a_device_that_needs_a_reset_ends_the_payload_softly(place: Path) -> None:
    with running(place, SAVES) as run:
        with_devices(place, [replace(STUBS[0], xid=109), STUBS[1]])
        result = run.am.result()
        message = "gpu0 failed: a context switch timed out (Xid 109)"
        assert (result.fault, result.message, result.exit_code) == (Fault.NODE, message, 0)
        printed = run.am.printed().decode()
        assert printed.startswith("ready\n")
        assert "gpu_failed" in printed
        assert printed.endswith("saved\n")
        found = run.quarantines()
        assert found.keys() == {"GPU-0"}
        assert (found["GPU-0"].cause, found["GPU-0"].boot_id != "") == ("needs-reset", True)


def test_an_error_of_the_node_closes_all_its_devices(place: Path) -> None:
    with running(place, SAVES) as run:
        with_devices(place, [replace(STUBS[0], xid=79), STUBS[1]])
        assert run.am.result().message == "gpu0 failed: it fell off the bus (Xid 79)"
        assert {uuid: (one.cause, one.detail) for uuid, one in run.quarantines().items()} == {
            "GPU-0": ("needs-reboot", "it fell off the bus (Xid 79)"),
            "GPU-1": ("needs-reboot", "gpu0: it fell off the bus (Xid 79)"),
        }


def test_a_program_xid_does_not_end_the_payload_but_is_the_cause_if_it_fails(place: Path) -> None:
    with running(place, WAITS + "echo 'RuntimeError: CUDA error: unspecified launch failure' >&2; exit 1") as run:
        run.report(31)
        run.finish()
        result = run.am.result()
        assert (result.fault, result.exit_code) == (Fault.USER, 1)
        found = result.diagnosis
        assert found is not None
        assert (found.rule, found.fault, found.retry) == ("gpu_xid_program", Fault.USER, None)
        assert found.cause == "gpu0 reported Xid 31: page fault: a kernel used an address that is not mapped"
        assert found.evidence is not None
        assert "unspecified launch failure" in found.evidence.line
        assert result.receipt is not None
        assert result.receipt.xids == {"31": 1}
        assert run.quarantines() == {}


def test_a_program_that_survives_an_error_of_its_own_succeeds(place: Path) -> None:
    with running(place, WAITS + "exit 0") as run:
        run.report(31)
        run.finish()
        result = run.am.result()
        assert (result.fault, result.diagnosis, run.quarantines()) == (Fault.NONE, None, {})


def test_a_contained_error_is_not_the_programs_fault_and_the_inspected_device_stays_in_use(place: Path) -> None:
    with running(place, WAITS + "exit 1") as run:
        run.report(94)
        run.finish()
        found = run.am.result().diagnosis
        assert found is not None
        assert (found.rule, found.fault, found.retry, found.avoid_node) == ("gpu_xid", Fault.NODE, True, True)
        assert run.quarantines() == {}


def test_a_device_due_for_inspection_is_not_leased_while_its_driver_is_silent(place: Path) -> None:
    with running(place, WAITS + "exit 0") as run:
        run.report(94)
        with_devices(place, STUBS, init=18)
        run.finish()
        assert run.am.result().fault is Fault.NONE
        found = run.quarantines()
        assert {uuid: one.cause for uuid, one in found.items()} == {"GPU-0": "xid"}


def test_an_error_that_needs_a_reset_closes_the_device_also_if_the_driver_hangs_at_the_end(place: Path) -> None:
    """The firmware of the GPU does not answer: the error, and then no answer to any question."""
    with running(place, SAVES) as run:
        with_devices(place, [replace(STUBS[0], xid=119, hang="nvmlDeviceGet"), STUBS[1]])
        assert run.am.result().fault is Fault.NODE
        found = run.quarantines()
        assert {uuid: one.cause for uuid, one in found.items()} == {"GPU-0": "needs-reset", "GPU-1": "driver-hangs"}
        assert found["GPU-0"].boot_id != ""


@pytest.mark.parametrize("xid", [63, 4711])
def test_ignored_and_unknown_xids_are_noted_and_counted_only(place: Path, xid: int) -> None:
    with running(place, WAITS + "exit 0") as run:
        run.report(xid)
        run.finish()
        result = run.am.result()
        assert (result.fault, run.quarantines()) == (Fault.NONE, {})
        assert result.receipt is not None
        assert result.receipt.xids == {str(xid): 1}
        assert [item.times for item in read_xids(run.ledger.directory)["GPU-0"].values()] == [1]


def test_the_operators_class_decides_on_the_host_of_the_device(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLAPP_GPUID_XIDS", "63: reset")
    with running(place, SAVES) as run:
        with_devices(place, [replace(STUBS[0], xid=63), STUBS[1]])
        assert run.am.result().message == "gpu0 failed: a memory page or row is to be retired or remapped (Xid 63)"


# ---- trials ----


@contextmanager
def running_trials(place: Path, script: str, slots: int) -> Iterator[FakeAm]:
    """Trials 0 to ``slots`` - 1, one on each of as many GPUs."""
    ledger = MachineLedger(str(place / "locks"), discover=lambda: DEVICES)
    packed = workspace_archive(place, {"run.sh": script})
    work, amounts = TrialWork(metric="", slots=slots), Resources(memory_mib=128 * slots, gcores=slots)
    with (
        ledger.reserve("the application", slots, uuids=[device.uuid for device in DEVICES[:slots]]),
        FakeAm(place / "containers", **packed, resources=amounts, sweep=work) as am,
    ):
        am.start(process_env=with_devices(place, STUBS), ledger=ledger_of(place))
        am.order(trials=tuple(TrialOrder(number=number, try_number=1) for number in range(slots)))
        am.wait_until(lambda: all((place / f"ready.{number}").exists() for number in range(slots)))
        am.wait_until(lambda: "the GPUs are monitored" in (am.home / "dlapp.log").read_text())
        yield am


def results_of(am: FakeAm) -> dict[int, TaskResult]:
    reports = list(am.reports)
    return {trial.number: trial.result for report in reports for trial in report.trials if trial.result is not None}


def test_a_device_that_needs_a_reset_ends_the_trials_by_sigterm(place: Path) -> None:
    script = (
        f"trap 'echo saved >{place}/saved; exit 0' TERM; touch {place}/ready.$DLAPP_TRIAL; while :; do sleep 0.02; done"
    )
    with running_trials(place, script, 1) as am:
        with_devices(place, [replace(STUBS[0], xid=109), STUBS[1]])
        result = am.result()
        message = "gpu0 failed: a context switch timed out (Xid 109)"
        assert (result.fault, result.message) == (Fault.NODE, message)
        assert (place / "saved").read_text() == "saved\n"
        assert {number: (one.fault, one.message) for number, one in results_of(am).items()} == {
            0: (Fault.STOPPED, message)
        }


def test_an_xid_error_is_the_cause_of_the_trial_on_its_device_only(place: Path) -> None:
    script = f"touch {place}/ready.$DLAPP_TRIAL; while [ ! -e {place}/finish ]; do sleep 0.02; done; exit 7"
    with running_trials(place, script, 2) as am:
        with_devices(place, [STUBS[0], replace(STUBS[1], xid=31)])
        am.wait_until(lambda: "Xid 31" in (am.home / "dlapp.log").read_text())
        (place / "finish").touch()
        am.wait_until(lambda: len(results_of(am)) == 2)
        causes = {number: one.diagnosis and one.diagnosis.rule for number, one in results_of(am).items()}
        assert causes == {0: None, 1: "gpu_xid_program"}
        am.order(trials=(), trials_are_over=True)
        assert am.result().fault is Fault.NONE
