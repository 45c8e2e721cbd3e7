"""Payloads in containers of a real dockerd, and who dies around them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from dlapp.runtime.docker.exit_status import ended_with_code
from dlapp.runtime.payload import PayloadExit
from tests.runtime.driver import Driven, children, has_holder, wait_until
from tests.runtime.test_process import ODD_ARGUMENTS
from tests.services.containers.dockerd import BARE_IMAGE, IMAGE, Dockerd, own_daemon

pytestmark = pytest.mark.docker

FAMILY = """
sleep MARKER &
(setsid sh -c 'sleep MARKER & exec sleep MARKER' </dev/null >/dev/null 2>&1 &)
(env -i /bin/setsid /bin/sleep MARKER &)
echo ready
exec sleep MARKER
"""


@pytest.fixture
def docker(place: Path, dockerd: Dockerd) -> Generator[Driven, None, None]:
    """A driver of the tests' own user, root, for the shared daemon."""
    driven = Driven(place, as_user=False)
    driven.docker = {"image": IMAGE, "docker_host": dockerd.host}
    yield driven
    driven.close()


# ---- what is the same as for a plain process ----


def test_a_command_of_the_image_runs_without_a_shell(docker: Driven) -> None:
    docker.run(None, "$HOME", command=["printf", "<%s>", "a  b"], **docker.docker)
    assert docker.end()["code"] == 0
    assert docker.out() == b"<a  b><$HOME>"


def test_a_command_starts_in_a_directory_of_the_image(docker: Driven) -> None:
    docker.run(None, "-c", "pwd; ls -d /workspace", command=["sh"], workdir="/dev/shm", **docker.docker)
    assert docker.end()["code"] == 0
    assert docker.out() == b"/dev/shm\n/workspace\n"


@pytest.mark.parametrize("workdir", ["/none", "/bin/sh", "/none/../bin/x y"])
def test_a_directory_that_the_image_lacks_is_the_users_fault(docker: Driven, workdir: str) -> None:
    docker.run(None, command=["true"], workdir=workdir, **docker.docker)
    refused = docker.hear("refused")
    assert refused["fault"] == "user"
    problem = f"workdir={workdir}: image {IMAGE} has no such directory that the program may enter"
    assert refused["problem"] == problem


def test_arguments_arrive_byte_for_byte(docker: Driven) -> None:
    docker.run('for one in "$@"; do printf "%s\\0" "$one"; done', *ODD_ARGUMENTS, **docker.docker)
    assert docker.end()["code"] == 0
    assert docker.out() == b"".join(argument.encode() + b"\0" for argument in ODD_ARGUMENTS)


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("exit 137", 137, None),
        ("kill -9 $$", 137, None),
        ("kill -15 $$", 143, None),
        ("kill -9 -1", None, 9),
        ("kill -9 0", None, 9),
        ("trap 'kill 0' EXIT; sleep MARKER & exit 0", 143, None),
    ],
)
def test_the_end_is_reported_with_code_or_signal(
    docker: Driven, script: str, code: int | None, number: int | None
) -> None:
    docker.run(script, **docker.docker)
    end = docker.end()
    assert (end["code"], end["signal"]) == (code, number)
    assert docker.err() == b"", "nothing of ours is written there"


def test_a_foreign_container_that_starts_meanwhile_does_not_matter(docker: Driven) -> None:
    docker.run("while ! [ -e go ]; do sleep 0.05; done; kill -9 $$", **docker.docker)
    docker.hear("started")
    time.sleep(0.05)  # the kernel counts starts in hundredths of a second
    other = docker.home / "dockerd"
    shutil.copy2(os.path.realpath(shutil.which("sleep") or ""), other)
    with subprocess.Popen([other, "60"]) as running:
        try:
            (docker.home / "workspace" / "go").touch()
            end = docker.end()
        finally:
            running.kill()
    assert (end["code"], end["signal"], end["fault"]) == (137, None, "user")


def test_standard_input_is_empty_and_output_is_in_the_files(docker: Driven) -> None:
    docker.run("cat; echo out; echo err >&2; printf 'no newline'", **docker.docker)
    docker.end()
    assert (docker.out(), docker.err()) == (b"out\nno newline", b"err\n")


def test_the_container_has_the_requested_settings(docker: Driven) -> None:
    docker.run(
        "pwd; id -u; echo $HOME $TMPDIR $NVIDIA_VISIBLE_DEVICES [$TINI_KILL_PROCESS_GROUP]; echo x > $HOME/x;"
        "echo y > $TMPDIR/y; echo z > z; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max",
        **docker.docker,
    )
    docker.end()
    words = docker.out().decode().split()
    assert words[:6] == ["/workspace", str(os.getuid()), "/dlapp/home", "/dlapp/tmp", "void", "[]"]
    assert words[6:] in ([str(64 << 20)], [])  # [] where the test machine shows no cgroup files in a container
    assert (docker.home / "home" / "x").read_text() == "x\n"
    assert (docker.home / "tmp" / "y").read_text() == "y\n"
    assert (docker.home / "workspace" / "z").stat().st_uid == os.getuid()


def test_variables_of_the_start_arrive_byte_for_byte(docker: Driven) -> None:
    odd = "it's \"$HOME\" `id` $(id) \\ \n\té 'x'"
    docker.run(
        'printf "%s|%s" "$ODD" "$EMPTY"; stat -c %a /dlapp/run /dlapp/run/env.sh >&2',
        start_env={"ODD": odd, "EMPTY": ""},
        **docker.docker,
    )
    assert docker.end()["code"] == 0
    assert docker.out().decode() == f"{odd}|"
    assert docker.err().split() == [b"700", b"600"]


@pytest.mark.parametrize("late", [{}, {"ODD": "it's"}])
def test_arguments_of_the_start_arrive_byte_for_byte(docker: Driven, late: dict[str, str]) -> None:
    docker.run(
        'printf "%s|" "$ODD" "$@"',
        *("{master}", "${master}", "a  'b'", "", "-x={hosts:ps}"),
        start_env=late,
        peer_values={"master": 'it\'s "1" $(id)\n', "hosts:ps": "a:1,b:2"},
        **docker.docker,
    )
    assert docker.end()["code"] == 0
    assert docker.out().decode() == f"{late.get('ODD', '')}|it's \"1\" $(id)\n|${{master}}|a  'b'||-x=a:1,b:2|"


def test_defaults_reach_it_where_neither_the_payload_nor_the_image_has_others(docker: Driven) -> None:
    docker.run('echo "$A $B"; echo "$PATH"', env={"A": "1"}, defaults={"A": "0", "B": "0"}, **docker.docker)
    assert docker.end()["code"] == 0
    assert docker.out().decode().splitlines()[0] == "1 0"


def test_the_payload_may_write_the_exchange_directory(docker: Driven) -> None:
    docker.run("echo mine > /dlapp/run/report", **docker.docker)
    assert docker.end()["code"] == 0
    assert (docker.home / "run" / "report").read_text() == "mine\n"
    assert os.listdir(docker.home / "run") == ["report"]


def test_a_planted_file_of_variables_is_refused(docker: Driven) -> None:
    (docker.home / "run").mkdir(0o700)
    (docker.home / "run" / "env.sh").symlink_to(docker.home / "elsewhere")
    docker.run("exit 0", start_env={"A": "1"}, **docker.docker)
    refused = docker.hear("refused")
    assert refused["fault"] == "node"
    assert "the payload's environment could not be written" in refused["problem"]
    assert not (docker.home / "elsewhere").exists()


def test_the_payload_has_the_uid_of_its_task(docker: Driven) -> None:
    # Who may use the socket may be anybody; the task's uid is what the payload gets.
    socket = Path(docker.docker["docker_host"].removeprefix("unix://"))
    socket.chmod(0o666)
    socket.parent.chmod(0o755)
    as_user = Driven(docker.home, as_user=True)
    try:
        as_user.run("id -u; id -g; echo mine > made", **docker.docker)
        as_user.end()
        made = (docker.home / "workspace" / "made").stat()
        assert as_user.out().decode().split() == [str(made.st_uid), str(made.st_gid)]
        assert made.st_uid != 0
    finally:
        as_user.close()


def test_memory_above_the_limit_is_reported_with_the_limit(docker: Driven) -> None:
    docker.run("dd if=/dev/zero of=/dev/null bs=200M", **docker.docker)
    end = docker.end()
    assert end["signal"] == signal.SIGKILL
    assert end["problem"] == "killed for memory: it used more than its 64 MiB"


def test_an_oom_killed_process_is_not_the_cause_of_a_later_exit(docker: Driven, dockerd: Dockerd) -> None:
    script = "dd if=/dev/zero of=/dev/null bs=200M; until [ -e go ]; do sleep 0.02; done; exit 5"
    docker.run(script, **docker.docker)
    docker.hear("started")
    # dockerd hears of both in either order.
    (name,) = dockerd.containers()
    asked = ("events", "--since=30m", "--until=0s", f"--filter=container={name}", "--filter=event=oom")
    wait_until(lambda: bool(dockerd.docker(*asked).stdout), "dockerd knows of it")
    (docker.home / "workspace" / "go").touch()
    end = docker.end()
    assert (end["code"], end["fault"]) == (5, "user")
    assert end["problem"] == "exit code 5; earlier, a process in the container was killed for memory (limit 64 MiB)"


# ---- how it ends ----


def test_a_soft_stop_reaches_the_script_and_its_code_is_reported(docker: Driven) -> None:
    docker.run("trap 'echo saving; exit 9' TERM\necho ready\nwhile :; do sleep 0.02; done", **docker.docker)
    docker.wait_for_out(b"ready")
    docker.order("soft")
    assert docker.end()["code"] == 9
    assert docker.out() == b"ready\nsaving\n"


def test_after_a_soft_stop_the_script_continues_once_its_program_has_saved(docker: Driven) -> None:
    # bash catches SIGTERM while it starts a program: this one waits until its shell waits for it.
    begin = 'trap "sleep 0.2; echo saved; exit 0" TERM; until grep -q ") S" /proc/$PPID/stat; do :; done'
    child = f"{begin}; echo ready; while :; do sleep 0.02; done"
    docker.run(f"sh -c '{child}'\necho ended with $?", **docker.docker)
    docker.wait_for_out(b"ready")
    docker.order("soft")
    assert docker.end()["code"] == 0
    assert docker.out() == b"ready\nsaved\nended with 0\n"


def test_a_soft_stop_that_ends_the_script_is_reported_as_a_signal(docker: Driven) -> None:
    docker.run("echo ready; while :; do sleep 0.02; done", **docker.docker)
    docker.wait_for_out(b"ready")
    docker.order("soft")
    end = docker.end()
    assert (end["code"], end["signal"]) == (None, signal.SIGTERM)


def test_after_a_soft_stop_children_have_the_grace_time_too(docker: Driven) -> None:
    child = 'trap "" TERM; echo ready; while [ ! -e finish ]; do sleep 0.02; done; echo child done'
    docker.run(f"trap 'exit 5' TERM\nsh -c '{child}' &\nwhile :; do sleep 0.02; done", **docker.docker)
    docker.wait_for_out(b"ready")
    docker.order("soft")
    (docker.home / "workspace" / "finish").touch()
    assert docker.end()["code"] == 5
    assert docker.out().endswith(b"child done\n")


def test_a_payload_that_ignores_a_soft_stop_is_killed_by_the_next_order(docker: Driven) -> None:
    docker.run("trap '' TERM\necho ready\nwhile :; do sleep 0.02; done", **docker.docker)
    docker.wait_for_out(b"ready")
    docker.order("soft")
    docker.order("kill")
    assert docker.end()["signal"] == signal.SIGKILL


def test_children_that_are_left_when_the_script_ends_are_killed(docker: Driven) -> None:
    docker.run(FAMILY.replace("exec sleep MARKER", "exit 4"), **docker.docker)
    assert docker.end()["code"] == 4
    assert docker.payload_pids() == []


def test_output_through_a_scripts_own_pipe_is_in_its_log(docker: Driven) -> None:
    logger = 'mkfifo p; (while read -r line; do sleep 0.1; echo "[ts] $line"; done <p) & exec >p 2>&1'
    docker.run(f"{logger}\necho epoch 1\necho RuntimeError: CUDA out of memory\nexit 1", **docker.docker)
    end = docker.end()
    assert (end["code"], end["left"]) == (1, "")
    assert docker.out() == b"[ts] epoch 1\n[ts] RuntimeError: CUDA out of memory\n"


@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_are_killed_at_the_scripts_end_are_named(docker: Driven, code: int) -> None:
    docker.run(f"sleep MARKER & until grep -q sleep /proc/$!/comm; do sleep 0.02; done; exit {code}", **docker.docker)
    end = docker.end()
    assert (end["code"], end["left"]) == (code, "1 process, sleep")


def test_the_container_is_removed_after_the_end(docker: Driven, dockerd: Dockerd) -> None:
    docker.run("exit 1", **docker.docker)
    docker.end()
    assert dockerd.containers() == []


# ---- what is refused ----


@pytest.mark.parametrize(("as_submitter", "groups"), [(True, "0 60200"), (False, "0")])
def test_a_payload_has_the_groups_of_its_submitter_but_not_the_one_of_dockers_socket(
    docker: Driven, dockerd: Dockerd, as_submitter: bool, groups: str
) -> None:
    driven = Driven(docker.home, as_user=False)
    driven.within = ["setpriv", "--groups=0,60200,60300"]
    was = dockerd.socket.stat().st_gid
    os.chown(dockerd.socket, 0, 60_300)
    try:
        driven.run("id -G", **docker.docker, as_submitter=as_submitter)
        assert driven.end()["code"] == 0
    finally:
        os.chown(dockerd.socket, 0, was)
        driven.close()
    assert driven.out().decode().strip() == groups


def test_an_image_without_a_shell_is_the_users_fault(docker: Driven, dockerd: Dockerd) -> None:
    docker.run("echo", **(docker.docker | {"image": BARE_IMAGE}))
    refused = docker.hear("refused")
    assert (refused["fault"], refused["problem"]) == (
        "user",
        f"image {BARE_IMAGE} has no /bin/sh, which dlapp needs in it",
    )
    assert docker.process is not None
    docker.process.wait()
    assert dockerd.containers() == []


def test_an_interpreter_that_the_image_lacks_is_the_users_fault(docker: Driven) -> None:
    docker.run("#!/usr/bin/python3\n", mode=0o755, **docker.docker)
    refused = docker.hear("refused")
    assert refused["fault"] == "user"
    assert refused["problem"] == f"run.sh: its interpreter /usr/bin/python3 is not in image {IMAGE}"


def test_a_failed_pull_is_reported_with_dockers_message(docker: Driven) -> None:
    docker.run("echo", **(docker.docker | {"image": "localhost:1/none:1"}))
    refused = docker.hear("refused")
    assert refused["fault"] == "service"
    assert refused["problem"].startswith("image localhost:1/none:1 cannot be pulled: ")


def test_no_docker_is_the_nodes_fault_with_its_address(docker: Driven) -> None:
    docker.run("echo", **(docker.docker | {"docker_host": "unix:///nowhere/docker.sock"}))
    refused = docker.hear("refused")
    assert refused["fault"] == "node"
    assert refused["problem"].startswith("Docker at unix:///nowhere/docker.sock does not answer: ")


def test_a_shells_code_above_128_is_a_signal_only_where_one_was_sent() -> None:
    assert ended_with_code(137, {9}) == PayloadExit(None, 9)
    assert ended_with_code(143, {9}) == PayloadExit(143, None, problem="exit code 143 (128 + 15: often signal 15)")
    assert ended_with_code(137, ()) == PayloadExit(137, None, problem="exit code 137 (128 + 9: often signal 9)")
    assert ended_with_code(128, range(1, 65)) == PayloadExit(128, None)
    assert ended_with_code(255, range(1, 65)) == PayloadExit(255, None)


# ---- who dies ----


def start_family(docker: Driven, **options: str) -> None:
    docker.run(FAMILY, **(docker.docker | options))
    docker.hear("started")
    docker.wait_for_out(b"ready")
    wait_until(lambda: len(docker.payload_pids()) >= 5, "the whole family runs")


def test_no_process_outlives_a_sigkill_of_the_task(docker: Driven) -> None:
    start_family(docker)
    assert docker.process is not None
    docker.process.kill()
    wait_until(lambda: docker.payload_pids() == [], "nothing of the payload is left")
    wait_until(lambda: not has_holder(str(docker.home / "life")), "nobody holds the lifeline")


def test_no_process_outlives_a_sigkill_of_the_wrapper(docker: Driven, dockerd: Dockerd) -> None:
    start_family(docker)
    (name,) = dockerd.containers()
    init = int(dockerd.docker("inspect", "--format", "{{.State.Pid}}", name).stdout)
    for pid in children(init):
        with contextlib.suppress(ProcessLookupError):  # the death of one before it took it along
            os.kill(pid, signal.SIGKILL)
    assert docker.end()["signal"] == signal.SIGKILL
    assert docker.payload_pids() == []


def test_no_process_outlives_the_task_while_dockerd_is_dead(place: Path) -> None:
    with own_daemon() as daemon:
        docker = Driven(place, as_user=False)
        docker.docker = {"image": IMAGE, "docker_host": daemon.host}
        try:
            start_family(docker)
            daemon.kill()
            assert docker.payload_pids()
            assert docker.process is not None
            docker.process.kill()
            wait_until(lambda: docker.payload_pids() == [], "nothing of the payload is left")
        finally:
            docker.close()


def test_a_payload_that_ends_while_dockerd_is_dead_is_reported_with_its_code(place: Path) -> None:
    with own_daemon() as daemon:
        docker = Driven(place, as_user=False)
        docker.docker = {"image": IMAGE, "docker_host": daemon.host}
        try:
            docker.run("echo ready; while [ ! -e finish ]; do sleep 0.02; done; exit 6", **docker.docker)
            docker.hear("started")
            docker.wait_for_out(b"ready")
            daemon.kill()
            (place / "workspace" / "finish").touch()
            assert docker.end()["code"] == 6
        finally:
            docker.close()


def test_leftovers_of_a_dead_task_are_removed_by_the_hosts_next_task(
    docker: Driven, dockerd: Dockerd, tmp_path: Path
) -> None:
    docker.run("sleep 1000", **docker.docker)
    assert docker.process is not None
    docker.hear("started")
    docker.process.kill()
    wait_until(lambda: not has_holder(str(docker.home / "life")), "it is gone")
    wait_until(lambda: len(dockerd.containers()) == 1, "its container is left")
    (tmp_path / "next").mkdir()
    after = Driven(tmp_path / "next", as_user=False)
    try:
        after.run("exit 0", **docker.docker)
        assert after.end()["code"] == 0
        assert dockerd.containers() == []
    finally:
        after.close()


def test_a_container_whose_task_died_before_the_start_never_runs_its_payload(
    place: Path, dockerd: Dockerd, tmp_path: Path
) -> None:
    docker = Driven(place, as_user=False, env={"STOP_BEFORE_START": "1"})
    docker.docker = {"image": IMAGE, "docker_host": dockerd.host}
    try:
        docker.run("echo it ran", **docker.docker)
        docker.hear("made")
        assert docker.process is not None
        docker.process.kill()
        docker.process.wait()
        (name,) = dockerd.containers()
        dockerd.docker("start", name)  # a request that was still on its way
        wait_until(lambda: has_holder(str(place / "life")), "the wrapper waits for its task")
        wait_until(lambda: not dockerd.containers("status=running"), "it ends when somebody looks")
        assert docker.out() == b""
    finally:
        docker.close()
    after = Driven(tmp_path, as_user=False)
    try:
        after.run("exit 0", image=IMAGE, docker_host=dockerd.host)
        after.end()
        assert dockerd.containers() == []
    finally:
        after.close()


def test_stopping_the_container_by_hand_reaches_the_payload(docker: Driven, dockerd: Dockerd) -> None:
    docker.run("trap 'echo term; exit 8' TERM; echo ready; while :; do sleep 0.02; done", **docker.docker)
    docker.wait_for_out(b"ready")
    (name,) = dockerd.containers()
    dockerd.docker("stop", "--time=300", name)  # by then the driver has given up: Docker's own SIGKILL ends nothing
    assert docker.end()["code"] == 8
    assert docker.out() == b"ready\nterm\n"


# ---- what a payload uses ----


COUNT = (
    "a=/sys/fs/cgroup/cpuacct/cpuacct.usage b=/sys/fs/cgroup/cpu.stat;"
    " if [ -e $a ]; then cat $a; else sed -n 's/usage_usec \\(.*\\)/\\1000/p' $b; fi >counted"
)
"""What a payload does as its last act: read the files that the kernel keeps for it."""
BURN = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"


def counted_s(docker: Driven) -> float:
    return int((docker.home / "workspace/counted").read_text()) / 1e9


def test_usage_of_a_container_equals_its_cgroup_counters(docker: Driven) -> None:
    docker.run(f"head -c 50000000 /dev/zero >$TMPDIR/held; ({BURN}) & {BURN}; wait; {COUNT}", **docker.docker)
    used = docker.end()["used"]
    counted = counted_s(docker)
    assert counted > 0.1
    assert counted <= used["cpu_s"] <= 1.02 * counted + 0.05
    assert used["peak_bytes"] is None or used["peak_bytes"] > 0
    assert used["memory_bytes"] > 0
    assert used["received_bytes"] is not None, "its network is its own"


def test_usage_of_a_container_is_read_after_its_end_too(docker: Driven, dockerd: Dockerd) -> None:
    docker.run(f"until [ -e go ]; do sleep 0.02; done; {BURN}; {COUNT}", **docker.docker)
    docker.hear("started")
    assert docker.process is not None
    docker.process.send_signal(signal.SIGSTOP)
    try:
        (docker.home / "workspace/go").touch()
        wait_until(lambda: (docker.home / "exit").read_text() == "exited 0\n", "the payload ends")
        assert len(dockerd.containers("status=running")) == 1
    finally:
        docker.process.send_signal(signal.SIGCONT)
    used, counted = docker.end()["used"], counted_s(docker)
    assert counted > 0.1
    assert counted <= used["cpu_s"] <= 1.02 * counted + 0.05
