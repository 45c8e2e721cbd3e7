"""The user's own directory as the workspace of a dlapp-shell: whatever is killed and cleaned up, it stays as it is."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

import pytest

from dlapp.client import Client
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.local.runner import history, orphans
from dlapp.cluster.yarn.client.submission import ApplicationSubmitter
from dlapp.errors import UsageError
from dlapp.system.processes.proc import command_line, descendants
from dlapp.task.preparation import check_live_workspace
from dlapp.task.state import TaskState
from dlapp.task.step_errors import StepFailed
from dlapp.values.launch_spec import LiveWorkspace
from dlapp.values.spec import AppSpec, RoleSpec, Secrets, Submission
from tests.applications import (
    BIN,
    application_dir,
    ended,
    kill_processes,
    processes,
    properties,
    run,
    wait_for,
)
from tests.attacks.snapshots import changes, snapshot
from tests.services.disks import small_disk
from tests.tools.terminal import Terminal

END_S = 120.0
LATER_S = 400 * 86_400.0
"""Beyond every age after which something is removed."""


def fill(workspace: Path) -> None:
    """Put into a workspace what a cleaner might mistake for its own, links, and unusual modes and owners."""
    for name in ("workspace", "run", "tmp", "home", "containers/container_1_0001_01_000002/workspace", "deep/er"):
        (workspace / name).mkdir(parents=True)
        (workspace / name / "file").write_text(f"of {name}\n")
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept\n")
    (workspace / "link").symlink_to(outside)
    (workspace / "dangling").symlink_to("nowhere")
    os.link(outside / "kept", workspace / "hard")
    os.mkfifo(workspace / "fifo")
    (workspace / "deep" / "read-only").write_text("r\n")
    (workspace / "deep" / "read-only").chmod(0o444)
    (workspace / "deep" / "er").chmod(0o500)
    (workspace / "run").chmod(stat.S_ISVTX | 0o777)
    if os.geteuid() == 0:
        os.chown(workspace / "tmp" / "file", 12_345, 12_346)
        os.chown(workspace / "home", 12_345, 12_346)


class Shell:
    """A dlapp-shell that reads commands, in a filled workspace with one input."""

    def __init__(self, tmp_path: Path, state_dir: Path) -> None:
        self.state_dir, self.up = state_dir, tmp_path / "up"
        (tmp_path / "source").write_text("input\n")
        file = properties(tmp_path, "true", from_hdfs={"hdfs": tmp_path / "source", "input_path": "in"})
        self.workspace = tmp_path / "test_workspace"
        fill(self.workspace)
        self.before = snapshot(self.workspace) | snapshot(tmp_path / "outside")
        self.outside = tmp_path / "outside"
        self.process = subprocess.Popen([BIN / "dlapp-shell", file], stdin=subprocess.PIPE)
        self.stdin = cast("IO[bytes]", self.process.stdin)

    def type(self, text: str) -> None:
        self.stdin.write(text.encode())
        self.stdin.flush()

    def find(self, name: str) -> Path | None:
        """Return a path in the application's directory, if it is there."""
        return next(iter(self.state_dir.glob(f"*/applications/{name}")), None)

    def victims(self, who: str) -> list[int]:
        """Return the living processes of one kind; ``machine``: all, with dlapp-shell."""
        if who == "dlapp-shell":
            return [self.process.pid]
        found = processes(self.state_dir)
        if who == "machine":
            return [self.process.pid, *(one.pid for one in found)]
        tasks = [one.pid for one in found if one.role == "task"]
        guardians = [pid for pid in tasks if any(pid in descendants(one) for one in tasks)]
        by_name = {"guardian": guardians, "task": [pid for pid in tasks if pid not in guardians]}
        if who in ("streams", "relay"):  # their command lines have no path of the state
            masters = [one.pid for one in found if one.role in ("am", "task")]
            helpers = {pid for one in masters for pid in descendants(one)}
            return [pid for pid in helpers if command_line(pid)[-2:-1] == [who.encode()]]
        return by_name.get(who) or [one.pid for one in found if one.role == who]

    def added(self) -> list[str]:
        """Return how the workspace differs from before, but for the input, which is there as a whole or not at all."""
        place = self.workspace / "in"
        if place.exists():
            assert [one.name for one in place.iterdir()] in ([], ["source"])
        now = snapshot(self.workspace) | snapshot(self.outside)
        own = {str(self.workspace), str(place), str(place / "source")}  # whose time and number of names change
        return [line for line in changes(self.before, now) if line.partition(": ")[0] not in own]


@pytest.fixture
def shell(tmp_path: Path, state_dir: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, state_dir)
    yield shell
    shell.process.kill()
    shell.process.wait(END_S)
    shell.stdin.close()
    kill_processes([one.pid for one in processes(state_dir)])


def clean(state_dir: Path, application: str) -> None:
    """Run all that removes something: orphans, settlement, the age of caches and history, dlapp-cache and dlapp-rm."""
    place = application_dir(state_dir, application)
    orphans.end(str(place), os.geteuid(), str(next(state_dir.glob("*/runner-*.lock"))))
    assert run("dlapp-list").code == 0  # starts a runner, which settles what died
    ended(application, END_S)
    wait_for("no process of it", lambda: not [one for one in processes(state_dir) if one.role != "runner"])
    assert run("dlapp-cache", "clear").code == 0
    run("dlapp-cache", "clear", "cache.frameworks")
    assert run("dlapp-rm", application).code == 0
    with Client(cluster="local") as client:
        session = cast("LocalEngine", client.engine).session
        late_s, uid = time.time() + LATER_S, os.geteuid()
        history.clear_staging(session.state, late_s)
        history.clear_cache(session.state, session.queue(), session.settings, uid, late_s)
        history.clear_old(session.state, session.queue(), session.settings, uid, late_s)


STEPS: dict[str, Callable[[Shell], object]] = {
    "submitted": lambda shell: shell.find("*"),
    "the ApplicationMaster runs": lambda shell: shell.find("*/am.json"),
    "the task runs": lambda shell: shell.find("*/containers/*/dlapp.log"),
    "input is added": lambda shell: shell.find("*/containers/*/workspace/input-*") or shell.find("*/containers/*/life"),
    "the program waits": lambda shell: shell.find("*/containers/*/stdout"),
    "the shell is open": lambda shell: shell.up.exists(),
    "the shell has ended": lambda shell: shell.up.exists() and shell.stdin.close() is None,
}
ALWAYS = ("dlapp-shell", "am", "machine")
INSIDE = (*ALWAYS, "runner", "task", "guardian")
WHO = {
    "submitted": ("dlapp-shell", "machine"),
    "the ApplicationMaster runs": ("dlapp-shell", "runner", "am", "machine"),
    "the task runs": (*ALWAYS, "task"),
    "input is added": (*ALWAYS, "task"),
    "the program waits": INSIDE,
    "the shell is open": (*INSIDE, "payload", "streams", "relay"),
    "the shell has ended": ALWAYS,
}


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("step", "who"), [(step, who) for step, all_of in WHO.items() for who in all_of])
def test_a_live_workspace_survives_each_kill_and_every_cleaner(step: str, who: str, shell: Shell) -> None:
    """Kill one kind of process of a dlapp-shell, or all, at one of seven steps; end the rest, run every cleaner, and
    compare the workspace, with owners, modes, times and links, with that before the shell."""
    shell.type(f"touch {shell.up}\n")
    wait_for(step, lambda: STEPS[step](shell))
    application = cast("Path", shell.find("*")).name
    victims = wait_for(who, lambda: shell.victims(who) or not shell.find("*"))
    if victims is not True:
        kill_processes(cast("list[int]", victims))
    if not shell.stdin.closed:
        shell.stdin.close()
    shell.process.wait(END_S)
    # A shell that ended well has removed its application, and a submission that was killed has none.
    if shell.find("*") and run("dlapp-status", application).code == 0:
        clean(shell.state_dir, application)
    assert shell.added() == []


def test_the_shell_is_an_application_until_it_ends(tmp_path: Path, state_dir: Path) -> None:
    """Look at a shell in the list, refuse to submit it again, and find it neither in the list nor on disk at its
    end."""
    with Terminal("dlapp-shell", properties(tmp_path, "true", name="mine")) as terminal:
        terminal.expect(r"\(dlapp\) ")
        (path,) = state_dir.glob("*/applications/*")
        listed = run("dlapp-list").out
        assert path.name in listed
        assert "RUNNING" in listed
        again = run("dlapp-launcher", "--again", path.name)
        assert (again.code, again.err) == (2, f"Error: {path.name} is a dlapp-shell; open another one\n")
        terminal.type("exit 0\n")
        assert terminal.wait() == 0
    assert list(state_dir.glob("*/applications/*")) == []


def test_a_killed_shell_closes_and_stays_in_the_list(tmp_path: Path, state_dir: Path) -> None:
    with Terminal("dlapp-shell", properties(tmp_path, "true")) as terminal:
        terminal.expect(r"\(dlapp\) ")
        (path,) = state_dir.glob("*/applications/*")
        assert run("dlapp-kill", path.name).code == 0
        assert terminal.wait() == 128 + signal.SIGKILL
    assert ended(path.name)["state"] == "KILLED"


def test_a_workspace_in_the_state_directory_is_refused(tmp_path: Path, state_dir: Path) -> None:
    """Open a shell whose workspace is in dlapp's state directory, which cleaners empty."""
    assert run("dlapp-list").code == 0
    (state,) = state_dir.iterdir()
    place = state / "applications" / "mine"
    place.mkdir(parents=True)
    file = properties(tmp_path, "true", application={"user_dev_workspace_path": place})
    refused = run("dlapp-shell", file)
    assert refused.code == 2
    assert f"the workspace {place} lies in dlapp's state directory" in refused.err


def live(path: Path) -> LiveWorkspace:
    return LiveWorkspace(path=str(path), shell_dir="/nowhere", session="/nowhere", records="/nowhere")


def test_a_cluster_refuses_a_live_workspace(tmp_path: Path) -> None:
    """Submit one to YARN, whose answer is not needed, and let a task on a node get one."""
    submission = Submission(
        spec=AppSpec(username="tony", appname="a", command=("true",), roles=(RoleSpec(),)),
        workspace_archive="",
        workspace_digest="",
        submitter="tony",
        submitted_ms=0,
        live=live(tmp_path),
    )
    with pytest.raises(UsageError, match=f"{tmp_path} is a directory of this machine, and no workspace on a cluster"):
        ApplicationSubmitter.submit(cast("ApplicationSubmitter", object()), submission, Secrets(control_secret=""))
    task = cast("TaskState", SimpleNamespace(assignment=SimpleNamespace(live=live(tmp_path)), on_a_node=True))
    with pytest.raises(StepFailed, match="no workspace on a cluster"):
        check_live_workspace(task)


def test_a_live_workspace_that_was_removed_is_not_made(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    task = cast("TaskState", SimpleNamespace(assignment=SimpleNamespace(live=live(gone)), on_a_node=False))
    with pytest.raises(StepFailed, match=f"the workspace {gone} is not there any more"):
        check_live_workspace(task)
    assert not gone.exists()


def test_a_shell_that_was_killed_while_it_waited_has_nothing_fetched(tmp_path: Path) -> None:
    """Start the task of a dlapp-shell whose file is not locked any more, which is checked before all else."""
    task = cast("TaskState", SimpleNamespace(assignment=SimpleNamespace(live=live(tmp_path)), on_a_node=False))
    with pytest.raises(StepFailed, match="dlapp-shell has ended"):
        check_live_workspace(task)


@pytest.mark.root("to mount a small disk")
def test_a_workspace_on_a_full_disk_is_refused_at_once_and_keeps_its_files(tmp_path: Path, state_dir: Path) -> None:
    """Open a shell whose 6 MiB of input do not fit on the 4 MiB of the workspace's disk."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(bytes(3 << 20))
    with small_disk(tmp_path) as workspace:
        (workspace / "mine").write_text("mine\n")
        section = {"hdfs": source, "input_path": "in"}
        file = properties(tmp_path, "true", application={"user_dev_workspace_path": workspace}, from_hdfs=section)
        refused = run("dlapp-shell", file)
        assert (refused.code, refused.out) == (1, "")
        assert f"input in could not be fetched: disk full: {workspace}/in/" in refused.err
        assert f"0 bytes are free on {workspace}\n" in refused.err
        assert (workspace / "mine").read_text() == "mine\n"
        assert list((workspace / "in").iterdir()) == []
