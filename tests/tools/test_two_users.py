"""Test commands of two real users and of root on each other's applications, in a state directory that they share."""

from __future__ import annotations

import grp
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.applications import Done, properties, wait_for
from tests.services.ports import held
from tests.services.users import interpreter_for_everybody, place_for_everybody, seeing_users

GROUP = 12_340
ANN, TONY, SUE = 12_345, 12_346, 12_347
REACH = """
import socket, sys
from dlapp.client import Client
from dlapp.client.streams.ports import PortForward
client = Client()
one = client.resolve(sys.argv[1])
with PortForward(client, one, client.index_of(one, "worker", 0), int(sys.argv[2])) as forward:
    forward.wait_open(120)
    with socket.create_connection(("127.0.0.1", forward.local_port)) as connection:
        print(connection.makefile().read(), forward.route)
"""
SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    server.accept()[0].sendall(b"hello")
"""

pytestmark = pytest.mark.root

Run = Callable[..., Done]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may look into, as pytest's own is not."""
    with place_for_everybody("users", 0o1777) as top:
        yield top


@pytest.fixture
def run_as(place: Path) -> Run:
    """Run a command as a user of the group."""
    state = place / "state"
    state.mkdir()
    os.chown(state, 0, GROUP)
    state.chmod(0o3770)

    python = interpreter_for_everybody()
    as_root = seeing_users(place, ANN, TONY, SUE, gid=GROUP)

    def run_as(uid: int, command: str, *args: object, names: bool = False, group: int | None = None) -> Done:
        """Run it.

        Args:
            uid: as whom; 0: root.
            command: of dlapp, or a program for Python.
            args: of it.
            names: users have names there, as for root.
            group: another one that the user is in.
        """
        home = place / f"home-{uid}"
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, uid, GROUP)
        env = {
            **os.environ,
            "HOME": str(home),
            "DLAPP_LOCAL_STATE_DIR": str(state),
            "DLAPP_LOCAL_SHARED": "true",
            "DLAPP_GPUID_LOCK_DIR": str(place / "gpus"),
        }
        groups = "--clear-groups" if group is None else f"--groups={group}"
        become = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", groups] if uid else []
        if not uid or names:
            become = [*as_root, *become]
        program = (
            ["-m", "dlapp.tools", command.removeprefix("dlapp-")] if command.startswith("dlapp-") else ["-c", command]
        )
        done = subprocess.run(
            [*become, python, *program, *map(str, args)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=180,
            env=env,
            cwd=place,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run_as


@pytest.mark.proves("exec-access", "ports-token")
@pytest.mark.slow
def test_another_users_application_is_seen_and_not_ended(place: Path, run_as: Run) -> None:
    file = properties(place, "echo secret of ann; sleep 600", name="ann")
    done = run_as(ANN, "dlapp-launcher", file)
    assert done.code == 0, done.err
    application = next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))
    wait_for("it runs", lambda: "RUNNING" in run_as(ANN, "dlapp-status").out)

    assert run_as(TONY, "dlapp-status").code == 3  # the last one of Tony's own, and he has none
    assert application in run_as(TONY, "dlapp-list", "-a").out
    assert application in run_as(TONY, "dlapp-list", ANN).out
    assert run_as(TONY, "dlapp-list").out.count("\n") == 1
    assert run_as(TONY, "dlapp-status", application[-4:]).out.startswith(f"DL App {application} is RUNNING")
    for command in ("dlapp-kill", "dlapp-softkill"):
        for words in ((application,), (application[-4:],)):
            denied = run_as(TONY, command, *words)
            assert (denied.code, denied.out) == (4, "")
            assert denied.err == f"Error: {application} belongs to {ANN}; only they or root may end it\n"
        denied = run_as(TONY, command, "tony", application)
        assert (denied.code, denied.err) == (4, f"Error: {application} is {ANN}'s, not tony's\n")
    exec_words, port_words = (application, "--", "id"), (application, "worker", "8888")
    for user, owner in ((TONY, ANN), (0, f"u{ANN}")):
        for command, reach in (("dlapp-exec", exec_words), ("dlapp-port", port_words)):
            denied = run_as(user, command, *reach)
            assert (denied.code, denied.out) == (4, "")
            assert denied.err == f"Error: {application} belongs to {owner}; only they reach into its containers\n"
    assert run_as(ANN, "dlapp-exec", application, "--", "id", "-u").out == f"{ANN}\n"
    assert "RUNNING" in run_as(ANN, "dlapp-status").out

    killed = run_as(0, "dlapp-kill", f"u{ANN}", application)
    assert killed.code == 0, killed.err
    assert "is KILLED" in run_as(ANN, "dlapp-status").out
    for user, owner in ((TONY, ANN), (0, f"u{ANN}")):
        denied = run_as(user, "dlapp-rm", application)
        assert (denied.code, denied.err) == (4, f"Error: {application} belongs to {owner}; only they may remove it\n")
    assert run_as(ANN, "dlapp-rm", application).code == 0
    assert run_as(ANN, "dlapp-status").code == 3


@pytest.mark.proves("ports-access")
@pytest.mark.slow
def test_only_users_in_the_acls_reach_ports_or_kill(place: Path, run_as: Run) -> None:
    group = grp.getgrgid(1)  # any that this machine has
    port, sockets = held()
    for socket in sockets:
        socket.close()
    (place / "server.py").write_text(SERVER)
    access = {"view_acl": f"u{TONY}", "modify_acl": f"' {group.gr_name}'"}
    script = f"exec {interpreter_for_everybody()} {place}/server.py {port}"
    file = properties(place, script, name="ann", application=access)
    unknown = properties(place, script, name="nobody", application={"view_acl": "no-such-user"})
    refused = run_as(ANN, "dlapp-launcher", unknown, names=True)
    assert refused.code == 2
    assert "application.view_acl: there is no user no-such-user on this machine" in refused.err
    done = run_as(ANN, "dlapp-launcher", file, names=True)
    assert done.code == 0, done.err
    application = next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))
    wait_for("it runs", lambda: "RUNNING" in run_as(ANN, "dlapp-status", names=True).out)

    reached = run_as(TONY, REACH, application, port, names=True)
    assert (reached.code, reached.out) == (0, "hello through the ApplicationMaster\n"), reached.err
    status = run_as(TONY, "dlapp-status", application, names=True).out
    assert f"viewAcl : u{TONY}\nmodifyAcl :  {group.gr_name}\n" in status
    denied = run_as(TONY, "dlapp-exec", application, "--", "id", names=True)
    assert (denied.code, denied.out) == (4, "")
    assert "view_acl permits dlapp-port only" in denied.err
    only = f"Error: {application} belongs to u{ANN}; only they or root may end it\n"
    assert run_as(TONY, "dlapp-softkill", application, names=True).err == only

    for user, of_group in ((SUE, None), (SUE, group.gr_gid)):
        denied = run_as(user, "dlapp-port", application, "worker", port, names=True, group=of_group)
        assert (denied.code, denied.out) == (4, "")
        assert "only they reach into its containers" in denied.err
    assert run_as(SUE, "dlapp-kill", application, names=True).err == only
    killed = run_as(SUE, "dlapp-kill", application, names=True, group=group.gr_gid)
    assert (killed.code, killed.out) == (0, f"{application} was killed, no output kept\n"), killed.err
    assert "is KILLED" in run_as(ANN, "dlapp-status", names=True).out
    wait_for("its tokens are gone", lambda: not list((place / "state").glob("*/applications/*/*.token")))
