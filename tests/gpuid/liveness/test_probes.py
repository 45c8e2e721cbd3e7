"""Test what each witness says of a payload, and that what cannot be known is said to be unknown."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.gpuid.liveness import probes
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.locked_devices import HeldDevices
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.net.dockerd import ContainerSummary, DockerSilent
from dlapp.system import locks
from dlapp.system.machine import boot_id, cgroup_directories
from tests.services.containers.dockerd import IMAGE, own_daemon
from tests.services.polling import PATIENCE_S, wait_until
from tests.services.processes.ledger_process import fake_devices

ROOT = Path(__file__).resolve().parents[3]
LABEL = "dlapp.container=container_1700000000000_0001_01_000002"


def no_devices(uuids: Any) -> Liveness:
    return Liveness(GONE)


HERE = "unix:///nowhere"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the thread that opens a lifeline, and for dockerd, however late they are."""
    monkeypatch.setattr(probes, "_LIFELINE_S", PATIENCE_S)
    monkeypatch.setattr(probes, "CHECK_TIMEOUT_S", PATIENCE_S)


def judge(found: dict[str, Any], **more: Any) -> Liveness:
    return LivenessProbes(devices=no_devices, docker_host=HERE, **more).check(found, boot_id(), ["GPU-0"])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def task_of(pid: int) -> dict[str, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {"pid": pid, "start_time": int(fields[19]), "pid_ns": os.stat("/proc/self/ns/pid").st_ino}


# ---- the cgroup ----


def test_a_cgroup_is_evidence_only_if_it_is_named_like_the_container(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    )
    name = "container_1700000000000_0001_01_000002"
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"1:cpu:/hadoop-yarn/{name}\n0::/\n")
    found = f"{tmp_path}/sys/fs/cgroup/cpu/hadoop-yarn/{name}"
    assert probes.cgroup_of_container(name, str(tmp_path)) == found
    assert probes.cgroup_of_container("container_1700000000000_0001_01_000003", str(tmp_path)) is None


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of this test alone."""
    above = next(iter(cgroup_directories("/", "pids") or cgroup_directories("/", "cpu")), "")
    place = Path(above) / f"dlapp-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    yield place
    with contextlib.suppress(FileNotFoundError):
        place.rmdir()


@pytest.mark.root("to make a cgroup")
def test_a_removed_cgroup_proves_the_end_of_an_invisible_task(cgroup: Path, sleeper: subprocess.Popen[bytes]) -> None:
    lost = {"task": task_of(sleeper.pid) | {"pid_ns": 1}, "lock": {"directory": "/nowhere"}, "cgroup": str(cgroup)}
    (cgroup / "cgroup.procs").write_text(str(sleeper.pid))
    assert judge(lost).state == UNKNOWN
    assert judge({"task": task_of(sleeper.pid) | {"start_time": 1}, "cgroup": str(cgroup)}).state == GONE
    sleeper.kill()
    sleeper.wait()
    assert judge(lost).state == UNKNOWN  # it is there
    cgroup.rmdir()
    assert judge(lost).state == GONE
    computing = LivenessProbes(devices=lambda _: Liveness(ALIVE, "process 7 computes on gpu0"))
    assert computing.check(lost, boot_id(), ["GPU-0"]).state == ALIVE
    here = task_of(os.getpid())
    assert judge(lost | {"task": here}).state == ALIVE


@pytest.mark.parametrize("path", [7, "", "cpu/x", "/nowhere/at/all", "/etc/x", "/sys/fs/cgroup/../x", "/a\0b"])
def test_an_invalid_cgroup_path_is_unknown(path: Any, sleeper: subprocess.Popen[bytes]) -> None:
    assert judge({"task": task_of(sleeper.pid) | {"pid_ns": 1}, "cgroup": path}).state == UNKNOWN


# ---- the task ----


def test_a_task_that_runs_is_alive_and_one_that_ended_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    task = task_of(sleeper.pid)
    found = judge({"task": task})
    assert (found.state, found.why, found.is_task_alive) == (ALIVE, f"its task {sleeper.pid} is running", True)
    sleeper.send_signal(signal.SIGSTOP)
    assert judge({"task": task}).state == ALIVE
    sleeper.kill()
    wait_until(lambda: judge({"task": task}).state == GONE)  # a zombie first: nobody waited for it yet
    sleeper.wait()
    assert judge({"task": task}).state == GONE


def test_another_process_with_the_pid_of_the_task_is_not_the_task(sleeper: subprocess.Popen[bytes]) -> None:
    assert judge({"task": task_of(sleeper.pid) | {"start_time": 1}}).state == GONE


def test_a_task_in_another_pid_namespace_is_unknown(sleeper: subprocess.Popen[bytes]) -> None:
    found = judge({"task": task_of(sleeper.pid) | {"pid_ns": 1}})
    assert (found.state, found.why) == (UNKNOWN, f"its task {sleeper.pid} is in another pid namespace")


@pytest.mark.root("to hide /proc")
def test_a_task_hidden_by_proc_is_unknown_and_an_ended_one_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    tasks = [task_of(sleeper.pid), task_of(sleeper.pid) | {"pid": gone.pid}]
    program = (
        "import json, sys\nsys.path[:0] = [sys.argv[2]]\nfrom dlapp.gpuid.liveness.probes import _task\n"
        "print([_task(one).state for one in json.loads(sys.argv[1])])\n"
    )
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
    inside = (
        'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=60001 --regid=60001 --clear-groups "$0" "$@"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, python, "-I", "-c", program, json.dumps(tasks), str(ROOT)],
        capture_output=True,
        text=True,
    )
    if "mount" in done.stderr and "denied" in done.stderr:
        pytest.skip("this machine lets nobody mount a /proc of their own")
    assert (done.returncode, done.stdout.strip()) == (0, "['unknown', 'gone']"), done.stderr


@pytest.mark.root("to make a pid namespace")
def test_from_inside_another_pid_namespace_a_task_is_unknown(sleeper: subprocess.Popen[bytes]) -> None:
    program = (
        "import json, sys\nsys.path[:0] = [sys.argv[2]]\nfrom dlapp.gpuid.liveness.probes import _task\n"
        "print(_task(json.loads(sys.argv[1])).state)\n"
    )
    command = [sys.executable, "-I", "-c", program, json.dumps(task_of(sleeper.pid)), str(ROOT)]
    done = subprocess.run(["unshare", "--pid", "--fork", *command], capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(f"this machine lets nobody make a pid namespace: {done.stderr.strip()}")
    assert done.stdout.strip() == "unknown", done.stderr


# ---- lock and lifeline ----


def held(directory: Path, token: str) -> HeldDevices:
    """Cards of this machine, locked for a lease of a cluster's ledger."""
    ledger = MachineLedger(str(directory), discover=lambda: fake_devices(2))
    found = ledger.hold(fake_devices(2), LeaseRequest("application_1_1", "c1", "tony", 2), token=token)
    assert isinstance(found, HeldDevices)
    return found


def test_an_inherited_lock_counts_as_held(tmp_path: Path) -> None:
    mine = held(tmp_path, "mine")
    child = subprocess.Popen(["sleep", "60"], pass_fds=mine.fds)
    mine.close()
    assert judge({"lock": mine.evidence}) == Liveness(ALIVE, "a process of it still holds its lock")
    child.kill()
    child.wait()
    assert judge({"lock": mine.evidence}).state == GONE


def test_a_lock_taken_by_another_since_proves_the_end(tmp_path: Path) -> None:
    mine = held(tmp_path, "mine")
    mine.close()
    other = held(tmp_path, "other")
    assert judge({"lock": mine.evidence}).state == GONE
    assert judge({"lock": other.evidence}).state == ALIVE
    other.close()


def test_a_lock_whose_file_was_removed_is_recognized_by_its_record(tmp_path: Path) -> None:
    mine = held(tmp_path, "mine")
    for name in ("GPU-0", "GPU-1"):
        os.unlink(tmp_path / name)
    assert judge({"lock": mine.evidence}).state == ALIVE
    mine.close()
    assert judge({"lock": mine.evidence}).state == GONE
    for odd in (None, 3, {}, {**mine.evidence, "cards": {}}, {**mine.evidence, "cards": {"../GPU-0": 1}}):
        assert judge({"lock": odd, "task": {}}).state == UNKNOWN


def test_the_lock_of_a_dlapp_that_wrote_no_records_is_the_device_s_own(tmp_path: Path) -> None:
    held(tmp_path, "first").release()
    fd = os.open(tmp_path / "GPU-0", os.O_RDWR)
    assert locks.try_lock(fd, 0, 2)
    devices = {"GPU-0": os.fstat(fd).st_ino}
    lock = {"directory": str(tmp_path), "token": "old", "cards": devices}
    assert judge({"lock": lock}).state == ALIVE
    os.close(fd)
    assert judge({"lock": lock}).state == GONE
    other = held(tmp_path, "other")
    assert judge({"lock": lock}).state == GONE
    other.release()
    os.unlink(tmp_path / "GPU-0")
    assert judge({"lock": lock}).state == UNKNOWN


@pytest.mark.parametrize(
    ("task", "containers", "state"),
    [
        (None, "unasked", UNKNOWN),
        (None, "silent", UNKNOWN),
        (None, "none", GONE),
        ("gone", "unasked", UNKNOWN),
        ("gone", "silent", UNKNOWN),
        ("gone", "none", GONE),
        ("alive", "none", ALIVE),
        ("gone", "running", ALIVE),
    ],
)
@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES])
def test_an_invisible_lifeline_is_unknown_unless_dockerd_proves_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sleeper: subprocess.Popen[bytes],
    error: int,
    task: str | None,
    containers: str,
    state: str,
) -> None:
    fifo = str(tmp_path / "home" / "life")
    opened = os.open

    def open_for_another(path: str, flags: int, *more: Any, **named: Any) -> int:
        if path == fifo:
            raise OSError(error, os.strerror(error), path)
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", open_for_another)
    found: dict[str, Any] = {"fifo": fifo}
    if task is not None:
        found["task"] = task_of(sleeper.pid) | ({"start_time": 1} if task == "gone" else {})
    if containers != "unasked":
        found["docker"] = {"host": HERE, "label": LABEL}
    daemon = Daemon({"silent": None, "none": [], "running": [("0123456789abcdef", "running")]}.get(containers))
    verdict = judge(found, docker=lambda host: daemon)
    assert verdict.state == state
    if containers == "unasked":
        assert verdict.why == f"its lifeline {fifo}: {os.strerror(error)}"


@pytest.mark.parametrize("error", [errno.ELOOP, errno.EIO])
def test_a_lifeline_that_fails_to_open_is_unknown_despite_dockerd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(error, os.strerror(error))

    found = {"fifo": str(tmp_path / "life"), "docker": {"host": HERE, "label": LABEL}}
    monkeypatch.setattr(os, "open", refuse)
    assert judge(found, docker=lambda host: Daemon([])).state == UNKNOWN


def test_a_lifeline_is_alive_exactly_while_it_has_a_reader(tmp_path: Path) -> None:
    fifo = str(tmp_path / "life")
    docker = {"host": HERE, "label": LABEL}
    os.mkfifo(fifo)
    assert judge({"fifo": fifo}).state == GONE
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert judge({"fifo": fifo, "docker": docker}, docker=lambda host: Daemon([])).state == ALIVE
    os.close(reader)


# ---- Docker ----


class Daemon:
    """A dockerd: containers as (id, state); None: it does not answer."""

    def __init__(self, containers: list[tuple[str, str]] | None) -> None:
        self.containers = containers

    def labelled(self, labels: list[str], *, until: float) -> list[ContainerSummary]:
        if self.containers is None:
            raise DockerSilent("dockerd is away")
        assert labels == [LABEL]
        return [ContainerSummary(*container, {"dlapp.uid": str(os.geteuid())}) for container in self.containers]

    def remove(self, name: str, *, until: float) -> None:
        assert self.containers is not None
        self.containers = [container for container in self.containers if container[0] != name]


@pytest.mark.parametrize("state", ["created", "running", "paused", "restarting", "removing", "exited", "dead"])
def test_a_container_counts_as_alive_until_it_is_removed(state: str) -> None:
    daemon = Daemon([("0123456789abcdef", state)])
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    task = {"pid": gone.pid, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}
    found = {"task": task, "docker": {"host": HERE, "label": LABEL}}
    liveness = LivenessProbes(devices=no_devices, docker_host=HERE, docker=lambda host: daemon)
    verdict = liveness.check(found, boot_id())
    assert verdict == Liveness(ALIVE, f"its container 0123456789ab is {state}")
    assert liveness.remove_leftovers(found, boot_id(), owner=os.geteuid(), until=time.monotonic() + 60)
    assert liveness.check(found, boot_id()).state == GONE


def test_the_container_of_a_task_that_lives_or_may_live_is_not_removed(sleeper: subprocess.Popen[bytes]) -> None:
    daemon = Daemon([("0123456789abcdef", "running")])
    liveness = LivenessProbes(devices=no_devices, docker_host=HERE, docker=lambda host: daemon)
    for task in (task_of(sleeper.pid), task_of(sleeper.pid) | {"pid_ns": 1}, {"pid": "x"}):
        found = {"task": task, "docker": {"host": HERE, "label": LABEL}}
        assert not liveness.remove_leftovers(found, boot_id(), owner=os.geteuid(), until=time.monotonic() + 60)
    assert daemon.containers


@pytest.mark.slow
@pytest.mark.docker
def test_a_real_dockerd_proves_and_removes_and_a_stopped_one_is_unknown() -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    task = {"pid": gone.pid, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}
    boot = boot_id()
    with own_daemon() as daemon:
        liveness = LivenessProbes(devices=no_devices, docker_host=daemon.host)
        found = {"task": task, "docker": {"host": daemon.host, "label": LABEL}}
        assert liveness.check(found, boot).state == GONE
        for make in (["create"], ["run", "-d"]):
            labels = ["--label", LABEL, "--label", f"dlapp.uid={os.geteuid()}"]
            words = ["--network=none", *labels, "--entrypoint", "/bin/sh", IMAGE, "-c", "sleep 60"]
            daemon.docker(*make, *words)
        assert liveness.check(found, boot).state == ALIVE
        assert liveness.remove_leftovers(found, boot, owner=os.geteuid(), until=time.monotonic() + 60)
        assert liveness.check(found, boot).state == GONE
        assert daemon.containers(f"label={LABEL}") == []
        daemon.kill()
        assert liveness.check(found, boot).state == UNKNOWN
        assert not liveness.remove_leftovers(found, boot, owner=os.geteuid(), until=time.monotonic() + 60)


@pytest.mark.parametrize(
    "docker",
    [
        {"host": "unix:///elsewhere", "label": LABEL},
        {"host": HERE, "label": "com.docker.compose.project=prod"},
        {"host": HERE, "label": "dlapp.container="},
        {"host": HERE, "label": f"{LABEL} "},
        {"host": HERE, "label": 3},
    ],
)
def test_no_other_dockerd_and_no_other_label_are_queried(docker: dict[str, Any]) -> None:
    def unasked(host: str) -> Daemon:
        raise AssertionError(host)

    found = {"task": probes.this_task() | {"start_time": 1}, "docker": docker}
    liveness = LivenessProbes(devices=no_devices, docker_host=HERE, docker=unasked)
    assert liveness.check(found, "", owner=os.geteuid()).state == UNKNOWN
    assert not liveness.remove_leftovers(found, "", owner=os.geteuid(), until=time.monotonic() + 60)


def test_a_container_of_another_uid_is_not_the_lease_s() -> None:
    daemon = Daemon([("0123456789abcdef", "running")])
    found = {"task": probes.this_task() | {"start_time": 1}, "docker": {"host": HERE, "label": LABEL}}
    liveness = LivenessProbes(devices=no_devices, docker_host=HERE, docker=lambda host: daemon)
    other = os.geteuid() + 1
    assert liveness.check(found, "", owner=other).state == GONE
    assert not liveness.remove_leftovers(found, "", owner=other, until=time.monotonic() + 60)
    assert daemon.containers


def test_a_task_of_another_uid_is_not_the_lease_s() -> None:
    liveness = LivenessProbes(devices=no_devices)
    assert liveness.check({"task": probes.this_task()}, "", owner=os.geteuid()).state == ALIVE
    assert liveness.check({"task": probes.this_task()}, "", owner=os.geteuid() + 1).state == GONE


# ---- all of them ----


def test_another_boot_ends_everything(sleeper: subprocess.Popen[bytes]) -> None:
    assert LivenessProbes(boot_id="now").check({"task": task_of(sleeper.pid)}, "before").state == GONE


def test_a_lease_without_evidence_is_unknown() -> None:
    assert judge({}).state == UNKNOWN
    assert judge({"moon": 1}).state == UNKNOWN


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["task", "lock", "fifo", "docker", "other"]), ODD, max_size=4))
def test_no_evidence_that_makes_no_sense_is_taken_for_gone(found: dict[str, Any]) -> None:
    liveness = LivenessProbes(devices=no_devices, docker_host=HERE, docker=lambda host: Daemon(None))
    assert liveness.check(found, boot_id()).state == UNKNOWN


@given(
    st.lists(st.sampled_from([ALIVE, GONE, UNKNOWN]), min_size=2, max_size=2), st.sampled_from([ALIVE, GONE, UNKNOWN])
)
def test_all_evidence_must_agree_on_gone(messages: list[str], devices: str) -> None:
    containers = {ALIVE: [("0123456789abcdef", "running")], GONE: [], UNKNOWN: None}[messages[0]]
    me = probes.this_task()
    task = {ALIVE: me, GONE: me | {"start_time": 1}, UNKNOWN: me | {"pid_ns": 1}}[messages[1]]
    liveness = LivenessProbes(
        devices=lambda uuids: Liveness(devices, "card"), docker_host=HERE, docker=lambda host: Daemon(containers)
    )
    found = liveness.check({"task": task, "docker": {"host": HERE, "label": LABEL}}, boot_id())
    everyone = {*messages, devices} if ALIVE not in messages and UNKNOWN not in messages else set(messages)
    assert found.state == (ALIVE if ALIVE in everyone else UNKNOWN if UNKNOWN in everyone else GONE)
