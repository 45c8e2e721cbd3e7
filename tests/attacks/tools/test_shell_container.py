"""A program in the container of dlapp-shell that wants to write, or to have run, something outside of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.client.shell.server import ShellRequestServer, install
from tests.applications import BIN, Done, properties, run, wait_for
from tests.services.containers.dockerd import IMAGE, Dockerd, dockerd

__all__ = ["dockerd"]

MINE = "# the user's own\n"


@pytest.fixture
def bashrc(tmp_path: Path) -> Path:
    """A file of the user's that the container does not see, and whose beginning would be run."""
    path = tmp_path / "bashrc"
    path.write_text(MINE)
    return path


def docker_shell(file: Path, script: str, dockerd: Dockerd, **env: str) -> Done:
    done = subprocess.run(
        [BIN / "dlapp-shell", file],
        input=script,
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "DLAPP_RUNTIME_DOCKER_HOST": dockerd.host,
            "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
            **env,
        },
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.proves("shell-replies")
@pytest.mark.slow
@pytest.mark.docker
def test_a_reply_that_became_a_link_does_not_write_into_a_file_of_the_user(
    dockerd: Dockerd, tmp_path: Path, bashrc: Path
) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE})
    done = docker_shell(
        file,
        # A fault whose text is the container's to choose, then the place for that text.
        "busybox ln -s /nowhere '/workspace/x;touch PWNED;#'\n"
        "echo '7 --cluster=local' >/dlapp/shell/requests\n"
        "i=0; until [ -p /dlapp/shell/reply.7 ] || [ $i -gt 100 ]; do i=$((i+1)); sleep 0.05; done\n"
        f"rm -f /dlapp/shell/reply.7; busybox ln -s {bashrc} /dlapp/shell/reply.7; sleep 5\n"
        "echo the end\n",
        dockerd,
    )
    assert done.out.endswith("the end\n"), done.err
    assert bashrc.read_text() == MINE


@pytest.mark.proves("shell-replies")
@pytest.mark.docker
def test_a_container_cannot_change_directories_in_which_dlapp_opens_files(
    dockerd: Dockerd, tmp_path: Path, state_dir: Path, bashrc: Path
) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE})
    done = docker_shell(
        file,
        "for d in /dlapp /dlapp/shell /dlapp/shell/bin; do for n in new reply.1 dlapp.log start.json passwd; do\n"
        f"  busybox ln -s {bashrc} $d/$n; mkfifo $d/$n; mkdir $d/$n; echo $d/$n >>$d/$n; done; done 2>/dev/null\n"
        "ls /dlapp/shell /dlapp/shell/bin\n"
        "for n in requests bashrc bin/dlapp-run bin; do\n"
        "  rm -rf /dlapp/shell/$n; busybox mv /dlapp/shell/$n /dlapp/tmp/x; busybox chmod 777 /dlapp/shell/$n\n"
        "  busybox ln -f /dlapp/shell/$n /dlapp/tmp/y; echo evil >>/dlapp/shell/bin/dlapp-run\n"
        "  echo evil >>/dlapp/shell/bashrc; done 2>/dev/null\n"
        "echo evil 2>/dev/null >/dlapp/shell.sh\n"
        "busybox mount -o remount,rw /dlapp/shell 2>/dev/null\n"
        "dlapp-run --print-spec | head -n 1\n",
        dockerd,
    )
    assert done.code == 0, done.err
    assert done.out == "/dlapp/shell:\nbashrc\nbin\nlife\nrequests\n\n/dlapp/shell/bin:\ndlapp-run\n{\n", done.err
    assert bashrc.read_text() == MINE


@pytest.mark.docker
def test_the_container_sees_no_logs_accounts_or_start_file_of_its_session(dockerd: Dockerd, tmp_path: Path) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE, "env.KEY": "value"})
    done = docker_shell(file, "ls /dlapp /dlapp/log /dlapp/shell\n", dockerd)
    assert done.out.split() == [
        *("/dlapp:", "ending", "exec", "home", "life", "log", "python", "run", "shell", "tmp", "wrapper.sh"),
        *("/dlapp/log:", "exit", "stderr", "stdout"),
        *("/dlapp/shell:", "bashrc", "bin", "life", "requests"),
    ]


@pytest.mark.proves("shell-submission")
@pytest.mark.docker
def test_dlapp_run_uses_the_files_of_the_shells_start(dockerd: Dockerd, tmp_path: Path) -> None:
    workspace = tmp_path / "test_workspace"
    workspace.mkdir()
    secret = workspace / "env"
    secret.write_text("WORD=first\n")
    secret.chmod(0o600)
    made = properties(tmp_path, "true", application={"docker_image": IMAGE, "env_file": "env"})
    file = workspace / "app.properties"
    text = made.read_text().replace("test_workspace", ".")
    file.write_text(text)
    done = docker_shell(
        file,
        "grep -v docker_image app.properties >/dlapp/tmp/p; cat /dlapp/tmp/p >app.properties\n"
        "echo LD_PRELOAD=/workspace/evil.so >env\n"
        "dlapp-run --print-spec\n",
        dockerd,
    )
    assert done.code == 0, done.err
    spec = json.loads(done.out)["spec"]
    assert spec["docker_image"] == IMAGE
    assert spec["env"] == ["WORD"]
    assert "docker_image" not in file.read_text()
    assert f"{file} lies in the workspace: what runs in the container can change it" in done.err


@pytest.mark.proves("shell-submission")
@pytest.mark.docker
@pytest.mark.parametrize(
    "what",
    [
        *("state", "configuration", "a link to it", "Hadoop's"),
        *("the program of notifications", "the script of notifications", "a webhook"),
    ],
)
def test_a_workspace_with_dlapps_own_settings_is_refused(dockerd: Dockerd, tmp_path: Path, what: str) -> None:
    workspace = tmp_path / "test_workspace"
    file = properties(tmp_path, "true", application={"docker_image": IMAGE})
    (workspace / "config.yaml").write_text("cluster: local\n")
    (tmp_path / "link").symlink_to(workspace)
    env = {
        "state": {"DLAPP_LOCAL_STATE_DIR": str(workspace / "state")},
        "configuration": {"DLAPP_CONFIG": str(workspace / "config.yaml")},
        "a link to it": {"DLAPP_CONFIG": str(tmp_path / "link" / "config.yaml")},
        "Hadoop's": {"HADOOP_CONF_DIR": str(workspace / "hadoop")},
        "the program of notifications": {"DLAPP_NOTIFY_COMMAND": str(workspace / "tools" / "notify.sh")},
        "the script of notifications": {"DLAPP_NOTIFY_COMMAND": f"/bin/sh {workspace}/tools/notify.sh"},
        "a webhook": {"DLAPP_NOTIFY_WEBHOOK": str(workspace / "webhook")},
    }[what]
    done = docker_shell(file, "echo it ran\n", dockerd, **env)
    assert (done.code, done.out) == (2, ""), done.err
    assert f"Error: the workspace {workspace} holds " in done.err
    assert "a shell in Docker could change it" in done.err


# ---- the server of requests, with a hostile program of the same user in the place of the container ----


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dlapp.client.shell.server.READER_TIMEOUT_S", 120.0)
    place = tmp_path / "room"
    place.mkdir()
    install(str(place))
    return place


def _link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def _hard_link(place: Path, victim: Path) -> None:
    os.link(victim, place)


def _fifo(place: Path, _victim: Path) -> None:
    os.mkfifo(place)


def _directory(place: Path, _victim: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("make", [_link, _hard_link, _fifo, _directory])
@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_file_planted_under_a_replys_name_is_never_written(
    room: Path, bashrc: Path, make: Callable[[Path, Path], None], when: str
) -> None:
    reply = room / "shared" / "reply.7"
    with ShellRequestServer(str(room), ["/bin/sh", "-c", "echo evil"], os.environ, "/"):
        if when == "before":
            make(reply, bashrc)
        (room / "shared" / "requests").write_text("7 --wait\n")
        if when == "in the middle":
            wait_for("the reply is there", lambda: reply.exists())
            mine = os.open(reply, os.O_RDONLY | os.O_NONBLOCK)
            reply.unlink()
            make(reply, bashrc)
            # Whoever opened the real one is answered by that, and nobody else.
            os.set_blocking(mine, True)
            heard = b""
            while not heard.endswith(b"x 0\n"):
                heard += os.read(mine, 100)
            os.close(mine)
            assert heard == b"o evil\nx 0\n"
        else:
            other = (room / "shared" / "requests").open("w")
            other.write("8 --wait\n")
            other.close()
            wait_for("the next one is answered", lambda: (room / "shared" / "reply.8").exists())
            assert (room / "shared" / "reply.8").read_text() == "o evil\nx 0\n"
    assert bashrc.read_text() == MINE


def test_a_flood_of_requests_starts_no_more_than_a_few_processes(room: Path) -> None:
    before = threading.active_count()
    with ShellRequestServer(str(room), ["/bin/sh", "-c", "sleep 100"], os.environ, "/"):
        for number in range(500):
            with (room / "shared" / "requests").open("w") as ask:
                ask.write(f"{number} --wait\n")
        wait_for("the first are served", lambda: len(list((room / "shared").glob("reply.*"))) == 8)
        assert threading.active_count() < before + 20


def test_a_session_whose_request_fifo_is_a_link_is_refused(room: Path, bashrc: Path) -> None:
    ask = room / "shared" / "requests"
    ask.unlink()
    ask.symlink_to(bashrc)
    with pytest.raises(OSError, match="is a symbolic link, not a FIFO"):
        ShellRequestServer(str(room), ["/bin/true"], os.environ, "/")
    assert stat.S_ISREG(bashrc.stat().st_mode)


def test_dlapp_run_refuses_a_start_file_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a file of another user needs root")
    start = tmp_path / "start.json"
    start.write_text("{}")
    os.chown(start, 12_345, 12_345)
    done = run("dlapp-run", env={**os.environ, "DLAPP_SHELL_START": str(start)})
    assert (done.code, done.out) == (1, "")
    assert done.err == f"Error: {start}: belongs to uid 12345\n"


@pytest.mark.parametrize("what", ["shells", "sessions", "state"])
def test_a_session_is_not_created_in_another_users_directory(tmp_path: Path, state_dir: Path, what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a directory of another user needs root")
    file = properties(tmp_path, "true")
    done = run("dlapp-shell", file)
    assert done.code == 0, done.err
    (shells,) = state_dir.glob("*/shells")
    place = {"shells": shells, "sessions": shells / "0" / "sessions", "state": shells.parent}[what]
    os.chown(place, 12_345, 12_345)
    done = run("dlapp-shell", file)
    assert done.code != 0
    assert done.err.count("Error: ") == 1
    assert "12345" in done.err, done.err
    assert not list(state_dir.glob("*/shells/*/sessions/shell-*"))
