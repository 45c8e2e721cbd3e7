"""The parts of the embedded engine that need no processes: state directory, rows, capacity, reasons, outcomes."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.local import capacity, outcome, views
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.runner import history
from dlapp.cluster.local.schedule import QueueOrder, lack, too_large
from dlapp.cluster.local.settings import settings_of
from dlapp.cluster.local.state import (
    StateDir,
    file_url,
    is_locked,
    machine_name,
    open_state,
    write_atomically,
)
from dlapp.config import load_config
from dlapp.errors import ConfigError, Denied, DlappError, Unreachable
from dlapp.scheduler.amounts import Amounts
from dlapp.system import locks
from dlapp.system.processes.spawn import PROGRAM, spawn


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return open_state(str(tmp_path / "state"))


@pytest.fixture
def queue(state: StateDir) -> Iterator[Queue]:
    with Queue(state) as queue:
        yield queue


def insert(queue: Queue, /, **columns: object) -> str:
    values: dict[str, object] = {
        "uid": os.geteuid(),
        "submitter": "tony",
        "username": "tony",
        "appname": "x",
        "memory_mib": 100,
        "vcores": 1,
        "gcores": 0,
        "containers": 1,
        "archive": "/nowhere",
        "submitted_ms": 1,
    }
    return queue.insert(**(values | columns))


# ---- the state directory ----


def test_state_directories_of_one_millisecond_have_different_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make three state directories at the same time, and an application in each: Docker's names have the ids, and there
    are 65,536 of them in that time."""
    monkeypatch.setattr("dlapp.system.clock.now_ms", lambda: 1_700_000_000_000)
    found = set()
    for name in ("a", "b", "c"):
        with Queue(open_state(str(tmp_path / name))) as queue:
            found.add(insert(queue))
    assert len(found) > 1


def test_a_state_directory_on_a_network_file_system_is_refused_by_name(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {os.path.realpath(tmp_path)} rw - nfs4 server:/home rw\n")
    with pytest.raises(ConfigError, match=r"state lies on a network file system \(nfs4, server:/home\).*set local.sta"):
        open_state(str(tmp_path / "state"), mountinfo=str(mounts))
    assert not (tmp_path / "state").exists()


def test_a_state_directory_is_private_and_of_this_machine(tmp_path: Path) -> None:
    state = open_state(str(tmp_path / "a" / "state"))
    assert Path(state.path).name == machine_name()
    assert os.stat(state.path).st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "a" / "state").st_mode & 0o777 == 0o700


def test_a_missing_home_directory_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(Denied, match=f"local.state_dir: {home}: this home directory does not exist; set HOME, or "):
        open_state(str(home / ".local/state/dlapp"))
    assert list(tmp_path.iterdir()) == []
    home.mkdir()
    assert Path(open_state(str(home / ".local/state/dlapp")).path).is_dir()


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="is not a directory"):
        open_state(str(tmp_path / "state"))


def test_a_shared_directory_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is to be shared by a group and is not there: install -d -m 3770"):
        open_state(str(tmp_path / "state"), shared=True)


# ---- locks, processes, files ----


def test_a_lock_is_free_when_all_inheriting_processes_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    assert locks.try_lock(fd)
    assert is_locked(str(path))
    child = spawn(["/bin/sleep", "60"], keep=[fd], log=str(tmp_path / "log"))
    os.close(fd)
    assert is_locked(str(path))
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert not is_locked(str(path))


def test_a_lock_is_taken_once_and_checking_it_does_not_take_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert not is_locked(str(path))
    assert locks.try_lock(first)
    assert not locks.try_lock(second)
    os.close(first)
    assert locks.try_lock(second)
    os.close(second)
    assert not is_locked(str(tmp_path / "nothing"))


def test_a_spawned_process_inherits_only_the_given_descriptors(tmp_path: Path) -> None:
    extra = os.open("/dev/zero", os.O_RDONLY)
    keep = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("a", "b")]
    keep.reverse()
    show = "import os; print([os.path.basename(os.readlink(f'/proc/self/fd/{fd}')) for fd in range(5)])"
    show += f"; print(os.path.exists('/proc/self/fd/{extra}'))"
    os.waitpid(spawn([sys.executable, "-I", "-c", show], keep=keep, log=str(tmp_path / "log")), 0)
    for fd in (extra, *keep):
        os.close(fd)
    passed_on = extra in (3, 4)  # then that number is another's in the child
    assert (tmp_path / "log").read_text() == f"['null', 'log', 'log', 'b', 'a']\n{passed_on}\n"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(str(path), "old", mode=0o600)
    write_atomically(str(path), "new", sync=True)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_a_files_url_leads_back_to_the_file(name: bytes) -> None:
    path = os.fsdecode(b"/" + name)
    assert os.fsdecode(unquote_to_bytes(file_url(path).removeprefix("file://"))) == path
    assert file_url(path).isascii()


@pytest.mark.parametrize(
    ("module", "without"),
    [
        (
            "dlapp.cluster.local.runner.main",
            {"dataclasses", "dlapp.values.report", "subprocess", "typing_extensions", "ctypes"},
        ),
        ("dlapp.cluster.local.runner.process", {"sqlite3", "dlapp.cluster.local.runner.main"}),
        ("dlapp.cluster.local.am_engine", {"sqlite3", "subprocess", "logging", "urllib", "pynvml"}),
    ],
)
def test_a_dlapp_process_loads_no_unneeded_modules(module: str, without: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert without & set(loaded.split()) == set()


# ---- rows ----


def test_a_number_is_never_given_twice(queue: Queue) -> None:
    with queue.change():
        first = insert(queue)
    with queue.change():
        queue.delete(1)
    with queue.change():
        assert insert(queue) != first


def test_an_error_in_a_change_rolls_it_back(queue: Queue) -> None:
    def half() -> None:
        with queue.change():
            insert(queue)
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert queue.rows() == []


def test_a_state_directory_of_a_newer_dlapp_is_refused(state: StateDir, queue: Queue) -> None:
    queue.rows()
    queue.close()
    connection = sqlite3.connect(state.database)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with (
        Queue(state) as again,
        pytest.raises(Unreachable, match=r"written by a newer dlapp \(schema 99, this one supports"),
    ):
        again.rows()


def test_rows_of_an_earlier_dlapp_are_shown_and_new_ones_have_their_labels(state: StateDir, queue: Queue) -> None:
    with queue.change():
        old = insert(queue)
    queue.close()
    connection = sqlite3.connect(state.database)
    for name in ("queue", "priority", "project", "tags"):
        connection.execute(f"ALTER TABLE applications DROP COLUMN {name}")
    connection.close()
    row = queue.row(old)
    assert row is not None
    assert (row.queue, row.priority, row.project, row.tags) == ("default", None, "", "")
    with queue.change():
        new = insert(queue, queue="gpu", priority=3, project="cats", tags="a\nb")
    shown = [views.view_of(row, "/nowhere", "", QueueOrder(), alive=False, has_runner=False) for row in queue.rows()]
    assert [
        (view["application_id"], view["queue"], view["priority"], view["project"], view["tags"]) for view in shown
    ] == [
        (old, "default", None, "", []),
        (new, "gpu", 3, "cats", ["a", "b"]),
    ]


def test_a_file_that_is_no_database_is_an_error_in_a_line(state: StateDir) -> None:
    Path(state.database).write_text("garbage" * 1000)
    with Queue(state) as queue, pytest.raises(Unreachable, match="not a database"):
        queue.rows()


def test_a_connection_is_not_carried_over_a_fork(queue: Queue) -> None:
    with queue.change():
        insert(queue)
    before = queue._connection
    pid = os.fork()
    if pid == 0:
        fine = len(queue.rows()) == 1 and queue._connection is not before
        os._exit(0 if fine else 1)
    assert os.waitpid(pid, 0)[1] == 0


# ---- capacity ----


def machine(root: Path, *, cgroup: str, mountinfo: str, files: dict[str, str]) -> str:
    """A machine of 16 GiB under ``root``."""
    texts = {"proc/meminfo": "MemTotal: 16777216 kB\n", "proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo}
    for name, text in {**texts, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


V2 = "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = """\
30 22 0:26 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 22 0:27 {top} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
"""


def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    root = machine(
        tmp_path, cgroup="0::/user.slice\n", mountinfo=V2, files={"sys/fs/cgroup/user.slice/memory.max": "max"}
    )
    assert capacity.memory_mib(root) == 16384
    assert capacity.vcores(root, allowed=16, online=16) == 16
    assert capacity.vcores(root, allowed=2, online=2) == 8


def test_the_narrowest_cgroup_above_us_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/memory.max": str(4 << 30),
        "sys/fs/cgroup/a/b/memory.max": str(8 << 30),
        "sys/fs/cgroup/a/cpu.max": "250000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
    }
    root = machine(tmp_path, cgroup="0::/a/b\n", mountinfo=V2, files=files)
    assert capacity.memory_mib(root) == 4096
    assert capacity.vcores(root, allowed=8, online=8) == 2


def test_cgroups_of_version_1_count_as_well(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 << 30),
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
    }
    root = machine(tmp_path, cgroup="8:memory:/job\n1:cpu,cpuacct:/job\n", mountinfo=V1.format(top="/"), files=files)
    assert capacity.memory_mib(root) == 2048
    assert capacity.vcores(root, allowed=8, online=8) == 1


def test_in_a_container_the_mount_is_our_cgroup(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 30)}
    root = machine(tmp_path, cgroup="8:memory:/docker/abc\n", mountinfo=V1.format(top="/docker/abc"), files=files)
    assert capacity.memory_mib(root) == 1024


def test_a_limit_of_two_cpus_is_two_vcores_in_every_form(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "200000 100000"}
    quota = machine(tmp_path / "quota", cgroup="0::/\n", mountinfo=V2, files=files)
    free = machine(tmp_path / "free", cgroup="0::/\n", mountinfo=V2, files={})
    assert capacity.vcores(quota, allowed=16, online=16) == 2
    assert capacity.vcores(quota, allowed=1, online=16) == 1
    assert capacity.vcores(free, allowed=2, online=16) == 2


def test_this_machine_has_memory_and_a_vcore() -> None:
    assert capacity.memory_mib() > 64
    assert 1 <= capacity.cores() <= (os.cpu_count() or 1)
    assert capacity.vcores() >= capacity.cores()


@pytest.fixture
def limited() -> Iterator[list[Path]]:
    """Cgroups of this machine's kernel, of the version that it has, limited to 2 CPUs and 1 GiB."""
    name = f"dlapp-test-{os.getpid()}"
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        limits = {Path("/sys/fs/cgroup", name): {"cpu.max": "200000 100000", "memory.max": str(1 << 30)}}
    else:
        limits = {
            Path("/sys/fs/cgroup/cpu", name): {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "200000"},
            Path("/sys/fs/cgroup/memory", name): {"memory.limit_in_bytes": str(1 << 30)},
        }
    try:
        try:
            for group, texts in limits.items():
                group.mkdir()
                for file, text in texts.items():
                    (group / file).write_text(text)
        except OSError as error:
            pytest.skip(f"no cgroups that can be limited: {error}")
        yield list(limits)
    finally:
        for group in limits:
            if group.exists():
                group.rmdir()


@pytest.mark.root("to limit a cgroup")
def test_the_kernels_own_limits_are_respected(limited: list[Path]) -> None:
    enter = 'for group; do echo $$ >"$group/cgroup.procs" || exit 9; done; exec "$PYTHON" -c "$CODE"'
    code = "from dlapp.cluster.local.capacity import memory_mib, vcores; print(vcores(), memory_mib())"
    shown = subprocess.run(
        ["/bin/sh", "-c", enter, "sh", *limited],
        env={**os.environ, "PYTHON": sys.executable, "CODE": code},
        capture_output=True,
        text=True,
    )
    assert (shown.stdout.split(), shown.stderr) == (["2", "1024"], "")


# ---- which requests fit, and the messages for the others ----


def row(number: int, memory_mib: int = 0, vcores: int = 0, gcores: int = 0) -> ApplicationRow:
    names = ("number", "id", "state", "submitter", "memory_mib", "vcores", "gcores")
    return ApplicationRow(names, (number, f"application_1_{number:04d}", "running", "tony", memory_mib, vcores, gcores))


def test_amounts_that_look_the_same_when_rounded_are_shown_in_full() -> None:
    message = next(too_large(Amounts(24690, 1, 0), Amounts(24680, 8, 0)))
    assert message is not None
    assert message.problem == "asked for 24690 MiB of memory, this machine has 24680 MiB of memory"


def test_the_first_missing_resource_is_named_with_its_holders() -> None:
    holders = [row(1, memory_mib=512), row(2, vcores=4), row(3, vcores=1), row(4, vcores=1), row(5, vcores=1)]
    message = lack(Amounts(1, 8, 0), Amounts(1024, 2, 0), holders)
    assert message == (
        "needs 8 vcores, 2 free: application_1_0002 (tony), application_1_0003 (tony), application_1_0004 (tony) "
        "and others"
    )


@given(*[st.tuples(*[st.integers(0, 1 << 20)] * 3)] * 2)
def test_a_resource_is_missing_exactly_if_the_request_does_not_fit(
    asked: tuple[int, int, int], available: tuple[int, int, int]
) -> None:
    fits = all(wanted <= free for wanted, free in zip(asked, available, strict=True))
    assert (lack(Amounts(*asked), Amounts(*available)) is None) == fits
    assert (list(too_large(Amounts(*asked), Amounts(*available))) == []) == fits


# ---- outcomes ----


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", ""),
        ("hello\n", ""),
        ("Traceback (most recent call last):\n  File x\n    y\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("Traceback (most recent call last):\n  File x\nA: 1\nTraceback (most recent call last):\n  F\nB: 2\n", "B: 2"),
        ("Traceback (most recent call last):\n  File x\n", ""),
    ],
)
def test_the_last_traceback_of_a_log_is_its_error(tmp_path: Path, log: str, error: str) -> None:
    (tmp_path / "am.log").write_text(log)
    assert outcome.last_error(str(tmp_path / "am.log")) == error


def test_a_missing_log_has_no_error_and_no_last_line(tmp_path: Path) -> None:
    assert outcome.last_error(str(tmp_path / "am.log")) == ""
    assert outcome.last_line(str(tmp_path / "am.log")) == ""


def test_the_last_line_of_a_log_is_shown_without_time_and_level(tmp_path: Path) -> None:
    (tmp_path / "am.log").write_text("hello\n2025-03-04 17:02:11,305 ERROR no NameNode answers\n\n")
    assert outcome.last_line(str(tmp_path / "am.log")) == "no NameNode answers"


def test_a_death_after_a_kill_request_is_a_kill(tmp_path: Path) -> None:
    (tmp_path / "am.json").write_text("{}")
    (tmp_path / "kill.json").write_text(json.dumps({"by": "tony"}))
    derived = outcome.derive(str(tmp_path), "boot", "boot")
    assert derived is not None
    assert (derived["state"], derived["diagnostics"]) == ("KILLED", "killed by tony, no output kept")


def test_a_death_in_a_commit_is_not_decided_yet(tmp_path: Path) -> None:
    (tmp_path / "commit.json").write_text("{}")
    assert outcome.derive(str(tmp_path), "boot", "boot") is None


def test_an_outcome_that_is_no_json_is_an_error_by_name(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text("[]")
    with pytest.raises(DlappError, match=r"outcome.json cannot be read: is not a JSON object"):
        outcome.read_outcome(str(tmp_path))


# ---- what is cleared ----


def test_a_row_with_bytes_that_are_no_text_is_read(state: StateDir, queue: Queue) -> None:
    """Root and members of a shared queue read what its owner may have written."""
    with queue.change():
        one = insert(queue)
    with sqlite3.connect(state.database) as connection:
        connection.execute("UPDATE applications SET appname = CAST(x'6dff78' AS TEXT)")
    connection.close()
    row = queue.row(one)
    assert row is not None
    assert row.appname == "m\ufffdx"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("appname = x'6dff78'", "bytes instead of str as its appname"),
        ("memory_mib = 'many'", "str instead of int as its memory_mib"),
        ("started_ms = 0.5", "float instead of int | None as its started_ms"),
    ],
)
def test_a_row_with_a_value_of_another_type_is_refused_by_name(
    state: StateDir, queue: Queue, change: str, what: str
) -> None:
    """Write a value of another type into a column, as SQLite lets its owner, beside a row that is in order."""
    with queue.change():
        insert(queue)
        insert(queue)
    assert len(queue.rows()) == 2
    with sqlite3.connect(state.database) as connection:
        connection.execute(f"UPDATE applications SET {change} WHERE number = 2")
    connection.close()
    with pytest.raises(Unreachable, match=f"^{re.escape(f'{state.database}: a row has {what}')}$"):
        queue.rows()


def test_the_cache_keeps_needed_fresh_and_recently_used_entries(state: StateDir, queue: Queue, tmp_path: Path) -> None:
    texts = {"storage.cache_limit": "2500b", "storage.cache_age": "10d"}
    settings = settings_of(load_config(texts, environ={}), PROGRAM)
    now_s = 1_700_000_000.0
    cache = Path(state.cache(os.geteuid()))
    for name, age_s in {
        "needed": 99e5,
        "ancient": 98e5,
        "old": 90000,
        "older": 95000,
        "used": 80000,
        "fresh": 10,
    }.items():
        (cache / name).write_bytes(b"x" * 1000)
        os.utime(cache / name, (now_s - age_s, now_s - age_s))
    with queue.change():
        insert(queue, archive=str(cache / "needed"))
    assert history.clear_cache(state, queue, settings, os.geteuid(), now_s) == 3
    assert sorted(os.listdir(cache)) == ["fresh", "needed", "used"]


def test_a_history_that_is_too_large_loses_its_oldest(state: StateDir, queue: Queue) -> None:
    settings = settings_of(load_config({"history.limit": "250b"}, environ={}), PROGRAM)
    with queue.change():
        ids = [insert(queue, state="done", finished_ms=number, size_bytes=100) for number in range(1, 5)]
        waiting = insert(queue)
    for id_ in ids:
        os.makedirs(os.path.join(state.application(id_), "containers", "locked"), mode=0o500)
    assert history.clear_old(state, queue, settings, os.geteuid(), 1.0) == 2
    assert [row.id for row in queue.rows()] == [*ids[2:], waiting]
    assert sorted(os.listdir(state.applications)) == ids[2:]


@pytest.mark.parametrize("at_ms", [-1, views.MAX_MS + 1])
def test_a_view_of_another_user_with_a_restart_at_no_time_is_refused(at_ms: int) -> None:
    def seen(ms: int) -> dict[str, object]:
        restart = {"role": "worker", "generation": 1, "at_ms": ms, "container": 0, "cause": "exit code 1"}
        name = "application_1700000000000_0001"
        return {"application_id": name, "attempt": 1, "state": "RUNNING", "restarts": [restart]}

    assert views.checked_view(seen(1))["restarts"][0]["cause"] == "exit code 1"
    with pytest.raises(DlappError, match="invalid time"):
        views.checked_view(seen(at_ms))


@pytest.mark.parametrize("name", ["/etc/profile.d", "..", "a/../../b", "a//b", "a\nb"])
def test_a_view_of_another_user_with_a_path_as_a_name_is_refused(name: str) -> None:
    def seen(output: str, role: str) -> dict[str, object]:
        container = {"container_id": "container_1700000000000_0001_01_000002", "role": role, "role_index": 0}
        return {
            "application_id": "application_1700000000000_0001",
            "attempt": 1,
            "state": "RUNNING",
            "outputs": [{"name": output, "target": "file:///home/mallory/x", "committed": True}],
            "containers": [container | {"index": 0, "phase": "running", "log_url": "file:///home/mallory/x"}],
        }

    assert views.checked_view(seen("", "worker"))["outputs"][0]["committed"]
    assert views.checked_view(seen("a/b", "worker"))["outputs"][0]["name"] == "a/b"
    for strange in (seen(name, "worker"), seen("", name)):
        with pytest.raises(DlappError, match="invalid name"):
            views.checked_view(strange)
