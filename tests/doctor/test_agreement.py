"""Faults that make every application fail: dlapp-doctor reports each as a failure, as an application would."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client.preflight import check_home
from dlapp.config import load_config
from dlapp.doctor import gpu, hdfs, node
from dlapp.doctor.findings import FAIL, PASS, WARN, Check, CheckContext, Finding, run_checks
from dlapp.errors import Denied, DlappError, Unreachable, UsageError
from dlapp.gpuid import factory
from dlapp.gpuid.devices import Device
from dlapp.locations import NATIVE, FileInfo, HdfsPlace
from dlapp.login import Login
from dlapp.net.control import max_connections
from dlapp.node_policy import DockerPolicy, NodePolicy
from dlapp.storage.hdfs import staging
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.system.disk_space import full_disk
from dlapp.task import steps
from dlapp.task.step_errors import StepFailed
from dlapp.values.launch_spec import LedgerSettings
from tests.services.disks import fill, small_disk

PLACE = HdfsPlace("hdfs://nn", ("http://127.0.0.1:1",), Login("tony"))
HOME = "hdfs://nn/user/tony"


def by_subject(found: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in found}


@pytest.mark.parametrize(("allowed", "verdict"), [(False, FAIL), (True, WARN)])
def test_root_on_nodes_fails_unless_the_operator_allows_it(
    allowed: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = NodePolicy(docker=DockerPolicy(root=allowed))
    monkeypatch.setattr("dlapp.node_policy.node_policy", lambda: policy)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (found,) = node._user()
    assert found.verdict == verdict
    task: Any = SimpleNamespace(on_a_node=True, policy=policy, assignment=SimpleNamespace(docker_image=None))
    if allowed:
        steps._refuse_root(task)
        return
    with pytest.raises(StepFailed) as refused:
        steps._refuse_root(task)
    assert str(refused.value) in found.found


@pytest.mark.parametrize(("hard", "tasks"), [(200, 150), (4096, 3840), (524_288, None), (resource.RLIM_INFINITY, None)])
def test_a_low_open_file_limit_is_a_warning_with_the_number_of_tasks(
    hard: int, tasks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a low limit, and 256 of another, is for the process itself; nothing to say from 10,000 tasks on."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    (found,) = node._files()
    assert found.verdict == (PASS if tasks is None else WARN)
    if tasks is not None:
        assert f"serves {tasks} tasks" in found.found
        assert max_connections() == tasks


@pytest.mark.root("to mount a small disk")
def test_a_node_whose_disk_is_full_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 100 MiB is too small, and then full."""
    with small_disk(tmp_path, size_mib=100) as disk:
        monkeypatch.chdir(disk)
        (found,) = node._disk()
        assert found.verdict == WARN
        ballast = fill(disk)
        (found,) = node._disk()
        assert (found.verdict, found.found) == (FAIL, full_disk(str(disk / "file")))
        ballast.unlink()
        monkeypatch.chdir(tmp_path)


def test_a_noexec_file_system_of_a_node_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "is_noexec", lambda _: True)
    assert by_subject(node._disk())["node.exec"].verdict == FAIL


class Files:
    """An HDFS where the user may write or not, and home directories exist or not."""

    home = HOME

    def __init__(self, owner: str | None = "tony", problem: DlappError | None = None, mounts: str = "") -> None:
        self.owner, self.problem, self.mounts = owner, problem, mounts
        self.content: dict[str, bytes] = {}

    def close(self) -> None: ...

    def home_by_server(self) -> str:
        return "/user/tony"

    def check_one_destination(self, location: str) -> None:
        if self.mounts:
            raise UsageError(f"{location} is on {self.mounts}")

    def status(self, location: str) -> FileInfo | None:
        if location == HOME:
            return self.owner and self._info(0, self.owner)  # type: ignore[return-value]
        return self._info(len(self.content[location]), "tony") if location in self.content else None

    @staticmethod
    def _info(size: int, owner: str) -> FileInfo:
        info = dict.fromkeys(FileInfo._fields, 0) | {"size_bytes": size, "owner": owner, "mode": 0o755}
        return FileInfo(**info)  # type: ignore[arg-type]

    def make(self, location: str, mode: int) -> None:
        if self.problem:
            raise self.problem
        self.owner = self.owner or "tony"

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        if once and location in self.content:
            return False
        self.content[location] = data
        return True

    def read(self, location: str, *, max_bytes: int) -> bytes:
        return self.content[location]

    def remove(self, location: str) -> None:
        self.content.pop(location, None)


@pytest.mark.parametrize(
    ("files", "verdicts"),
    [
        (Files(), {"hdfs": PASS, "hdfs.home": PASS, "hdfs.write": PASS}),
        (Files(owner=None), {"hdfs": PASS, "hdfs.home": PASS, "hdfs.write": PASS}),  # who may create it has it
        (Files(owner="eve"), {"hdfs": PASS, "hdfs.home": WARN, "hdfs.write": PASS}),
        (Files(owner="eve", problem=Denied("tony may not write there")), {"hdfs": PASS, "hdfs.home": FAIL}),
        (Files(owner=None, problem=Denied("tony may not write there")), {"hdfs": PASS, "hdfs.home": FAIL}),
        (Files(mounts="two nameservices"), {"hdfs": PASS, "hdfs.home": FAIL}),
        (Files(problem=Unreachable("in safe mode")), {"hdfs": PASS, "hdfs.write": FAIL}),
    ],
    ids=["own", "may-create", "of-another", "of-another-closed", "missing", "router", "safe-mode"],
)
def test_the_check_of_the_hdfs_home_directory_agrees_with_a_submission(
    files: Files, verdicts: Mapping[str, str]
) -> None:
    found = by_subject(hdfs._writes(files, PLACE))  # type: ignore[arg-type]
    found.pop("clock.hdfs", None)  # these files have no time
    assert {name: one.verdict for name, one in found.items()} == verdicts
    failures = [finding.found for finding in found.values() if finding.verdict == FAIL]
    if not failures:
        check_home(files, "tony")  # type: ignore[arg-type]
        return
    with pytest.raises(DlappError) as refused:
        check_home(files, "tony")  # type: ignore[arg-type]
    assert failures == [str(refused.value)]


def test_failing_native_access_fails_if_webhdfs_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(_: NativeHdfs) -> str:
        raise Unreachable("127.0.0.1:1: refused")

    monkeypatch.setattr(NativeHdfs, "webhdfs_reason", no_answer)
    found = hdfs._protocol(PLACE._replace(protocol=NATIVE))
    assert (found.verdict, found.repair) == (FAIL, "set storage.hdfs to auto or webhdfs")
    assert hdfs._protocol(PLACE).verdict == PASS


@pytest.mark.parametrize(
    ("python", "archive", "problem"),
    [
        ("python3", "/apps/python.rar", "a NodeManager unpacks .tar.gz"),
        ("/usr/bin/python3", "/apps/python.tgz", "with yarn.python_archive it is a path in the archive"),
        ("python3", "/apps/python.tgz", "hdfs://nn/apps/python.tgz is not there"),
    ],
)
def test_a_python_that_yarn_cannot_bring_to_containers_fails(
    python: str, archive: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config({"yarn.python": python, "yarn.python_archive": archive}, environ={})
    monkeypatch.setattr(staging, "HdfsStagingFiles", lambda *_, **__: Files())
    checks = [
        check for check in hdfs.checks(CheckContext(config, hdfs=PLACE)) if check.subject == "yarn.python_archive"
    ]
    (found,) = run_checks(checks)
    assert found.verdict == FAIL
    assert problem in found.found
    assert not [
        check for check in hdfs.checks(CheckContext(config, on_node=True, hdfs=PLACE)) if "python" in check.subject
    ]


@pytest.mark.parametrize(("ill", "verdict"), [(0, None), (1, WARN), (2, FAIL)])
def test_a_cluster_whose_gpus_are_all_in_quarantine_fails(
    ill: int, verdict: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [Device(uuid=f"GPU-{number}", index=number, minor=number) for number in range(2)]
    devices = [
        SimpleNamespace(device=item, present=True, quarantine="hot" if item.index < ill else None) for item in gpus
    ]
    record = SimpleNamespace(host="h1", forgotten_ms=None, devices=devices)
    ledger = SimpleNamespace(host="h2", hosts=lambda **_: [("h1", record)], close=lambda: None)
    monkeypatch.setattr(factory, "open_cluster_ledger", lambda _: ledger)
    config = load_config({"gpuid.zookeeper.ensemble": "zk:2181", "gpuid.zookeeper.credentials": "none"}, environ={})
    settings = LedgerSettings(ensemble="zk:2181", root="/dlapp")
    found = by_subject(run_checks([Check("gpu", lambda: gpu._zookeeper(CheckContext(config, ledger=settings)))]))
    assert found["gpu.ledger"].verdict == PASS
    assert (found["gpu.quarantine"].verdict if ill else None) == verdict
