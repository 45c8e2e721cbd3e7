"""Checks and their findings, without anything to look at."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.config import load_config
from dlapp.doctor.findings import FAIL, PASS, WARN, Check, Finding, failed, passed, run_checks, warned
from dlapp.doctor.run import checks as all_checks
from dlapp.errors import Unreachable
from dlapp.node_policy import node_policy
from tests.services.disks import small_disk


def test_each_finding_of_each_check_comes_in_order() -> None:
    def first() -> Iterator[Finding]:
        yield passed("a", "is there")
        yield warned("a.b", "is small", "make room")

    found = list(run_checks([Check("a", first), Check("c", lambda: [failed("c", "is gone", "bring it")])]))
    assert [(one.verdict, one.subject, one.repair) for one in found] == [
        (PASS, "a", ""),
        (WARN, "a.b", "make room"),
        (FAIL, "c", "bring it"),
    ]


def test_what_a_check_raises_is_a_finding_and_the_next_is_carried_out() -> None:
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
    assert [(one.verdict, one.found) for one in found] == [
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
    found = [one for one in run_checks(all_checks(config)) if str(policy) in one.found]
    assert [(one.verdict, one.subject) for one in found] == [(FAIL, "node")]


def test_ports_and_an_interface_that_no_program_can_use_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    policy = tmp_path / "node.yaml"
    policy.write_text(f"ports: {own[0]}-{own[1]}\nnetwork_interface: nosuch0\n")
    monkeypatch.setattr(node_policy, "__defaults__", (str(policy),))
    monkeypatch.setattr(node_policy, "__kwdefaults__", {"owner": os.getuid()})
    config = load_config({"local.state_dir": str(tmp_path / "state"), "gpuid.lock_dir": str(tmp_path / "gpus")}, {})
    found = {one.subject: one for one in run_checks([one for one in all_checks(config) if one.subject == "node"])}
    ports, interface = found["node.ports"], found["node.interface"]
    assert (ports.verdict, f"({own[0]}-{own[1]})" in ports.found) == (WARN, True)
    assert f"ip_local_reserved_ports={own[0]}-{own[1]}" in ports.repair
    assert (interface.verdict, "no network interface nosuch0" in interface.found) == (FAIL, True)


@pytest.mark.root
@pytest.mark.parametrize("below", ["", "deep/below/it"])
def test_a_state_directory_where_nothing_is_executed_is_a_failure(tmp_path: Path, below: str) -> None:
    with small_disk(tmp_path, size_mib=100) as disk:
        config = load_config({"local.state_dir": str(disk / below / "state")}, {})
        checks = [one for one in all_checks(config) if one.subject == "local.state_dir"]
        assert not [one for one in run_checks(checks) if one.subject == "local.state_dir.exec"]
        subprocess.run(["mount", "-o", "remount,noexec", disk], check=True)
        (found,) = [one for one in run_checks(checks) if one.subject == "local.state_dir.exec"]
    assert found.verdict == FAIL
    assert str(disk) in found.found
    assert "noexec" in found.found
    assert "local.state_dir" in found.repair
