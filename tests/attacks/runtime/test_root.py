"""Root looks at what belongs to others: it must not become theirs, and does nothing that they could not do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn.client.local_files import last_application, tools_tokens
from dlapp.errors import Denied, TimedOut
from dlapp.launcher.registry_credentials import collect_credentials
from dlapp.system.processes import as_user
from dlapp.values.ids import ApplicationId
from tests.attacks.identities import ATTACKER, MEMBER, ROOT, VICTIM, Identities, User
from tests.attacks.local_state import engine_in, forge, make_application, plant
from tests.attacks.snapshots import unchanged

Hostile = Callable[..., None]
STRACE = shutil.which("strace")
REPOSITORY = Path(__file__).parents[3]


def private(place: Path, owner: User) -> tuple[Path, dict[str, str]]:
    """A user's own state directory, and what root has in its environment to look at it."""
    state = place / f"home-{owner.name}" / "state"
    return state, {"DLAPP_LOCAL_STATE_DIR": str(state), "DLAPP_LOCAL_GCORES": "0"}


def shared(state: Path) -> dict[str, str]:
    return {"DLAPP_LOCAL_STATE_DIR": str(state), "DLAPP_LOCAL_SHARED": "true", "DLAPP_LOCAL_GCORES": "0"}


@pytest.mark.proves("root-reads")
def test_a_forged_row_of_root_starts_no_program_as_root(identities: Identities) -> None:
    state, env = private(identities.place, ATTACKER)
    proof = identities.place / "proof"

    def attack() -> None:
        with engine_in(state, shared=False) as engine:
            engine.ids()
            forge(state, f"application_{int(time.time())}_0001", 0, plant(engine, proof))

    identities.call(ATTACKER, attack)
    for command in (("dlapp-status", "1"), ("dlapp-list",), ("dlapp-list", "-a"), ("dlapp-kill", "1")):
        identities.run(ROOT, *command, env=env, deadline_s=10)
    assert not proof.exists()


@pytest.mark.proves("root-home")
@pytest.mark.parametrize("where", ["HOME", "DLAPP_CONFIG"])
def test_root_reads_no_configuration_that_another_can_change(identities: Identities, where: str) -> None:
    home = identities.home(ATTACKER)

    def attack() -> None:
        (home / ".config/dlapp").mkdir(parents=True)
        (home / ".config/dlapp/config.yaml").write_text(f"local:\n  state_dir: {home}/state\n")

    identities.call(ATTACKER, attack)
    env = {"HOME": str(home)} if where == "HOME" else {where: str(home / ".config/dlapp/config.yaml")}
    done = identities.run(ROOT, "dlapp-list", env=env)
    assert done.code == 2
    assert "belongs to uid" in done.err or "may be changed by" in done.err
    assert not (home / "state").exists()


def test_root_reads_no_configuration_that_a_group_can_change(identities: Identities, place: Path) -> None:
    path = place / "config.yaml"
    path.write_text("cluster: local\n")
    os.chown(path, 0, MEMBER.gid)
    path.chmod(0o664)
    done = identities.run(ROOT, "dlapp-list", env={"DLAPP_CONFIG": str(path)})
    assert done.code == 2
    assert f"may be written by the group {MEMBER.gid}" in done.err


def test_root_writes_no_file_into_another_users_home(identities: Identities) -> None:
    home = identities.home(ATTACKER)
    with unchanged(home):
        identities.run(ROOT, "dlapp-list", "-a", env={"HOME": str(home)})
        refused = identities.run(ROOT, "dlapp-launcher", "/nowhere", env={"HOME": str(home)})
    assert refused.code != 0


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_root_follows_no_links_of_another_users_home(identities: Identities, place: Path, variable: str) -> None:
    home, bait = identities.home(ATTACKER), place / "bait-of-roots"
    state = home / (".local/state" if variable == "HOME" else "")
    cache = home / ".cache"
    bait.mkdir(mode=0o755)
    (bait / "old").write_text("kept")
    os.utime(bait / "old", (1, 1))

    def attack() -> None:
        (state / "dlapp").mkdir(parents=True)
        (state / "dlapp/tokens").symlink_to(bait)
        (cache / "dlapp").mkdir(parents=True)
        for name in ("travel", "workspaces"):
            (cache / "dlapp" / name).symlink_to(bait)

    def roots_submission() -> None:
        """Submit to YARN as root with another user's variables kept, which goes to root's own directories."""
        os.environ["HOME"] = str(home if variable == "HOME" else identities.home(ROOT))
        os.environ |= {"XDG_STATE_HOME": str(state), "XDG_CACHE_HOME": str(cache)} if variable != "HOME" else {}
        (cache / f"dlapp/last-on-yarn.{os.getpid()}").symlink_to(bait / "old")
        with contextlib.suppress(OSError):
            tools_tokens.keep(ApplicationId(1, 1), tools_tokens.KeptToken("root", "secret"))
        last_application.remember("application_1_0001", 1)
        for name in ("travel", "workspaces"):
            with pytest.raises(Denied):
                last_application.local_cache(name)
        assert last_application.last_application() is None
        assert tools_tokens.find(ApplicationId(1, 1)) is None

    identities.call(ATTACKER, attack)
    with unchanged(bait):
        identities.call(ROOT, roots_submission)


def test_only_old_tokens_are_removed_from_their_directory(identities: Identities) -> None:
    def keep_another() -> list[str]:
        directory = Path(tools_tokens.directory())
        directory.mkdir(parents=True)
        for name in ("application_1_0001.json", ".application_1_0001.json.77", "mine", "mine.json"):
            (directory / name).write_text("")
            os.utime(directory / name, (1, 1))
        tools_tokens.keep(ApplicationId(1, 2), tools_tokens.KeptToken("root", "secret"))
        return sorted(os.listdir(directory))

    assert identities.call(ROOT, keep_another) == ["application_1_0002.json", "mine", "mine.json"]


def test_root_runs_no_program_that_a_docker_configuration_of_another_user_names(
    identities: Identities, place: Path
) -> None:
    home, proof = identities.home(ATTACKER), place / "proof"

    def attack() -> None:
        (home / ".docker").mkdir()
        (home / ".docker/config.json").write_text('{"credHelpers": {"registry.example": "evil"}}')
        (home / "docker-credential-evil").write_text(f"#!/bin/sh\nid -u > {proof}\n")
        (home / "docker-credential-evil").chmod(0o755)

    def submit_as_root() -> list[str]:
        os.environ |= {"HOME": str(home), "PATH": f"{home}:/usr/bin:/bin"}
        messages: list[str] = []
        assert collect_credentials(["registry.example/image"], None, messages.append, os.environ) == {}
        return messages

    identities.call(ATTACKER, attack)
    (outcome,) = identities.call(ROOT, submit_as_root)
    assert not proof.exists()
    assert "may be changed by attacker" in outcome


@pytest.mark.sampled(4)
def test_hostile_files_in_a_users_own_directory_cost_root_a_line(
    identities: Identities, hostile: Hostile, bait: Any
) -> None:
    state, env = private(identities.place, ATTACKER)

    def prepare() -> str:
        with engine_in(state, shared=False) as engine:
            make_application(engine)
            return engine.state.database

    database = Path(identities.call(ATTACKER, prepare))
    database.unlink()
    hostile(database, by=ATTACKER)
    with unchanged(bait.top):
        for command in (("dlapp-list", "-a"), ("dlapp-status", "application_1_0001")):
            done = identities.run(ROOT, *command, env=env, deadline_s=10)
            assert done.err.count("\n") <= 1
            assert "internal error" not in done.err


@pytest.mark.proves("kill-owner")
def test_a_pid_file_that_names_a_strangers_process_does_not_make_root_kill_it(
    identities: Identities, shared_state: Path
) -> None:
    become = ["setpriv", f"--reuid={VICTIM.uid}", f"--regid={VICTIM.gid}", "--clear-groups"]
    stranger = subprocess.Popen([*become, "sleep", "600"])
    try:
        started = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19]

        def prepare() -> str:
            with engine_in(shared_state, shared=True) as engine:
                application = make_application(engine, "running")
                Path(engine.state.application(application), "am.pid").write_text(f"{stranger.pid} {started}\n")
                return application

        application = identities.call(MEMBER, prepare)
        identities.run(ROOT, "dlapp-kill", application, env=shared(shared_state), deadline_s=60)
        assert stranger.poll() is None
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait()


def test_an_owner_without_a_passwd_entry_is_refused() -> None:
    with pytest.raises(Denied, match=r"^uid 60999 has no entry in passwd: root changes nothing for such a user$"):
        as_user.call(60999, lambda: None, timeout_s=5)


def test_root_reads_applications_of_a_user_without_a_passwd_entry(identities: Identities) -> None:
    nameless = User("nameless", 60_999, 60_999)
    state, env = private(identities.place, nameless)
    state.parent.mkdir()
    os.chown(state.parent, nameless.uid, nameless.gid)

    def prepare() -> str:
        with engine_in(state, shared=False) as engine:
            return make_application(engine)

    application = identities.call(nameless, prepare)
    # SQLite makes files beside the database while somebody reads it, as that user.
    with unchanged(*state.glob("*/applications"), *state.glob("*/dlapp.db")):
        for words in (("status", application), ("list", "-a"), ("logs", application)):
            done = identities.run(ROOT, f"dlapp-{words[0]}", *words[1:], env=env, deadline_s=10)
            assert done.code == 0, done.err
        for command in ("dlapp-kill", "dlapp-softkill"):
            done = identities.run(ROOT, command, application, env=env, deadline_s=10)
            assert done.err == "Error: uid 60999 has no entry in passwd: root changes nothing for such a user\n"
            assert done.code == 4


@pytest.mark.proves("root-reads")
@pytest.mark.usefixtures("identities")
def test_a_child_that_acts_for_a_user_has_no_root_privileges(identities: Identities) -> None:
    def facts() -> dict[str, str]:
        status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {
            name: " ".join(status[name].split()) for name in ("Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "Umask")
        }

    def ask() -> Any:
        return as_user.call(ATTACKER.uid, facts, timeout_s=120)

    found = identities.call(ROOT, ask)
    assert found["Uid"] == " ".join([str(ATTACKER.uid)] * 4)
    assert found["Gid"] == " ".join([str(ATTACKER.gid)] * 4)
    assert found["Groups"] == str(ATTACKER.gid)
    assert (found["NoNewPrivs"], int(found["CapEff"], 16), found["Umask"]) == ("1", 0, "0077")
    with pytest.raises(TimedOut):
        identities.call(ROOT, lambda: as_user.call(ATTACKER.uid, lambda: time.sleep(60), timeout_s=0.2))


@pytest.mark.parametrize("word", ["id", "last"])
def test_an_application_that_claims_another_users_name_is_not_ended_as_that_users(
    identities: Identities, shared_state: Path, word: str
) -> None:
    def attack() -> str:
        with engine_in(shared_state, shared=True) as engine:
            application = make_application(engine, "running")
            row = Path(engine.state.application(application), "row.json")
            claim = {"username": VICTIM.name, "submitter": VICTIM.name}
            row.write_text(json.dumps(json.loads(row.read_text()) | claim))
            return application

    application = identities.call(MEMBER, attack)
    message = f"{application} is member's, not victim's" if word == "id" else "victim has no application yet"
    words = (VICTIM.name, application if word == "id" else word)
    done = identities.run(ROOT, "dlapp-kill", *words, env=shared(shared_state), deadline_s=60)
    assert done.err.startswith(f"Error: {message}")
    assert done.code in (3, 4)


APPLICATION, FILE = "{application}", "{file}"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status", APPLICATION),
    ("status", "--json", APPLICATION),
    ("why", APPLICATION),
    ("list", "-a"),
    ("list", "-a", "-o", "wide"),
    ("queue",),
    ("logs", APPLICATION),
    ("logs", APPLICATION, "--try", "1"),
    ("sweep", APPLICATION),
    ("exec", APPLICATION, "--", "id"),
    ("port", APPLICATION, "main", "8000"),
    ("board", APPLICATION),
    ("report", "-o", "{place}/report.html", APPLICATION),
    ("release", APPLICATION),
    ("softkill", APPLICATION),
    ("kill", APPLICATION),
    ("rm", APPLICATION),
    ("launcher", "--again", APPLICATION),
    ("launcher", "--resume", APPLICATION, FILE),
    ("launcher", "--plan", FILE),
    ("shell", FILE),
    ("notebook", FILE),
    ("run",),
    ("gpu", "list"),
    ("gpu", "gc"),
    ("cache", "list"),
    ("cache", "clear"),
    ("doctor",),
)
"""Every command as root calls it; each has a state of its own, in which the application runs or, for rm, has ended."""


STARTS = {"board": "TensorBoard", "shell": "a shell", "notebook": "an application", "doctor": "Debian's tools"}
"""Commands that start programs of root's: of the machine, or dlapp's."""


def test_every_command_is_traced() -> None:
    entry_points = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert {f"dlapp-{command}" for command, *_ in COMMANDS} == set(entry_points) - {"dlapp"}


@pytest.mark.proves("root-reads")
@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "private"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_root_makes_no_harmful_system_call_over_a_hostile_state(
    identities: Identities, shared_state: Path, is_shared: bool, command: tuple[str, ...]
) -> None:
    """Trace the system calls of a command of root over a state with one application of another user's."""
    state, env = (shared_state, shared(shared_state)) if is_shared else private(identities.place, MEMBER)

    def prepare() -> str:
        with engine_in(state, shared=is_shared) as engine:
            return make_application(engine, "done" if command[0] == "rm" else "running")

    file = identities.home(ROOT) / "app.properties"
    file.write_text("[application]\nappname=a\nuser_dev_workspace_path=.\ncommand=true\n[resources]\ncontainers=1\n")
    texts = {"application": identities.call(MEMBER, prepare), "file": str(file), "place": str(identities.home(ROOT))}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "DLAPP_GPUID_LOCK_DIR": str(identities.place / "gpus")}
    words = [word.format_map(texts) for word in command]
    trace = identities.place / "trace"
    calls = "trace=open,openat,creat,execve,kill,tkill,tgkill,pidfd_send_signal,unlink,unlinkat,rename,renameat,"
    calls += "renameat2,link,linkat,symlink,symlinkat,mkdir,mkdirat,rmdir,chmod,fchmodat,chown,truncate,setresuid"
    argv = ["-f", "-y", "-e", calls, "-o", trace, identities.python, "-m", "dlapp.tools", *words]
    identities.run(ROOT, str(STRACE), *argv, env=env, deadline_s=90)
    assert trace.stat().st_size > 0
    programs = ("/usr/", "/bin/", f"{identities.python.parent}/") if command[0] in STARTS else ()
    assert _done_as_root(trace.read_text(), str(state), f"-{ROOT.uid}", programs) == []


def _done_as_root(trace: str, state: str, own: str, may_run: tuple[str, ...] = ()) -> list[str]:
    """Return the calls by which a process that was root changed, ran or signalled something of the state.

    Args:
        trace: what strace wrote.
        state: the path of the state.
        own: how the name of root's own directory in it ends.
        may_run: beginnings of programs that the command may run.
    """
    others: set[str] = set()
    traced = {line.partition(" ")[0] for line in trace.splitlines()}
    found, programs = [], 0
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        pid, _, call = line.partition(" ")
        # A call during which another process made one has two lines.
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>")
            continue
        call = re.sub(r"^\s*<\.\.\. \w+ resumed>", lambda _, pid=pid: begun.pop(pid, ""), call)  # type: ignore[misc]
        name = call.strip().partition("(")[0]
        if name == "setresuid" and call.rstrip().endswith("= 0"):
            others.add(pid)
        if pid in others or re.search(r"= -1 E\w+", call):
            continue
        programs += name == "execve"
        writes = re.search(r"O_WRONLY|O_RDWR|O_CREAT", call) if name.startswith("open") else name != "setresuid"
        # Its own processes, also those that have become that user, it may signal.
        target = call.strip().partition("(")[2].partition(",")[0]
        signals = name in ("kill", "tkill", "tgkill", "pidfd_send_signal") and target not in traced
        starts = (
            name == "execve"
            and programs > 1
            and not call.strip().startswith(tuple(f'execve("{item}' for item in may_run))
        )
        is_own = f"{own}/" in call or f'{own}"' in call
        if signals or starts or (writes and state in call and not is_own):
            found.append(f"{pid} {call}")
    return found
