"""The ledger on ZooKeeper: bad records, other users of the ensemble, outages, partitions, answers that are lost."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NodeExistsError

from dlapp.errors import Denied, NotFound, Unreachable, UsageError
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.rules import HostRecord, LeaseRequest, LedgerError, NotEnough
from dlapp.gpuid.stores import ensemble as ensemble_module
from dlapp.gpuid.stores import zookeeper as store
from dlapp.gpuid.stores.ensemble import Ensemble, OutcomeUnknown, VersionConflict
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.net.dockerd import ContainerSummary
from dlapp.value import replace
from dlapp.values.launch_spec import LedgerSettings
from tests.gpuid.conftest import SESSION_S
from tests.services.http.proxy import Plan, Proxy
from tests.services.http.tls import CERTIFICATE, KEY
from tests.services.polling import PATIENCE_S, wait_until
from tests.services.zookeeper import ZooKeeper, ledger_settings, zookeeper_for_tests

APP, OTHER = "application_1700000000000_0001", "application_1700000000000_0002"
Open = Callable[..., Any]


def ask(container: str, gcores: int, application: str = APP, **more: Any) -> LeaseRequest:
    return LeaseRequest(application, container, "tony", gcores, **more)


@pytest.fixture
def raw(settings: LedgerSettings) -> Iterator[KazooClient]:
    """A client of the same ensemble with the credentials."""
    client = KazooClient(settings.ensemble, timeout=SESSION_S, auth_data=[("digest", settings.credentials)])
    client.start(timeout=PATIENCE_S)
    yield client
    client.stop()
    client.close()


def path_of(settings: LedgerSettings, host: str = "node7") -> str:
    return f"{settings.root}/hosts/{host}"


# ---- records ----


def test_fields_of_a_later_version_are_kept(on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings) -> None:
    lease = on_zookeeper().acquire(ask("c1", 1))
    whole = json.loads(raw.get(path_of(settings))[0])
    whole |= {"format": 7, "weather": {"is": "fine"}}
    whole["devices"][0]["colour"] = "green"
    whole["leases"][0]["mood"] = ["good"]
    raw.set(path_of(settings), json.dumps(whole).encode())
    on_zookeeper().acquire(ask("c2", 1)).release()
    on_zookeeper().quarantine("gpu3", cause="operator", by="root")
    after = json.loads(raw.get(path_of(settings))[0])
    assert (after["format"], after["weather"], after["devices"][0]["colour"], after["leases"][0]["mood"]) == (
        *(7, {"is": "fine"}, "green"),
        ["good"],
    )
    assert lease.release()


def test_a_record_that_only_a_later_version_may_write_is_left_alone(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    on_zookeeper().acquire(ask("c1", 1)).release()
    whole = json.loads(raw.get(path_of(settings))[0]) | {"format": 9, "least_writer": 9}
    raw.set(path_of(settings), json.dumps(whole).encode())
    before = raw.get(path_of(settings))
    with pytest.raises(
        LedgerError, match=r"node7: .* may be written by format 9 or later, this dlapp has 1: update it"
    ):
        on_zookeeper().acquire(ask("c2", 1))
    assert len(on_zookeeper().record().devices) == 4  # it can be read
    assert raw.get(path_of(settings)) == before


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        b"{",
        b'{"format": 1}',
        b'{"format": "1", "least_writer": 1}',
        b'{"format": 1, "least_writer": 1, "leases": [3]}',
        b'{"format": 1, "least_writer": 1, "leases": [{"container": "c"}]}',
        b'{"format": 1, "least_writer": 1, "devices": [{"uuid": 3}]}',
        b'{"format": 1, "least_writer": 1, "devices": {}}',
        b"[" * 5000,
        b'{"format": 1, "least_writer": true}',
    ],
)
def test_a_record_that_is_none_is_named_and_left_as_it_is(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings, garbage: bytes
) -> None:
    raw.create(path_of(settings), garbage, makepath=True)
    ledger = on_zookeeper()
    calls: list[Callable[[], object]] = [
        lambda: ledger.acquire(ask("c1", 1)),
        lambda: ledger.quarantine("gpu0", cause="operator"),
        lambda: ledger.reclaim(),
        lambda: ledger.force_release("gpu0", token="t", by="root"),
    ]
    for call in calls:
        with pytest.raises(LedgerError, match="node7: its record in the GPU ledger cannot be read"):
            call()
    assert raw.get(path_of(settings))[0] == garbage
    assert [(host, type(found)) for host, found in ledger.hosts()] == [("node7", LedgerError)]


@pytest.mark.parametrize("host", ["", ".", "..", "a/b", "a b", "-a", "a\n", "ü", "x" * 300, "../hosts"])
def test_an_invalid_host_name_is_refused(on_zookeeper: Open, host: str) -> None:
    with pytest.raises(UsageError, match="is not a host name"):
        on_zookeeper(host=host)
    with pytest.raises(UsageError, match="is not a host name"):
        on_zookeeper().forget(host, by="root")


def test_another_machine_of_the_same_name_is_refused_as_long_as_the_first_has_leases(
    on_zookeeper: Open, tmp_path: Path
) -> None:
    lease = on_zookeeper(machine="first").acquire(ask("c1", 1))
    second = {"machine": "second", "probes": LivenessProbes(boot_id="second")}
    with pytest.raises(LedgerError, match=r"knows another machine of this name, with leases; .* --host node7"):
        on_zookeeper(**second).acquire(ask("c2", 1))
    [found] = on_zookeeper(**second, over={"lock_dir": str(tmp_path)}).reclaim()
    assert (found.state, found.why) == (
        UNKNOWN,
        "it is of another machine of this name, and no ResourceManager is configured",
    )
    lease.release()
    on_zookeeper(**second).acquire(ask("c2", 1)).release()


class EndedFor:
    """A ResourceManager's word: all applications ended so long ago."""

    def __init__(self, ended_s: float) -> None:
        self.ended_s = ended_s

    def check(self, application: str, *, ended_s: float, until: float) -> Liveness:
        return Liveness(GONE) if self.ended_s >= ended_s else Liveness(UNKNOWN, "it has not ended long ago")


def test_a_reinstalled_host_is_accepted_an_hour_after_its_last_application(on_zookeeper: Open, tmp_path: Path) -> None:
    on_zookeeper(machine="first").acquire(ask("c1", 4))
    second = {"machine": "second", "probes": LivenessProbes(boot_id="second"), "over": {"lock_dir": str(tmp_path)}}
    with pytest.raises(LedgerError, match="another machine of this name, with leases"):
        on_zookeeper(**second, applications=EndedFor(3000)).acquire(ask("c2", 1))
    lease = on_zookeeper(**second, applications=EndedFor(4000)).acquire(ask("c2", 4))
    assert [item.container for item in on_zookeeper().record().leases] == ["c2"]
    lease.release()


@pytest.mark.parametrize("ended_s", [300.0, 700.0])
def test_an_unknown_lease_ends_ten_minutes_after_its_application(
    on_zookeeper: Open, tmp_path: Path, ended_s: float
) -> None:
    elsewhere = {"pid": 4711, "start_time": 1, "pid_ns": 1, "uid": os.geteuid()}
    no_devices = LivenessProbes(devices=lambda _: Liveness(GONE))
    lost = on_zookeeper(over={"lock_dir": str(tmp_path / "first")}, probes=no_devices).acquire(
        ask("c1", 4, evidence={"task": elsewhere})
    )
    lost.close()
    ledger = on_zookeeper(probes=no_devices, applications=EndedFor(ended_s))
    if ended_s >= 600:
        ledger.acquire(ask("c2", 4)).release()
    else:
        with pytest.raises(NotEnough, match="its task 4711 is in another pid namespace"):
            ledger.acquire(ask("c2", 4))
    computing = LivenessProbes(devices=lambda _: Liveness(ALIVE, "process 1 computes on gpu0"))
    other = on_zookeeper(probes=computing, applications=EndedFor(1e6))
    assert {reclaimed.state for reclaimed in other.reclaim()} == (set() if ended_s >= 600 else {UNKNOWN})


# ---- the place of earlier versions ----


def test_records_of_earlier_versions_count_until_their_hosts_write_them_in_the_new_place(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    new = {"root": f"{settings.root}/c1", "former_root": settings.root}
    before = on_zookeeper()
    running = before.acquire(ask("c1", 1))
    before.quarantine("gpu1", cause="operator", by="root")
    on_zookeeper(host="node8").update_inventory()
    ledger = on_zookeeper(over=new)
    assert {host: len(record.leases) for host, record in ledger.hosts()} == {"node7": 1, "node8": 0}
    assert [host for host, _ in ledger.short_hosts()] == ["node7"]
    with pytest.raises(NotEnough, match=r"asked for 3 gcores, 2 free: gpu. application_.*, gpu. quarantined"):
        on_zookeeper(over=new).acquire(ask("c2", 3, OTHER))
    on_zookeeper(over=new).acquire(ask("c2", 2, OTHER))
    assert [len(item.leases) for item in (ledger.record(), before.record())] == [2, 1]
    # A task of before releases in the place of before; here its host sees that it is gone.
    running.release()
    assert sum(raw.exists(f"{new['root']}/hosts/{host}") is not None for host in ("node7", "node8")) == 1


def test_a_host_of_another_cluster_is_not_taken_for_one_of_the_same_name(
    on_zookeeper: Open, settings: LedgerSettings
) -> None:
    on_zookeeper(machine="first").acquire(ask("c1", 4))
    new = {"root": f"{settings.root}/c2", "former_root": settings.root, "lock_dir": f"{settings.lock_dir}-2"}
    ledger = on_zookeeper(machine="second", probes=LivenessProbes(boot_id="second"), over=new)
    ledger.acquire(ask("c2", 4, OTHER)).release()


# ---- the list of hosts with GPUs in quarantine ----


def names_on_list(raw: KazooClient, settings: LedgerSettings) -> list[str]:
    return sorted(raw.get_children(f"{settings.root}/short"))


def test_hosts_with_devices_in_quarantine_are_listed_and_healed_ones_are_not(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    for host in ("node1", "node2", "node3"):
        on_zookeeper(host=host).update_inventory()
    on_zookeeper(host="node1").quarantine("gpu0", cause="ecc")
    reader = on_zookeeper(host="am")
    assert [host for host, _ in reader.short_hosts()] == ["node1"]  # there was no list
    on_zookeeper(host="node2").quarantine("gpu0", cause="ecc")
    assert names_on_list(raw, settings) == ["node1", "node2"]
    on_zookeeper(host="node1").heal("gpu0")
    assert names_on_list(raw, settings) == ["node2"]
    on_zookeeper(host="desk").forget("node2", by="root")
    assert [host for host, _ in reader.short_hosts()] == []


def test_a_wrong_list_of_short_hosts_is_corrected_by_its_readers(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    reader = on_zookeeper(host="am")
    assert list(reader.short_hosts()) == []
    ledger = on_zookeeper()
    ledger.update_inventory()
    for name in ("gpu0", "gpu1"):
        ledger.quarantine(name, cause="operator", by="root")
    raw.delete(f"{settings.root}/short/node7")
    raw.create(f"{settings.root}/short/node9")
    assert [host for host, _ in reader.short_hosts()] == []
    assert names_on_list(raw, settings) == []
    with pytest.raises(NotEnough):
        on_zookeeper().acquire(ask("c1", 3))
    assert [host for host, _ in reader.short_hosts()] == ["node7"]


def test_a_lease_and_its_release_take_as_many_operations_with_a_list_as_without(
    on_zookeeper: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[object] = []
    answer = Ensemble._answer

    def counted(*args: Any) -> Any:
        answers.append(args)
        return answer(*args)

    monkeypatch.setattr(Ensemble, "_answer", counted)

    def operations() -> int:
        answers.clear()
        on_zookeeper().acquire(ask("c1", 1)).release()
        return len(answers)

    on_zookeeper().update_inventory()
    assert operations() == 3  # read, write; write
    on_zookeeper().quarantine("gpu3", cause="operator", by="root")
    list(on_zookeeper(host="am").short_hosts())
    assert operations() == 3


def test_a_lease_ended_by_an_operator_is_recorded_with_name_and_time(on_zookeeper: Open) -> None:
    lost = on_zookeeper().acquire(ask("c1", 2))
    token = lost.record.token
    other = on_zookeeper(host="operators-desk")
    with pytest.raises(LedgerError, match="another container holds gpu0 by now"):
        other.force_release("gpu0", token="of-an-earlier-lease", by="ann", host="node7")
    other.force_release("gpu0", token=token, by="ann", host="node7")
    record = other.record_of("node7")
    assert record.leases == ()
    assert [
        (release.container, release.application, release.by, len(release.devices)) for release in record.releases
    ] == [("c1", APP, "ann", 2)]
    assert abs(record.releases[0].at_ms - time.time() * 1000) < 600_000
    with pytest.raises(NotFound, match="node7: nobody holds gpu0"):
        other.force_release("gpu0", token=token, by="ann", host="node7")


def test_a_process_with_many_open_files_can_lease_as_well(on_zookeeper: Open) -> None:
    """Beyond descriptor 1023 select(2) is of no use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"this machine lets a process open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    gc.collect()  # what earlier tests left open; closed later, it would free low numbers
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while opened.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        ledger = on_zookeeper()
        opened.callback(ledger.close)
        assert ledger.acquire(ask("c1", 4), timeout_s=120).release()
        assert ledger._ensemble._client._connection._socket.fileno() > 1023


# ---- hosts ----


def test_hosts_do_not_stand_in_each_others_way(on_zookeeper: Open) -> None:
    leases = [on_zookeeper(host=f"node{number}").acquire(ask(f"c{number}", 4)) for number in range(3)]
    listed = dict(on_zookeeper().hosts())
    assert {host: record.leases[0].container for host, record in listed.items()} == {
        f"node{number}": f"c{number}" for number in range(3)
    }
    for lease in leases:
        lease.release()


def test_a_forgotten_host_keeps_its_record_and_its_leases(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    lease = on_zookeeper().acquire(ask("c1", 3))
    operator = on_zookeeper(host="desk", devices=())
    operator.forget("node7", by="root")
    record = operator.record_of("node7")
    assert (record.forgotten_by, len(record.leases)) == ("root", 1)
    assert raw.get(path_of(settings))[1].version > 0
    # It was not gone after all: what it holds, it holds.
    with pytest.raises(NotEnough, match="asked for 2 gcores, 1 free"):
        on_zookeeper().acquire(ask("c2", 2))
    on_zookeeper().acquire(ask("c3", 1)).release()
    assert operator.record_of("node7").forgotten_ms == 0
    assert lease.release()


def test_a_host_that_was_never_seen_cannot_be_forgotten_or_quarantined(on_zookeeper: Open) -> None:
    ledger = on_zookeeper()
    with pytest.raises(NotFound, match="node8: the GPU ledger knows no such host"):
        ledger.forget("node8", by="root")
    with pytest.raises(NotFound, match="node8: the GPU ledger knows no such host"):
        ledger.quarantine("gpu0", cause="operator", host="node8")


# ---- who may write ----


@pytest.mark.proves("zookeeper-access")
def test_without_the_credentials_writes_and_deletes_are_refused(on_zookeeper: Open, settings: LedgerSettings) -> None:
    on_zookeeper().acquire(ask("c1", 1)).release()
    for credentials in ("", "dlapp:wrong"):
        stranger = on_zookeeper(over={"credentials": credentials})
        assert len(stranger.record().devices) == 4
        with pytest.raises(Denied, match=r"may not be written with these credentials \(gpuid.zookeeper.credentials\)"):
            stranger.acquire(ask("c2", 1))
    with KazooClientOf(settings.ensemble, ()) as client:
        calls: list[Callable[[], object]] = [
            lambda: client.delete(path_of(settings)),
            lambda: client.set(path_of(settings), b""),
            lambda: client.create(path_of(settings, "node8"), b""),
            lambda: client.delete(settings.root, recursive=True),
        ]
        for call in calls:
            with pytest.raises(NoAuthError):
                call()


def test_not_even_with_the_credentials_a_record_is_deleted(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    on_zookeeper().acquire(ask("c1", 1)).release()
    with pytest.raises(NoAuthError):
        raw.delete(path_of(settings))


@pytest.mark.proves("zookeeper-records")
def test_the_credentials_alone_remove_no_container_and_take_no_locked_device(
    on_zookeeper: Open, raw: KazooClient, settings: LedgerSettings
) -> None:
    removed: list[str] = []

    class Daemon:
        def labelled(self, labels: list[str], *, until: float) -> list[ContainerSummary]:
            return [ContainerSummary("a" * 64, "running", {"dlapp.uid": str(os.geteuid())})]

        def remove(self, name: str, *, until: float) -> None:
            removed.append(name)

    host = "unix:///run/docker.sock"
    probes = LivenessProbes(docker_host=host, docker=lambda _: Daemon(), devices=lambda _: Liveness(GONE))
    ledger = on_zookeeper(probes=probes)
    (device,) = ledger.acquire(ask("c1", 1)).devices
    whole = json.loads(raw.get(path_of(settings))[0])
    gone = {"pid": 4194300, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino, "uid": os.geteuid()}
    docker = {"host": host, "label": "dlapp.container=container_1_1_01_000002"}
    forged = {"container": "c2", "application": APP, "devices": ["GPU-3"], "boot_id": whole["boot_id"]}
    whole["leases"] = [{**forged, "user": "root", "evidence": {"task": gone, "docker": docker}}]
    raw.set(path_of(settings), json.dumps(whole).encode())
    assert [reclaimed.state for reclaimed in ledger.reclaim() if reclaimed.container == "c2"] == ["alive"]
    assert removed == []
    with pytest.raises(NotEnough, match=device.label):
        on_zookeeper(probes=probes).acquire(ask("c3", 1, uuids=(device.uuid,)))


class KazooClientOf:
    """A client for a block."""

    def __init__(self, ensemble: str, auth: tuple[tuple[str, str], ...]) -> None:
        self.client = KazooClient(ensemble, timeout=SESSION_S, auth_data=list(auth))

    def __enter__(self) -> KazooClient:
        self.client.start(timeout=PATIENCE_S)
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.stop()
        self.client.close()


# ---- TLS ----


# kazoo does not close the socket of a connection whose other side is not trusted.
@pytest.mark.proves("zookeeper-network")
@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.zookeeper
def test_the_ledger_is_read_and_written_by_tls_with_servers_that_are_trusted(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(CERTIFICATE + KEY)
    with zookeeper_for_tests(tls=both) as servers:
        plain = ledger_settings(servers.secure, "/tls", "dlapp:secret", lock_dir=str(tmp_path / "locks"))
        settings = replace(plain, tls=True, certificates=CERTIFICATE, client_certificate=CERTIFICATE + KEY)
        with ZooKeeperLedger(settings, host="node7", discover=lambda: store_devices(4)) as ledger:
            ledger.acquire(ask("c1", 4)).release()
            paths, until = ["/tls/hosts/node7"] * 600, time.monotonic() + 120
            assert len(set(ledger._ensemble.read_all(paths, lambda: until))) == 1
        refused = {
            # The system's do not have this CA.
            replace(settings, certificates=""): r" by TLS \(gpuid.zookeeper.ca\): .*CERTIFICATE_VERIFY_FAILED",
            replace(settings, client_certificate=""): r" by TLS \(gpuid.zookeeper.ca\): .*: Connection dropped: ",
            plain: f": {servers.secure}$",
        }
        for over, words in refused.items():
            with ZooKeeperLedger(over, host="node7", discover=lambda: store_devices(4)) as ledger:
                message_of = functools.partial(unreachable, ledger)
                wait_until(lambda: re.search(f"no ZooKeeper answered in time{words}", message_of()), what=words)  # noqa: B023


def unreachable(ledger: ZooKeeperLedger) -> str:
    """Return why no server is reached. A moment is enough for that only on a machine that is not busy."""
    with pytest.raises(Unreachable) as refused:
        ledger.reach(timeout_s=1.0)
    return str(refused.value)


def test_an_answer_that_tls_has_decrypted_already_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(CERTIFICATE + KEY)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(tmp_path / "both.pem")
    client.load_verify_locations(tmp_path / "both.pem")
    ends = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(server.wrap_socket, ends[0], server_side=True)
        with client.wrap_socket(ends[1], server_hostname="127.0.0.1") as mine, accepted.result() as theirs:
            theirs.sendall(b"two")
            assert mine.recv(1) == b"t"
            assert ensemble_module._threads().select([mine], [], [], 0) == ([mine], [], [])
            assert mine.recv(2) == b"wo"
            assert ensemble_module._threads().select([mine], [], [], 0) == ([], [], [])


# ---- outages ----


@pytest.fixture
def proxy(zookeeper: ZooKeeper) -> Iterator[Proxy]:
    with Proxy(zookeeper.addresses[0]) as one:
        yield one


def through(proxy: Proxy) -> dict[str, Any]:
    host, port = proxy.address
    return {"ensemble": f"{host}:{port}", "session_timeout_s": 1.0}


@pytest.fixture
def short_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RELEASE_WAIT_S", 0.6)


def test_an_acquire_without_a_server_ends_at_its_deadline_naming_the_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MIN_WAIT_S", 0.6)
    settings = ledger_settings("127.0.0.1:1,127.0.0.1:2", lock_dir=str(tmp_path))
    with ZooKeeperLedger(settings, host="node7", discover=lambda: store_devices(1)) as ledger:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"no ZooKeeper answered in time: 127.0.0.1:1,127.0.0.1:2"):
            ledger.acquire(ask("c1", 1), timeout_s=1.0)
        assert 0.9 < time.monotonic() - began < 60


def store_devices(count: int) -> Any:
    from tests.services.processes.ledger_process import fake_devices

    return fake_devices(count)


def test_an_acquire_waits_for_an_ensemble_that_comes_back(on_zookeeper: Open, proxy: Proxy) -> None:
    proxy.plan = Plan(refuse=True)
    ledger = on_zookeeper(over=through(proxy))
    threading.Timer(1.0, lambda: setattr(proxy, "plan", Plan())).start()
    ledger.acquire(ask("c1", 1), timeout_s=120).release()


def test_a_release_in_an_outage_is_done_when_it_is_over(
    on_zookeeper: Open, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = on_zookeeper(over=through(proxy))
    lease = ledger.acquire(ask("c1", 4))
    proxy.plan = Plan(refuse=True)
    proxy.cut_all()
    with monkeypatch.context() as short:
        short.setattr(store, "RELEASE_WAIT_S", 0.6)
        assert lease.release() is False
    assert len(on_zookeeper().record().leases) == 1
    proxy.plan = Plan()
    wait_until(lambda: on_zookeeper().record().leases == ())
    assert ledger.acquire(ask("c1", 4)).release()


@pytest.mark.usefixtures("short_release")
def test_a_release_that_was_never_done_is_left_to_evidence(on_zookeeper: Open, proxy: Proxy) -> None:
    ledger = on_zookeeper(over=through(proxy))
    # Its task is a process that has ended since.
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    task = {"pid": gone.pid, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}
    lease = ledger.acquire(ask("c1", 4, evidence={"task": task}))
    proxy.plan = Plan(refuse=True)
    proxy.cut_all()
    assert lease.release() is False
    ledger.close()
    on_zookeeper().acquire(ask("c2", 4, OTHER)).release()


@pytest.mark.parametrize("call", range(1, 12))
def test_an_answer_that_is_lost_does_not_cost_or_double_a_lease(on_zookeeper: Open, proxy: Proxy, call: int) -> None:
    on_zookeeper().acquire(ask("c0", 1)).release()
    proxy.plan = Plan(cut_call=call)
    ledger = on_zookeeper(over=through(proxy))
    ledger._ensemble._client = ledger._ensemble._start()
    wait_until(lambda: proxy.connections > 0)
    proxy.plan = Plan()  # the first connection keeps its own
    for number in range(3):
        lease = ledger.acquire(ask(f"c{number}", 3), timeout_s=120)
        assert len(lease.devices) == 3
        [mine] = on_zookeeper().record().leases
        assert (mine.container, set(mine.devices)) == (f"c{number}", {device.uuid for device in lease.devices})
        assert lease.release()
    assert on_zookeeper().record().leases == ()


def test_a_node_and_those_above_it_are_made_wherever_the_connection_is_cut(
    settings: LedgerSettings, proxy: Proxy
) -> None:
    address = "{}:{}".format(*proxy.address)
    clocks: dict[str, Any] = {"clock": time.monotonic, "sleep": time.sleep}
    for offset in range(50, 700, 30):
        root = f"{settings.root}-{offset}"
        with contextlib.closing(
            Ensemble(address, root=root, credentials="a:b", session_timeout_s=1.0, **clocks)
        ) as ensemble:
            proxy.plan, before = Plan(cut_up=offset), proxy.connections
            ensemble._client = ensemble._start()
            wait_until(lambda before=before: proxy.connections > before)  # type: ignore[misc]
            proxy.plan = Plan()  # the first connection keeps its own
            path = f"{root}/hosts/node7"
            with contextlib.suppress(OutcomeUnknown, VersionConflict):
                ensemble.make(path, b"{}", time.monotonic() + 60)
            assert ensemble.read(f"{root}/hosts", time.monotonic() + 60) is not None


@pytest.mark.slow
def test_an_expired_session_frees_no_device(on_zookeeper: Open, proxy: Proxy, zookeeper: ZooKeeper) -> None:
    holder = on_zookeeper(over=through(proxy))
    lease = holder.acquire(ask("c1", 4))
    other = on_zookeeper()
    assert other.record().leases
    # By the calls that are repeated: a session of a second may be over before the test ends it.
    path, until = f"/session-{os.getpid()}", time.monotonic() + PATIENCE_S
    with contextlib.suppress(NodeExistsError):
        holder._ensemble._call(lambda client: client.create_async(path, ephemeral=True), until)

    def session() -> int | None:
        """Return whose the node is, if it is there."""
        found = other._ensemble._call(lambda client: client.exists_async(path), time.monotonic() + PATIENCE_S)
        return None if found is None else int(found.ephemeralOwner)

    old = session()
    proxy.plan = Plan(refuse=True)
    proxy.cut_all()
    wait_until(lambda: session() is None, what="the session has expired")
    with pytest.raises(NotEnough, match="0 free"):
        other.acquire(ask("c2", 1, OTHER))
    proxy.plan = Plan()
    wait_until(lambda: holder._ensemble._client.connected)
    assert holder.record().leases[0].container == "c1"
    wait_until(lambda: (now := holder._ensemble._client.client_id) is not None and now[0] != old)
    assert lease.release()


@pytest.mark.slow
def test_the_death_of_the_leader_loses_no_lease_and_doubles_none(ensemble: ZooKeeper, tmp_path: Path) -> None:
    settings = ledger_settings(ensemble.ensemble, "/leader/dlapp", "dlapp:secret", 2.0, str(tmp_path))
    with ZooKeeperLedger(settings, host="node7", discover=lambda: store_devices(4)) as ledger:
        held = ledger.acquire(ask("held", 1), timeout_s=120)
        for number in range(6):
            if number % 2 == 0:
                leader = ensemble.leader()
                ensemble.kill_server(leader)
            lease = ledger.acquire(ask(f"c{number}", 3), timeout_s=120)
            assert held.devices[0] not in lease.devices
            assert {item.container for item in ledger.record().leases} == {"held", f"c{number}"}
            if number % 2:
                ensemble.start_server(leader)
                ensemble.wait_until_ready()
            wait_until(lease.release)
        wait_until(lambda: [item.container for item in ledger.record().leases] == ["held"])
        held.release()


@pytest.mark.slow
def test_a_leader_that_dies_in_the_middle_of_an_operation_divides_none(ensemble: ZooKeeper, tmp_path: Path) -> None:
    """A write that a stopped leader has not answered is there or not when it is dead; each operation ends well."""
    with contextlib.ExitStack() as opened:

        def use(host: str) -> ZooKeeperLedger:
            settings = ledger_settings(ensemble.ensemble, "/middle/dlapp", "dlapp:secret", 10.0, str(tmp_path / host))
            ledger = ZooKeeperLedger(settings, host=host, discover=lambda: store_devices(4))
            return opened.enter_context(ledger)

        hosts = ("acquired", "released", "quarantined", "healed", "collected")
        users = {host: use(host) for host in hosts} | {"rival": use("acquired")}
        gone = subprocess.Popen(["/bin/true"])
        gone.wait()
        ended = {"task": {"pid": gone.pid, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}}
        for user in users.values():
            user.update_inventory()
        users["healed"].quarantine("gpu1", cause="operator", by="root")
        for number in range(2):
            held = users["released"].acquire(ask("c1", 4))
            users["collected"].acquire(ask("c1", 4, evidence=ended)).close()
            operations: dict[str, Callable[[], Any]] = {
                "acquired": lambda: users["acquired"].acquire(ask("c1", 3), timeout_s=120),
                "rival": lambda: users["rival"].acquire(ask("c2", 3, OTHER), timeout_s=0),
                "released": held.release,
                "quarantined": lambda: users["quarantined"].quarantine("gpu1", cause="lost"),
                "healed": lambda: users["healed"].heal("gpu1"),
                "collected": users["collected"].reclaim,
            }
            leader = ensemble.leader()
            ensemble.pause_server(leader)
            with ThreadPoolExecutor(len(operations)) as pool:
                # A process that gets NotEnough, or no answer yet, tries again.
                running = {name: pool.submit(retried, one) for name, one in operations.items()}
                time.sleep(0.3)
                assert not any(item.done() for item in running.values())
                ensemble.kill_server(leader)
                rivals = {running[name]: name for name in ("acquired", "rival")}
                first = rivals[next(iter(wait(rivals, 120, FIRST_COMPLETED).done))]
                [lease] = users["acquired"].record().leases
                assert (lease.application, len(lease.devices)) == (OTHER if first == "rival" else APP, 3)
                assert running[first].result().release()
                second = running["rival" if first == "acquired" else "acquired"].result(120)
                assert second.release()
            wait_until(lambda: not any(users[host].record().leases for host in hosts))
            [ill] = [device.quarantine for device in users["quarantined"].record().devices if device.quarantine]
            assert ill.count == number + 1
            assert not any(device.quarantine for device in users["healed"].record().devices)
            users["quarantined"].heal("gpu1", forgive=False)
            users["healed"].quarantine("gpu1", cause="operator", by="root")
            ensemble.start_server(leader)
            ensemble.wait_until_ready()


def retried(operation: Callable[[], Any]) -> Any:
    """Return its answer, when there is one."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return operation()
        except (NotEnough, Unreachable):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_lagging_server_causes_no_stale_read_and_no_missed_write(ensemble: ZooKeeper, tmp_path: Path) -> None:
    follower = next(name for name in ensemble.servers if ensemble.mode(name) == "follower")
    addresses = dict(zip(ensemble.servers, [f"{host}:{port}" for host, port in ensemble.addresses], strict=True))
    settings = ledger_settings(addresses[ensemble.leader()], "/behind/dlapp", "dlapp:secret", 10.0, str(tmp_path))
    behind = replace(settings, ensemble=addresses[follower])
    with (
        ZooKeeperLedger(settings, host="node7", discover=lambda: store_devices(4)) as ledger,
        ZooKeeperLedger(behind, host="node7", discover=lambda: store_devices(4)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        ledger.acquire(ask("c0", 1)).release()
        other.record()
        for number in range(12):
            ensemble.pause_server(follower)
            try:
                lease = ledger.acquire(ask(f"c{number}", 1))
                asked = (
                    pool.submit(other.record)
                    if number % 2
                    else pool.submit(other.force_release, "gpu0", token=lease.record.token, by="root")
                )
                time.sleep(0.1)  # so that what it asks waits there, beside what the leader says
            finally:
                ensemble.resume_server(follower)
            found = asked.result(120) or ledger.record()
            assert [item.container for item in found.leases] == ([f"c{number}"] if number % 2 else [])
            lease.release()


def test_the_host_of_the_ledger_is_not_kept_waiting_by_a_paused_writer(
    on_zookeeper: Open, settings: LedgerSettings
) -> None:
    """A writer that read long ago and writes now does not win: its version is old."""
    ledger = on_zookeeper()
    ledger.acquire(ask("c0", 1)).release()
    stale: HostRecord = ledger.record()
    late = on_zookeeper(over={"lock_dir": f"{settings.lock_dir}-elsewhere"})  # where nothing tells it that it is late
    late._known["node7"] = (stale, 1)
    lease = ledger.acquire(ask("c1", 4))
    with pytest.raises(NotEnough):
        late.acquire(ask("c2", 1, OTHER))
    assert [item.container for item in ledger.record().leases] == ["c1"]
    lease.release()


@pytest.mark.slow
def test_servers_end_with_the_test_that_started_them_even_if_it_is_killed() -> None:
    program = (
        "import os, signal\nfrom tests.services.zookeeper import ZooKeeper\n"
        "z = ZooKeeper.start()\nprint(z.directory, z._pid('zk1'), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    directory, pid = done.stdout.split()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
