"""Members of a group that share one queue against each other: forged rows, planted names, hostile files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.local import spool
from dlapp.cluster.local.state import StateDir, acquire_lock, is_locked, machine_name, open_state
from dlapp.errors import ConfigError, DlappError, NotFound
from dlapp.runtime.docker.labels import is_task_dead
from dlapp.system import locks
from dlapp.task.logs import TaskLog
from tests.applications import listed_json, properties, wait_for
from tests.attacks.identities import ATTACKER, GROUP, MEMBER, ROOT, VICTIM, Identities, User
from tests.attacks.local_state import engine_in, forge, make_application, plant
from tests.attacks.snapshots import unchanged

Hostile = Callable[..., None]


def env(state: Path) -> dict[str, str]:
    return {
        "DLAPP_LOCAL_STATE_DIR": str(state),
        "DLAPP_LOCAL_SHARED": "true",
        "DLAPP_GPUID_LOCK_DIR": f"{state}-gpus",
        "DLAPP_LOCAL_GCORES": "0",
    }


def state_of_user(state: Path, user: User) -> StateDir:
    """The state directory of a user."""
    return StateDir(f"{state}/{machine_name()}-{user.uid}", shared=True, uid=user.uid)


def run_to_its_end(identities: Identities, user: User, state: Path) -> None:
    """Submit something small as a user, and wait until that user's runner has gone."""
    file = properties(identities.place, "true", name=f"of-{user.name}")
    done = identities.run(user, "dlapp-launcher", file, env=env(state), deadline_s=20)
    assert done.code == 0, done.err
    ended = f"{state_of_user(state, user).runner_lock(user.uid)}"
    wait_for("the runner has gone", lambda: not is_locked(ended))
    assert "FINISHED" in identities.run(user, "dlapp-status", env=env(state)).out


@pytest.mark.proves("queue-directory")
@pytest.mark.parametrize("mode", [0o2770, 0o770, 0o1777, 0o3777, 0o755])
def test_a_shared_directory_in_which_members_can_replace_each_others_names_is_refused(
    tmp_path: Path, mode: int
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:o}; .* chmod 3770 {tmp_path}/state"):
        open_state(str(tmp_path / "state"), shared=True)


def test_a_user_outside_the_group_is_refused_with_the_repair(identities: Identities, shared_state: Path) -> None:
    done = identities.run(ATTACKER, "dlapp-list", env=env(shared_state))
    assert done.code == 4
    assert f"{shared_state} serves members of the group dlusers, and attacker is none" in done.err
    assert "usermod -aG dlusers attacker, as root" in done.err


@pytest.mark.proves("queue-owner")
@pytest.mark.parametrize("user", [VICTIM, ROOT], ids=lambda item: item.name)
def test_a_row_that_names_another_user_starts_no_program_as_them(
    identities: Identities, shared_state: Path, user: User
) -> None:
    proof = identities.place / "proof"

    def attack() -> None:
        os.umask(0)
        with engine_in(shared_state, shared=True) as engine:
            engine.ids()
            forge(shared_state, f"application_{int(time.time())}_0001", user.uid, plant(engine, proof))

    identities.run(user, "dlapp-list", env=env(shared_state))
    identities.call(MEMBER, attack)
    for command in ("dlapp-list", "dlapp-status"):
        identities.run(user, command, env=env(shared_state))
    run_to_its_end(identities, user, shared_state)
    assert not proof.exists()


@pytest.mark.proves("queue-owner")
@pytest.mark.parametrize("name", ["../../../treasure", "{place}/treasure"])
def test_an_id_with_a_path_removes_no_file_outside(identities: Identities, shared_state: Path, name: str) -> None:
    treasure = identities.place / "treasure"
    treasure.mkdir()
    (treasure / "kept").write_text("kept")
    for path in (treasure, treasure / "kept"):
        os.chown(path, VICTIM.uid, VICTIM.gid)
    identities.run(VICTIM, "dlapp-list", env=env(shared_state))

    def attack() -> None:
        with engine_in(shared_state, shared=True) as engine:
            engine.ids()
            forge(shared_state, name.format(place=identities.place), VICTIM.uid, None, state="done")

    identities.call(MEMBER, attack)
    with unchanged(treasure):
        identities.run(VICTIM, "dlapp-list", "-a", env=env(shared_state))
        run_to_its_end(identities, VICTIM, shared_state)


@pytest.mark.proves("queue-directory")
@pytest.mark.sampled(7)
def test_a_foreign_user_directory_is_refused_in_one_line_and_others_continue(
    identities: Identities, shared_state: Path, hostile: Hostile, bait: Any
) -> None:
    hostile(Path(state_of_user(shared_state, VICTIM).path), by=MEMBER)
    with unchanged(bait.top):
        refused = identities.run(VICTIM, "dlapp-list", env=env(shared_state))
        assert refused.code != 0
        assert refused.err.startswith("Error: local.state_dir: ")
        assert refused.err.count("\n") == 1
        for user in (MEMBER, ROOT):
            assert identities.run(user, "dlapp-list", "-a", env=env(shared_state)).code == 0


FILES = (
    *(
        "row.json",
        "view.json",
        "outcome.json",
        "am.json",
        "kill.json",
        "died",
        "alive",
        "alive-2",
        "engine.json",
        "am.pid",
        "am.log",
    ),
    *("commit.json", "submission.json", "containers", "containers/{}", "containers/{}/stdout"),
)


@pytest.mark.proves("queue-order")
@pytest.mark.sampled(7)
def test_hostile_files_of_a_member_cost_others_only_that_application(
    identities: Identities, shared_state: Path, hostile: Hostile, bait: Any
) -> None:
    """Each file that others read, in an application that has ended and in one that seems to run."""

    def prepare() -> tuple[dict[str, str], str]:
        with engine_in(shared_state, shared=True) as engine:
            by_file = {f"{name} {state}": make_application(engine, state) for name in FILES for state in STATES}
            return by_file, make_application(engine)

    STATES = ("done", "running")
    by_file, honest = identities.call(MEMBER, prepare, deadline_s=30)
    member = state_of_user(shared_state, MEMBER)
    for key, application in by_file.items():
        name = key.split()[0].format(f"container_{application.removeprefix('application_')}_01_000002")
        path = Path(member.application(application)) / name
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name("away"))
        hostile(path, by=MEMBER)

    def look() -> None:
        with engine_in(shared_state, shared=True) as engine:
            for application in by_file.values():
                with contextlib.suppress(NotFound):
                    assert engine.view(application).json["submitter"] == MEMBER.name
            assert engine.view(honest).json["state"] == "FINISHED"

    with unchanged(bait.top):
        for user in (VICTIM, ROOT):
            listed = identities.run(user, "dlapp-list", "-a", env=env(shared_state))
            assert (listed.code, listed.err) == (0, "")
            assert honest in listed.out
            identities.call(user, look)
            # A log of 8 GiB is a log of 8 GiB.
            for state in STATES if hostile.kind != "huge" else ():  # type: ignore[attr-defined]
                logs = by_file[f"containers/{{}}/stdout {state}"]
                done = identities.run(user, "dlapp-logs", logs, env=env(shared_state))
                assert "kept" not in done.out
                assert "Traceback" not in done.err
                assert "internal error" not in done.err
            assert "printed" in identities.run(user, "dlapp-logs", honest, env=env(shared_state)).out


NAMES = ("spool/{id}.1.1.0", "runner-{uid}.alive", "applications/{id}", "spool", "applications")


@pytest.mark.sampled(7)
def test_hostile_files_of_a_member_do_not_block_the_queue(
    identities: Identities, shared_state: Path, hostile: Hostile, bait: Any
) -> None:
    def prepare() -> str:
        with engine_in(shared_state, shared=True) as engine:
            return make_application(engine, "waiting")

    def look() -> None:
        """Do what the victim's runner does."""
        with engine_in(shared_state, shared=True) as engine:
            spool.entries_of_others(engine.state)
            for other in engine.state.others():
                assert not spool.has_runner(other)
                assert not spool.is_alive(other, application)
            listed_json(engine, everybody=True)
            engine.ids(everybody=True)

    application = identities.call(MEMBER, prepare)
    for number, name in enumerate(NAMES):
        path = Path(state_of_user(shared_state, MEMBER).path) / name.format(uid=MEMBER.uid, id=application)
        if path.is_dir() and not path.is_symlink():
            path.rename(identities.place / f"away-{number}")
        hostile(path, by=MEMBER)
        with unchanged(bait.top):
            identities.call(VICTIM, look)


def test_an_application_belongs_to_its_owner_whatever_it_claims(identities: Identities, shared_state: Path) -> None:
    def prepare() -> str:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine, "running")
            row = Path(engine.state.application(application)) / "row.json"
            row.write_text(
                row.read_text().replace('"submitter": "x"', f'"submitter": "{VICTIM.name}", "uid": {VICTIM.uid}')
            )
            return application

    application = identities.call(MEMBER, prepare)
    done = identities.run(VICTIM, "dlapp-kill", application, env=env(shared_state))
    assert done.err == f"Error: {application} belongs to {MEMBER.name}; only they or root may end it\n"


@pytest.mark.proves("queue-list")
def test_a_list_of_one_user_goes_by_ownership_and_not_by_the_shown_name(
    identities: Identities, shared_state: Path
) -> None:
    def prepare(shown: str) -> str:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine)
            row = Path(engine.state.application(application)) / "row.json"
            row.write_text(row.read_text().replace('"username": "x"', f'"username": "{shown}"'))
            return application

    of_member = identities.call(MEMBER, prepare, VICTIM.name)
    of_victim = identities.call(VICTIM, prepare, MEMBER.name)
    for user in (VICTIM, MEMBER, ROOT):
        for owner, own, other in ((VICTIM, of_victim, of_member), (MEMBER, of_member, of_victim)):
            listed = identities.run(user, "dlapp-list", owner.name, env=env(shared_state)).out
            assert own in listed
            assert other not in listed
        # The name in a file counts for its owner alone.
        listed = identities.run(user, "dlapp-list", "x", env=env(shared_state)).out
        assert (of_member in listed) is (user is MEMBER)


@pytest.mark.parametrize("label", ['"queue": 7', '"priority": "high"', '"project": ["x"]', '"tags": {}'])
def test_labels_of_a_wrong_form_hide_that_application_alone(
    identities: Identities, shared_state: Path, label: str
) -> None:
    def prepare(spoil: bool) -> str:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine)
            row = Path(engine.state.application(application)) / "row.json"
            if spoil:
                row.write_text(row.read_text().rstrip().removesuffix("}") + f", {label}}}")
            return application

    bad, good = (identities.call(MEMBER, prepare, spoil) for spoil in (True, False))
    done = identities.run(VICTIM, "dlapp-list", "-a", env=env(shared_state))
    assert (done.code, bad in done.out, good in done.out) == (0, False, True)


def test_an_id_that_two_users_have_is_nobodys_for_a_third(identities: Identities, shared_state: Path) -> None:
    def prepare() -> str:
        with engine_in(shared_state, shared=True) as engine:
            return make_application(engine)

    def copy() -> None:
        with engine_in(shared_state, shared=True) as engine:
            os.mkdir(engine.state.application(application), 0o750)

    application = identities.call(MEMBER, prepare)
    identities.call(VICTIM, copy)
    for command in ("dlapp-status", "dlapp-kill"):
        done = identities.run(ROOT, command, application, env=env(shared_state))
        assert done.code == 3
        assert "of victim and member at once" in done.err or "of member and victim at once" in done.err


def test_foreign_read_locks_do_not_block_write_locks_or_count_as_processes(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.touch()
    reader = os.open(path, os.O_RDONLY)
    assert locks.try_lock(reader, shared=True)
    assert not is_locked(str(path))
    taken = acquire_lock(str(path), 0o640)
    assert taken is not None
    assert is_locked(str(path))
    assert acquire_lock(str(path), 0o640) is None
    os.close(taken)
    os.close(reader)


def test_read_locks_on_all_that_a_user_shows_do_not_stop_that_user(identities: Identities, shared_state: Path) -> None:
    run_to_its_end(identities, VICTIM, shared_state)
    code = (
        "import sys, os, time; from dlapp.system import locks\n"
        "for top, _, names in os.walk(sys.argv[1]):\n"
        "    for name in names:\n"
        "        try: locks.try_lock(os.open(os.path.join(top, name), os.O_RDONLY | os.O_NONBLOCK), shared=True)\n"
        "        except OSError: pass\n"
        "print(flush=True); time.sleep(600)"
    )
    become = ["setpriv", f"--reuid={MEMBER.uid}", f"--regid={MEMBER.groups[0]}", "--clear-groups"]
    command: list[str | Path] = [*become, identities.python, "-c", code, state_of_user(shared_state, VICTIM).path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attack:
        assert attack.stdout is not None
        assert attack.stdout.readline() == b"\n"
        run_to_its_end(identities, VICTIM, shared_state)
        attack.kill()


@contextlib.contextmanager
def read_lock(identities: Identities, user: User, path: Path) -> Iterator[None]:
    """Hold a read lock of a user's on a file."""
    code = (
        "import sys, os, time; from dlapp.system import locks\n"
        "print(locks.try_lock(os.open(sys.argv[1], os.O_RDONLY), shared=True), flush=True); time.sleep(600)"
    )
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.groups[0]}", "--clear-groups"]
    command: list[str | Path] = [*become, identities.python, "-c", code, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attack:
        try:
            assert attack.stdout is not None
            assert attack.stdout.readline() == b"True\n"
            yield
        finally:
            attack.kill()


@pytest.mark.proves("queue-tasks")
def test_a_read_lock_on_a_tasks_log_fails_no_task(identities: Identities, place: Path) -> None:
    directory = place / "container"
    directory.mkdir()
    os.chown(directory, VICTIM.uid, GROUP)
    directory.chmod(0o2750)
    log = directory / "dlapp.log"
    log.write_text("printed while it was loaded\n")
    os.chown(log, VICTIM.uid, GROUP)
    log.chmod(0o640)

    def task() -> tuple[bool, int, str]:
        out = os.open(log, os.O_WRONLY | os.O_APPEND)
        for number in (1, 2):
            os.dup2(out, number)
        mine = TaskLog(str(log))
        mine.write("begun")
        os.write(2, b"printed\n")
        with pytest.raises(BlockingIOError):
            TaskLog(str(log))
        gone = is_task_dead(str(directory))
        return gone, stat.S_IMODE(log.stat().st_mode), log.read_text()

    with read_lock(identities, MEMBER, log):
        gone, mode, text = identities.call(VICTIM, task)
    assert (gone, mode) == (False, 0o640)
    first, second, third = text.splitlines()
    assert first == "printed while it was loaded"
    assert second.endswith(" begun")
    assert third == "printed"
    assert is_task_dead(str(directory))
    assert os.listdir(directory) == ["dlapp.log"]


@pytest.mark.proves("queue-workspace")
def test_a_member_cannot_read_the_workspace_of_another_members_running_application(
    identities: Identities, shared_state: Path
) -> None:
    script = "mkdir -p out; echo secret > out/model.py; echo ready; until [ -e finish ]; do sleep 0.02; done"
    file = properties(identities.place, script, name="of-victim")
    done = identities.run(VICTIM, "dlapp-launcher", file, env=env(shared_state), deadline_s=20)
    assert done.code == 0, done.err
    (application,) = Path(state_of_user(shared_state, VICTIM).path, "applications").iterdir()

    def has_begun() -> bool:
        return any(out.read_text() == "ready\n" for out in application.glob("containers/*/stdout"))

    wait_for("its payload", has_begun)
    (container,) = application.glob("containers/*")
    assert os.listdir(container / "workspace") != []

    def read() -> tuple[str, bool]:
        with contextlib.suppress(PermissionError):
            return (container / "stdout").read_text(), (container / "workspace" / "out" / "model.py").is_file()
        return (container / "stdout").read_text(), False

    assert identities.call(MEMBER, read) == ("ready\n", False)
    (container / "workspace" / "finish").touch()
    lock = f"{state_of_user(shared_state, VICTIM).runner_lock(VICTIM.uid)}"
    wait_for("the runner has gone", lambda: not is_locked(lock))


@pytest.mark.proves("queue-order")
def test_the_place_in_the_queue_is_the_time_of_the_kernel_and_no_link_changes_it(
    identities: Identities, shared_state: Path
) -> None:
    def submit() -> str:
        with engine_in(shared_state, shared=True) as engine:
            return make_application(engine, "waiting")

    first, second, third = (identities.call(user, submit) for user in (VICTIM, MEMBER, VICTIM))

    def order() -> list[str]:
        state = state_of_user(shared_state, ROOT)
        return [item.id for item in spool.entries_of_others(state)]

    identities.call(ROOT, lambda: engine_in(shared_state, shared=True).close())
    assert order() == [first, second, third]

    def attack() -> None:
        entry = next(Path(state_of_user(shared_state, VICTIM).spool).glob(f"{first}.*"))
        changes: list[Callable[[], object]] = [
            lambda: os.link(entry, Path(state_of_user(shared_state, MEMBER).path) / "link"),
            lambda: os.utime(entry),
            lambda: entry.chmod(0o700),
            lambda: (entry / "new").mkdir(),
            lambda: os.utime(next(Path(state_of_user(shared_state, MEMBER).spool).glob("*.*")), (1, 1)),
        ]
        for change in changes:
            with contextlib.suppress(OSError):
                change()

    identities.call(MEMBER, attack)
    assert order()[0] == first
    assert order().index(second) >= 1


@pytest.mark.parametrize(
    "name",
    [
        "application_1_0001.1.1",
        "application_1_0001.1.1.0.0",
        "application_1_0001.-1.1.0",
        "application_1_0001.1e9.1.0",
        "application_1_0001.\u0661.1.0",
        f"application_1_0001.{'9' * 40}.1.0",
        f"application_{'9' * 30}_0001.1.1.0",
        "application_1_..0001.1.1.0",
        "application_1_0001.starting",
        "\n.1.1.0",
    ],
)
def test_invalid_spool_entries_are_ignored(tmp_path: Path, name: str) -> None:
    state = StateDir(str(tmp_path), shared=True)
    (tmp_path / "spool").mkdir(mode=0o750)
    tmp_path.chmod(0o750)
    (tmp_path / "spool" / name).mkdir()
    (tmp_path / "spool/application_1_0002.5.1.0").mkdir()
    (tmp_path / "spool/application_1_0003.5.1.0").touch()
    assert [entry.id for entry in spool.entries_of(state)] == ["application_1_0002"]


@pytest.mark.proves("queue-order")
def test_a_running_mark_counts_only_while_its_lock_is_held(identities: Identities, shared_state: Path) -> None:
    def claim() -> None:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine, "waiting")
            spool.mark(engine.state, application, spool.RUNNING)
            os.rmdir(os.path.join(engine.state.spool, f"{application}.1.1.0"))
            os.mkdir(os.path.join(engine.state.spool, f"{application}.{1 << 39}.1.0"), 0o750)

    identities.call(MEMBER, claim)
    run_to_its_end(identities, VICTIM, shared_state)


@pytest.mark.proves("queue-order")
def test_a_hard_link_to_another_users_lock_does_not_count_as_alive(identities: Identities, shared_state: Path) -> None:
    """Make the link as any member could where fs.protected_hardlinks is 0."""

    def prepare() -> tuple[str, str, str]:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine, "running")
            state = engine.state
            return application, f"{state.application(application)}/alive", state.runner_sign(state.uid)

    def seen() -> tuple[bool, bool]:
        with engine_in(shared_state, shared=True) as engine:
            member = engine.state.of(MEMBER.uid)
            return spool.is_alive(member, application), spool.has_runner(member)

    application, alive, sign = identities.call(MEMBER, prepare)
    locked = shared_state / "locked"
    kept = acquire_lock(str(locked), 0o644)
    assert kept is not None
    try:
        for owner, found in ((MEMBER, True), (VICTIM, False)):
            os.chown(locked, owner.uid, owner.gid)
            for path in (alive, sign):
                Path(path).unlink(missing_ok=True)
                os.link(locked, path)
            assert identities.call(VICTIM, seen) == (found, found)
    finally:
        os.close(kept)


def test_an_error_of_another_users_file_is_a_line(identities: Identities, shared_state: Path) -> None:
    def prepare() -> str:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine, "running")
            home = Path(engine.state.application(application))
            (home / "outcome.json").write_text("[" * 100_000)
            (home / "view.json").write_text('{"state": 1, "containers": 7, "finished_ms": 1e400}')
            return application

    application = identities.call(MEMBER, prepare)
    for user in (VICTIM, ROOT):
        for command in (("dlapp-list", "-a"), ("dlapp-status", application), ("dlapp-logs", application)):
            done = identities.run(user, *command, env=env(shared_state))
            assert "internal error" not in done.err
            assert "/proc/" not in done.out + done.err
        with pytest.raises(DlappError):
            identities.call(user, lambda: engine_in(shared_state, shared=True).view("application_1_0001").json)


def test_a_view_of_8_mib_is_read_in_seconds_and_truncated_with_a_note(
    identities: Identities, shared_state: Path, tmp_path: Path
) -> None:
    """80,000 containers of some 100 bytes."""

    def prepare() -> str:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine)
            container = f"container_{application.removeprefix('application_')}_01_"
            containers = [
                {"container_id": f"{container}{number:06d}", "role": "m", "role_index": number, "index": number}
                for number in range(80_000)
            ]
            view = {"application_id": application, "attempt": 1, "state": "RUNNING", "containers": containers}
            (Path(engine.state.application(application)) / "view.json").write_text(json.dumps(view))
            return application

    application = identities.call(MEMBER, prepare, deadline_s=30)
    for command, *options in (("dlapp-status",), ("dlapp-logs",), ("dlapp-report", "-o", "-")):
        done = identities.run(VICTIM, command, application, *options, env=env(shared_state), deadline_s=30)
        assert done.code == 0, done.err
        output = done.err if command == "dlapp-logs" else done.out
        assert re.search(r"not all is shown: another .* with [67]\d\d\d of 80000 containers", output)
