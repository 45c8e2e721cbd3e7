"""Checks and their findings, without anything to look at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client.operations.connections import caller
from dlapp.config import load_config
from dlapp.doctor import local
from dlapp.doctor.findings import FAIL, PASS, WARN, Check, Finding, failed, passed, run_checks, warned
from dlapp.doctor.run import checks as all_checks
from dlapp.errors import Unreachable
from dlapp.node_policy import node_policy
from tests.applications import run
from tests.services.disks import small_disk

LOCKS_C = Path(__file__).with_name("lost_locks.c")


def test_findings_are_in_the_order_of_checks() -> None:
    def first() -> Iterator[Finding]:
        yield passed("a", "is there")
        yield warned("a.b", "is small", "make room")

    found = list(run_checks([Check("a", first), Check("c", lambda: [failed("c", "is gone", "bring it")])]))
    assert [(finding.verdict, finding.subject, finding.repair) for finding in found] == [
        (PASS, "a", ""),
        (WARN, "a.b", "make room"),
        (FAIL, "c", "bring it"),
    ]


def test_an_exception_of_a_check_is_a_finding_and_the_next_check_runs() -> None:
    def dead() -> Iterator[Finding]:
        yield passed("server", "has a name")
        raise Unreachable("server: refused\nand more")

    def full() -> Iterator[Finding]:
        raise OSError(28, "No space left on device", "/disk/x")
        yield

    def broken() -> Iterator[Finding]:
        raise KeyError("x")
        yield

    checks = [Check("server", dead), Check("disk", full), Check("other", broken), Check("last", list)]
    found = list(run_checks(checks))
    assert [(finding.verdict, finding.found) for finding in found] == [
        (PASS, "has a name"),
        (FAIL, "server: refused and more"),
        (FAIL, "/disk/x: No space left on device"),
        (FAIL, "KeyError: 'x'"),
    ]
    assert "report it" in found[-1].repair


def test_a_fault_of_the_operators_file_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "node.yaml"
    policy.write_text("docker: {gpu_mode: cdi}\n")
    monkeypatch.setattr(node_policy, "__defaults__", (str(policy),))
    config = load_config({"local.state_dir": str(tmp_path / "state"), "gpuid.lock_dir": str(tmp_path / "gpus")}, {})
    found = [finding for finding in run_checks(all_checks(config)) if str(policy) in finding.found]
    assert [(finding.verdict, finding.subject) for finding in found] == [(FAIL, "node")]


def test_ports_and_an_interface_that_no_program_can_use_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    policy = tmp_path / "node.yaml"
    policy.write_text(f"ports: {own[0]}-{own[1]}\nnetwork_interface: nosuch0\n")
    monkeypatch.setattr(node_policy, "__defaults__", (str(policy),))
    monkeypatch.setattr(node_policy, "__kwdefaults__", {"owner": os.getuid()})
    config = load_config({"local.state_dir": str(tmp_path / "state"), "gpuid.lock_dir": str(tmp_path / "gpus")}, {})
    found = {
        finding.subject: finding
        for finding in run_checks([check for check in all_checks(config) if check.subject == "node"])
    }
    ports, interface = found["node.ports"], found["node.interface"]
    assert (ports.verdict, f"({own[0]}-{own[1]})" in ports.found) == (WARN, True)
    assert f"ip_local_reserved_ports={own[0]}-{own[1]}" in ports.repair
    assert (interface.verdict, "no network interface nosuch0" in interface.found) == (FAIL, True)


@pytest.mark.root
@pytest.mark.parametrize("below", ["", "deep/below/it"])
def test_a_noexec_state_directory_is_a_failure(tmp_path: Path, below: str) -> None:
    with small_disk(tmp_path, size_mib=100) as disk:
        config = load_config({"local.state_dir": str(disk / below / "state")}, {})
        checks = [check for check in all_checks(config) if check.subject == "local.state_dir"]
        assert not [finding for finding in run_checks(checks) if finding.subject == "local.state_dir.exec"]
        subprocess.run(["mount", "-o", "remount,noexec", disk], check=True)
        (found,) = [finding for finding in run_checks(checks) if finding.subject == "local.state_dir.exec"]
    assert found.verdict == FAIL
    assert str(disk) in found.found
    assert "noexec" in found.found
    assert "local.state_dir" in found.repair


def logout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, *, manager: bool = False) -> list[Finding]:
    """Return the findings on a logout with a busctl that prints ``answer``."""
    (tools := tmp_path / "tools").mkdir()
    (tools / "busctl").write_text(f"#!/bin/sh\n{answer}\n")
    (tools / "busctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    if manager:
        monkeypatch.setattr("dlapp.system.machine.own_cgroups", lambda: f"0::/user@{os.geteuid()}.service/a.scope")
    return [*run_checks([Check("local.logout", local._logout)])]


def test_a_file_system_that_gives_one_lock_twice_is_a_failure(tmp_path: Path) -> None:
    """Run dlapp-doctor twice: with locks as they are, and with one that is given to all who ask (`LOCKS_C`)."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the locks of one process cannot be changed")
    library = tmp_path / "locks.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, LOCKS_C], check=True)

    def locks(**environment: str) -> dict[str, str]:
        done = run("dlapp-doctor", "--json", env=environment)
        (found,) = [one for one in json.loads(done.out)["findings"] if one["subject"] == "local.locks"]
        assert done.code == 1 or found["verdict"] == PASS
        return dict(found)

    assert locks()["verdict"] == PASS
    found = locks(LD_PRELOAD=str(library))
    assert found["verdict"] == FAIL
    assert re.fullmatch(r"/.*/state/.*: its file system gives one lock twice", found["found"])
    assert found["repair"] == "set local.state_dir to a directory on a local disk"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("printf 'b true\\nas 0\\nas 0\\n'", WARN),
        ("printf 'b true\\nas 0\\nas 1 \"somebody\"\\n'", WARN),
        (f'printf \'b true\\nas 2 "a" "{caller()}"\\nas 0\\n\'', WARN),
        ("printf 'b false\\nas 0\\nas 0\\n'", PASS),
        (f'printf \'b true\\nas 0\\nas 2 "a" "{caller()}"\\n\'', PASS),
        ("printf 'b true\\nas 1 \"somebody\"\\nas 0\\n'", PASS),
        ("echo 'Failed to connect to bus' >&2; exit 1", None),
        ("echo", None),
    ],
)
def test_a_logout_that_ends_applications_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, verdict: str | None
) -> None:
    found = logout(tmp_path, monkeypatch, answer)
    assert [finding.verdict for finding in found] == ([] if verdict is None else [verdict])
    assert all(("loginctl enable-linger" in finding.repair) is (verdict == WARN) for finding in found)


@pytest.mark.parametrize("lingers", [True, False])
def test_with_lingering_enabled_a_logout_ends_no_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lingers: bool
) -> None:
    monkeypatch.setattr(local, "LINGER_DIR", str(tmp_path))
    if lingers:
        (tmp_path / caller()).touch()
    (found,) = logout(tmp_path, monkeypatch, "printf 'b true\\nas 0\\nas 0\\n'", manager=True)
    assert found.verdict == (PASS if lingers else WARN)
