"""The rules of the ledger, alone: what every change keeps true, whatever came before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.gpuid import rules
from dlapp.gpuid.devices import Device
from dlapp.gpuid.record_json import MAX_BYTES, from_bytes, to_bytes
from dlapp.gpuid.rules import HostRecord, LeaseRequest, LedgerError, NotEnough
from dlapp.system.text import short_duration
from dlapp.value import replace
from tests.services.processes.ledger_process import fake_devices

APP, OTHER = "application_1700000000000_0042", "application_1700000000000_0043"


def record_of(count: int = 4) -> HostRecord:
    return rules.with_inventory(HostRecord("host03"), fake_devices(count), boot_id="boot", now_ms=1)


def leased(record: HostRecord, container: str, gcores: int, now_ms: int = 1, application: str = APP) -> HostRecord:
    ask = LeaseRequest(application, container, "tony", gcores)
    return rules.lease(record, ask, token=f"t-{container}", now_ms=now_ms)[0]


def test_an_error_names_holders_times_and_broken_devices() -> None:
    record = leased(record_of(3), "c1", 1)
    record = rules.quarantine(record, "gpu2", cause="ecc", detail="ECC", now_ms=2)
    with pytest.raises(NotEnough) as refused:
        leased(record, "c2", 2, now_ms=3 * 3600 * 1000 + 5)
    assert str(refused.value) == (
        "host03: asked for 2 gcores, 1 free: gpu0 application_1700000000000_0042 (tony, 3 h), gpu2 quarantined (ECC)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (86400 * 3 + 5, "3 d")]
)
def test_a_span_is_shown_in_its_largest_unit(seconds: int, text: str) -> None:
    assert short_duration(seconds) == text


def test_a_late_release_of_an_earlier_lease_does_not_end_a_later_one() -> None:
    record = leased(record_of(), "c1", 1)
    record = rules.release(record, "c1", application=APP)
    ask = LeaseRequest(APP, "c1", "tony", 1)
    record, again = rules.lease(record, ask, token="second", now_ms=2)
    assert rules.release(record, "c1", application=APP, token="t-c1") is record
    assert rules.release(record, "c1", application=APP, token=again.token).leases == ()


def test_a_lease_is_released_by_its_own_application_only() -> None:
    with pytest.raises(Denied, match=f"the lease of c1 belongs to {APP}, not to {OTHER}"):
        rules.release(leased(record_of(), "c1", 1), "c1", application=OTHER)


def test_findings_of_dlapp_do_not_replace_an_operators_quarantine() -> None:
    record = rules.quarantine(record_of(), "gpu1", cause="operator", by="root", now_ms=1)
    assert rules.quarantine(record, "gpu1", cause="ecc", now_ms=2) is record


def test_each_quarantine_is_counted_until_the_device_is_repaired() -> None:
    record = record_of()
    for count in (1, 2, 3):
        record = rules.quarantine(record, "gpu0", cause="ecc", now_ms=count)
        record = rules.quarantine(record, "gpu0", cause="ecc", now_ms=count + 1)
        found = record.device("gpu0").quarantine
        assert found is not None
        assert (found.count, found.since_ms) == (count, count)
        record = rules.heal(record, "gpu0")
    assert record.device("gpu0").failures == 3
    assert rules.heal(record, "gpu0", forgive=True).device("gpu0").failures == 0


def test_a_host_that_shows_up_is_not_forgotten_any_more() -> None:
    record = rules.forget(leased(record_of(), "c1", 1), by="root", now_ms=5)
    assert (record.forgotten_ms, len(record.leases)) == (5, 1)
    assert rules.with_inventory(record, fake_devices(4), boot_id="boot", now_ms=6).forgotten_ms == 0


def test_a_reinstalled_host_is_accepted_once_its_devices_are_free() -> None:
    record = replace(leased(record_of(), "c1", 1), machine="first")
    with pytest.raises(rules.OtherMachine, match="dlapp-gpu release GPU --host host03"):
        rules.with_inventory(record, fake_devices(4), boot_id="new", now_ms=6, machine="second")
    record = rules.quarantine(rules.release(record, "c1", application=APP), "gpu1", cause="ecc", now_ms=7)
    again = rules.with_inventory(record, fake_devices(4), boot_id="new", now_ms=8, machine="second")
    assert (again.machine, again.device("gpu1").quarantine is not None) == ("second", True)


def test_cloned_machines_with_one_short_name_are_distinguished_by_full_names() -> None:
    record = replace(leased(record_of(), "c1", 1), machine="m", full_name="host03.a.example")
    with pytest.raises(rules.OtherMachine):
        rules.with_inventory(
            record, fake_devices(4), boot_id="new", now_ms=6, machine="m", full_name="host03.b.example"
        )
    for boot_id, full_name in (("new", ""), ("new", "host03.a.example"), ("boot", "host03.b.example")):
        after = rules.with_inventory(
            record, fake_devices(4), boot_id=boot_id, now_ms=6, machine="m", full_name=full_name
        )
        assert len(after.leases) == 1


def test_a_container_with_the_machine_id_of_its_image_is_no_other_machine() -> None:
    record = replace(leased(record_of(), "c1", 1), machine="host")
    after = rules.with_inventory(record, fake_devices(4), boot_id="boot", now_ms=6, machine="image")
    assert (after.machine, len(after.leases)) == ("host", 1)


def test_the_last_leases_ended_by_operators_are_kept() -> None:
    record = record_of()
    for number in range(rules.MAX_RELEASES + 3):
        record = rules.force_release(leased(record, f"c{number}", 1), "gpu0", by="ann", now_ms=number)
    assert [release.at_ms for release in record.releases] == list(range(3, rules.MAX_RELEASES + 3))
    assert from_bytes(to_bytes(record), "host03") == replace(record, releases=record.releases)


def test_an_unchanged_inventory_returns_the_same_record() -> None:
    record = record_of()
    assert rules.with_inventory(record, fake_devices(4), boot_id="boot", now_ms=99) is record


def test_a_record_that_is_too_long_is_refused() -> None:
    record = replace(record_of(), unknown={"long": "x" * MAX_BYTES})
    with pytest.raises(LedgerError, match="are most"):
        to_bytes(record)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_an_invalid_record_is_refused_in_one_line(data: Any) -> None:
    with pytest.raises(LedgerError, match="host03: its record in the GPU ledger cannot be read"):
        from_bytes(json.dumps(data).encode(), "host03")


@given(st.binary(min_size=1, max_size=40))
def test_bytes_that_are_no_record_are_refused_in_a_line(data: bytes) -> None:
    with pytest.raises(LedgerError):
        from_bytes(data, "host03")


@given(st.dictionaries(st.text(min_size=1, max_size=6).map(lambda name: f"x-{name}"), JSON, max_size=3))
def test_unknown_fields_travel_everywhere(unknown: dict[str, Any]) -> None:
    record = rules.quarantine(leased(record_of(), "c1", 2), "gpu3", cause="ecc", now_ms=1)
    whole = json.loads(to_bytes(record))
    for place in (whole, whole["devices"][0], whole["devices"][3]["quarantine"], whole["leases"][0]):
        place.update(unknown)
    again = json.loads(to_bytes(from_bytes(json.dumps(whole).encode(), "host03")))
    assert again == whole


NAMES = st.sampled_from([f"c{number}" for number in range(6)])


class Rules(RuleBasedStateMachine):
    """Any changes in any order, with JSON in between, beside a model that says who holds how many."""

    def __init__(self) -> None:
        super().__init__()
        self.present = list(fake_devices(6))
        self.record = HostRecord("host03")
        self.model: dict[str, tuple[str, int]] = {}
        self.tokens = 0
        self.discover(6)

    @rule(count=st.integers(0, 6))
    def discover(self, count: int) -> None:
        found: list[Device] = self.present[:count]
        self.record = rules.with_inventory(self.record, found, boot_id="boot", now_ms=1)

    @rule(container=NAMES, application=st.sampled_from([APP, OTHER]), gcores=st.integers(-1, 7))
    def ask(self, container: str, application: str, gcores: int) -> None:
        free, before = len(self.record.free()), self.record
        self.tokens += 1
        try:
            self.record, given = rules.lease(
                self.record, LeaseRequest(application, container, "tony", gcores), token=str(self.tokens), now_ms=1
            )
        except NotEnough:
            assert free < gcores
            assert self.record is before
        except DlappError:
            assert self.record is before
        else:
            assert len(given.devices) == gcores
            if container in self.model:
                assert self.model[container] == (application, gcores)
            self.model[container] = application, gcores

    @rule(container=NAMES, application=st.sampled_from([APP, OTHER]))
    def release(self, container: str, application: str) -> None:
        try:
            self.record = rules.release(self.record, container, application=application)
        except Denied:
            assert self.model[container][0] != application
        else:
            if container in self.model:
                assert self.model.pop(container)[0] == application

    @rule(container=NAMES, late=st.booleans())
    def reclaim(self, container: str, late: bool) -> None:
        """Evidence of a lease; one that came late is of an earlier lease of this container."""
        lease = self.record.lease_of(container)
        token = "old" if lease is None or late else lease.token
        self.record = rules.reclaim(self.record, {(container, token)}, {})
        if not late:
            self.model.pop(container, None)

    @rule(container=NAMES, why=st.sampled_from(["", "its session was lost"]))
    def doubt(self, container: str, why: str) -> None:
        self.record = rules.doubt(self.record, container, why)

    @rule(index=st.integers(0, 7), by=st.sampled_from(["", "root"]))
    def quarantine(self, index: int, by: str) -> None:
        try:
            self.record = rules.quarantine(self.record, f"gpu{index}", cause="ecc", by=by, now_ms=1)
        except NotFound:
            assert index not in {device.device.index for device in self.record.devices}

    @precondition(lambda self: self.record.devices)
    @rule(data=st.data(), forgive=st.booleans())
    def heal(self, data: st.DataObject, forgive: bool) -> None:
        one = data.draw(st.sampled_from(self.record.devices))
        self.record = rules.heal(self.record, one.uuid, forgive=forgive)
        assert self.record.device(one.uuid).quarantine is None

    @rule()
    def forget(self) -> None:
        self.record = rules.forget(self.record, by="root", now_ms=2)

    @rule()
    def store(self) -> None:
        assert from_bytes(to_bytes(self.record), "host03") == self.record

    @invariant()
    def no_device_is_shared(self) -> None:
        held = [uuid for lease in self.record.leases for uuid in lease.devices]
        assert len(held) == len(set(held))
        assert not {device.uuid for device in self.record.free()} & set(held)

    @invariant()
    def leases_are_what_was_given_and_not_taken_back(self) -> None:
        assert {lease.container: (lease.application, len(lease.devices)) for lease in self.record.leases} == self.model

    @invariant()
    def what_is_held_or_broken_is_never_dropped(self) -> None:
        known = {device.uuid for device in self.record.devices}
        assert {uuid for lease in self.record.leases for uuid in lease.devices} <= known
        assert all(device.present for device in self.record.devices if device.device in self.record.free())


TestRules = Rules.TestCase
TestRules.settings = settings(settings(), stateful_step_count=40)


def test_a_record_is_read_as_written_after_any_earlier_write() -> None:
    """A writer of a record keeps the text of its devices; it must be no other's."""
    one = rules.with_inventory(HostRecord("h1"), fake_devices(3), boot_id="b", now_ms=1)
    turned = tuple(replace(device, index=2 - device.index) for device in fake_devices(3))
    other = rules.with_inventory(HostRecord("h2"), turned, boot_id="b", now_ms=1)
    held, _ = rules.lease(one, LeaseRequest("application_1_1", "c1", "tony", 2), token="t", now_ms=2)
    ill = rules.quarantine(held, "gpu0", cause="ecc", now_ms=3)
    records = (one, other, held, ill, HostRecord("h3"), replace(one, devices=()))
    texts = {record.host + str(place): to_bytes(record) for place, record in enumerate(records)}
    for _ in range(2):
        for place, record in enumerate(records):
            read = from_bytes(texts[record.host + str(place)], record.host)
            assert replace(read, unknown={}) == record
            assert to_bytes(record) == texts[record.host + str(place)]


def test_a_record_that_only_ends_like_the_last_one_is_not_taken_for_it() -> None:
    record = rules.with_inventory(HostRecord("h1"), fake_devices(1), boot_id="b", now_ms=1)
    end = to_bytes(record).partition(b',"devices"')[2]
    for odd in (b'{"devices"' + end, b',"devices"' + end, b'[,"devices"' + end, b'{"format":1,"devices"' + end):
        with pytest.raises(LedgerError, match="cannot be read"):
            from_bytes(odd, "h1")
