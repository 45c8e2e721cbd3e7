"""TCP ports that tasks of one machine share out among themselves."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.system.files import UntrustedFile
from dlapp.system.network.port_range import PortRange, read_port_range
from dlapp.system.network.ports import PortsTaken, ephemeral_overlap, lock_ports
from tests.services.polling import wait_until
from tests.services.ports import free_range


@pytest.fixture
def few() -> PortRange:
    """Eight ports that are free now: of those that were when the tests were collected another test may have one."""
    first = free_range(8)
    return PortRange(first, first + 7)


def settings(place: Path, ephemeral: str, reserved: str = "") -> str:
    """Write the kernel's settings of a machine."""
    (place / "ip_local_port_range").write_text(f"{ephemeral}\n")
    (place / "ip_local_reserved_ports").write_text(f"{reserved}\n")
    return str(place)


def test_no_port_is_given_twice_and_an_exhausted_range_is_named(few: PortRange, tmp_path: Path) -> None:
    begin = few.first
    first = lock_ports(3, few, str(tmp_path / "locks"), begin=6)
    second = lock_ports(5, few, str(tmp_path / "locks"), begin=6)
    assert first.ports == (begin, begin + 1, begin + 2)
    assert sorted((*first.ports, *second.ports)) == list(range(begin, begin + 8))
    with pytest.raises(PortsTaken, match=f"of the ports {few} only 0 are free on this machine, and 2 are needed"):
        lock_ports(2, few, str(tmp_path / "locks"), begin=0)
    first.close()
    first.close()
    again = lock_ports(2, few, str(tmp_path / "locks"), begin=6)
    assert again.ports == (begin, begin + 1)
    again.close()
    second.close()


def test_ports_are_consecutive_where_as_many_are_free(few: PortRange, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", few.first + 2)):
        found = lock_ports(3, few, str(tmp_path), begin=0)
        assert found.ports == (few.first + 3, few.first + 4, few.first + 5)
        found.close()
        with socket.create_server(("127.0.0.1", few.first + 5)):
            found = lock_ports(3, few, str(tmp_path), begin=0)
            assert found.ports == (few.first, few.first + 1, few.first + 3)
            others = lock_ports(3, few, str(tmp_path), begin=0)  # no other was left locked
            assert others.ports == (few.first + 4, few.first + 6, few.first + 7)
            found.close()
            others.close()


def test_a_port_that_another_program_has_bound_is_passed_over(few: PortRange, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", few.first)):
        found = lock_ports(2, few, str(tmp_path), begin=0)
    assert found.ports == (few.first + 1, few.first + 2)
    assert found.taken_port() is None
    with socket.create_server(("127.0.0.1", found.ports[1])):
        assert found.taken_port() == found.ports[1]
    found.close()


def test_a_port_of_ipv6_alone_is_taken_too(few: PortRange, tmp_path: Path) -> None:
    with socket.create_server(("::1", few.first), family=socket.AF_INET6):
        found = lock_ports(1, few, str(tmp_path), begin=0)
    assert found.ports == (few.first + 1,)
    found.close()


def test_ports_are_free_when_the_last_process_that_inherited_them_has_died(few: PortRange, tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from dlapp.system.network.ports import *\n"
        f"one = lock_ports(8, PortRange(*{tuple(few)}), {str(tmp_path)!r}, begin=0)\n"
        "os.set_inheritable(one.fd, True)\n"
        "if os.fork(): print(flush=True); time.sleep(1000)\n"
        "os.execvp('sh', ['sh', '-c', 'echo ready; read word'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert sorted(holder.stdout.readline() for _ in range(2)) == [b"\n", b"ready\n"]
        holder.kill()
        holder.wait()
        with pytest.raises(PortsTaken, match="only 0 are free"):
            lock_ports(1, few, str(tmp_path), begin=0)
        assert holder.stdin is not None
        holder.stdin.close()
        assert holder.stdout.read() == b""

        def locked() -> bool:
            # Its child closes one descriptor after the other, and the lock's is not the first.
            with contextlib.suppress(PortsTaken):
                lock_ports(8, few, str(tmp_path), begin=0).close()
                return True
            return False

        wait_until(locked, what="its child has ended")


def test_a_range_that_overlaps_ephemeral_ports_is_refused(tmp_path: Path) -> None:
    kernel = settings(tmp_path, "32768\t60999")
    assert ephemeral_overlap(PortRange(20_000, 32_767), kernel) is None
    assert ephemeral_overlap(PortRange(20_000, 32_768), kernel) == (32_768, 60_999)
    with pytest.raises(PortsTaken, match=r"40000-40010 overlap with those .* \(32768-60999, .*ports=40000-40010"):
        lock_ports(1, PortRange(40_000, 40_010), str(tmp_path / "locks"), begin=0, settings=kernel)


@pytest.mark.parametrize(
    ("reserved", "is_free"), [("40000-40010", True), ("1,40000-40004,40005-50000", True), ("40000", False)]
)
def test_reserved_ports_of_the_kernels_range_may_be_used(tmp_path: Path, reserved: str, is_free: bool) -> None:
    kernel = settings(tmp_path, "1024 65535", reserved)
    assert (ephemeral_overlap(PortRange(40_000, 40_010), kernel) is None) is is_free


def test_a_file_that_is_no_lock_file_is_not_used(few: PortRange, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "ports").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedFile, match="is a symbolic link"):
        lock_ports(1, few, str(tmp_path), begin=0)
    (tmp_path / "ports").unlink()
    os.link(tmp_path / "elsewhere", tmp_path / "ports")
    with pytest.raises(UntrustedFile, match="has other names"):
        lock_ports(1, few, str(tmp_path), begin=0)


@pytest.mark.parametrize("text", ["", "20000", "20000-", "30000-20000", "80-100", "20000-70000", "a-b", "-1-20000"])
def test_an_invalid_port_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of ports"):
        read_port_range(text)


def test_a_range_of_ports_is_read() -> None:
    assert read_port_range("20000 - 20009") == (20_000, 20_009)
