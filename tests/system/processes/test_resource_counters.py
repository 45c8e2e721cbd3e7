"""Resource counters: by /proc of real processes, by cgroups of both versions as their files say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.system.processes import resource_counters
from dlapp.system.processes.resource_counters import NOTHING_KNOWN, CgroupCounters, ResourceCounters, read_tree

NAME = "f" * 64
NET = """Inter-|   Receive
 face |bytes    packets errs drop fifo frame compressed multicast|bytes
    lo: 100       2    0    0    0     0          0         0 100       2    0    0    0     0       0          0
  eth0: 5000      10    0    0    0     0          0         0 70       2    0    0    0     0       0          0
  eth1: 1         10    0    0    0     0          0         0 2       2    0    0    0     0       0          0
"""


def test_an_ended_process_counts_for_the_parent_that_reaped_it() -> None:
    burn = "import os\nwhile sum(os.times()[:2]) < 0.3: pass"
    script = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {burn!r}]); print('done', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        found = read_tree(process.pid).cpu_s
        assert found is not None
        assert 0.29 <= found < 2.0, "its own time is not counted, that of its child is"
        assert read_tree(process.pid, all_ended=True) == read_tree(process.pid)
        process.communicate()


def test_an_ended_process_has_no_counters() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert read_tree(gone.pid) == read_tree(gone.pid, all_ended=True) == NOTHING_KNOWN


def test_counters_never_decrease_and_keep_values_missing_from_a_reading() -> None:
    first = ResourceCounters(cpu_s=2.0, memory_bytes=10, read_bytes=5)
    later = first.updated(ResourceCounters(cpu_s=1.5, memory_bytes=4, written_bytes=7))
    assert later == ResourceCounters(cpu_s=2.0, memory_bytes=4, read_bytes=5, written_bytes=7)
    assert later.since(ResourceCounters(cpu_s=0.5, read_bytes=9)).cpu_s == 1.5


def files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def seen_as(monkeypatch: pytest.MonkeyPatch, cgroup: str) -> None:
    texts = {"cgroup": cgroup.encode(), "net/dev": NET.encode()}
    monkeypatch.setattr(resource_counters, "read_proc", lambda _pid, name: texts[name])


def test_a_cgroup_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_as(monkeypatch, f"0::/system.slice/docker-{NAME}.scope\n")
    files(
        tmp_path / f"system.slice/docker-{NAME}.scope",
        {
            "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\n",
            "memory.current": "1000\n",
            "memory.stat": "anon 600\ninactive_file 300\n",
            "memory.peak": "1500\n",
            "io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n",
        },
    )
    found = CgroupCounters(os.getpid(), NAME, own_network=True, root=str(tmp_path)).read()
    assert found == ResourceCounters(2.5, 700, 1500, 11, 22, 5001, 72)


def test_a_cgroup_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchies = ("9:name=systemd", "4:memory", "2:cpu,cpuacct")
    seen_as(monkeypatch, "".join(f"{hierarchy}:/docker/{NAME}\n" for hierarchy in hierarchies) + "0::/\n")
    files(
        tmp_path,
        {
            f"cpuacct/docker/{NAME}/cpuacct.usage": "2500000000\n",
            f"memory/docker/{NAME}/memory.usage_in_bytes": "1000\n",
            f"memory/docker/{NAME}/memory.stat": "cache 400\ntotal_inactive_file 300\n",
            f"memory/docker/{NAME}/memory.max_usage_in_bytes": "1500\n",
        },
    )
    found = CgroupCounters(os.getpid(), NAME, own_network=False, root=str(tmp_path)).read()
    assert found == ResourceCounters(2.5, 700, 1500), "what is not mounted, and the host's network, is not known"


def test_a_cgroup_of_another_container_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_as(monkeypatch, "0::/system.slice/docker-abc.scope\n")
    files(tmp_path / "system.slice/docker-abc.scope", {"cpu.stat": "usage_usec 2500000\n"})
    found = CgroupCounters(os.getpid(), NAME, own_network=False, root=str(tmp_path))
    assert not found.exists
    assert found.read() == NOTHING_KNOWN
