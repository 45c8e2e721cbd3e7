"""The commands on real applications: on every engine, and of the embedded one what it alone has."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from dlapp.client.operations.connections import caller
from dlapp.client.operations.output import TAIL_BYTES
from tests.applications import BIN, ended, launch, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import Dockerd, busybox_root
from tests.services.containers.registry import Registry
from tests.tools.terminal import Terminal


def listed(application: str) -> str:
    """Return its line in the list."""
    (line,) = [line for line in run("dlapp-list").out.splitlines() if line.startswith(f"{application} ")]
    return line


def test_an_application_from_its_file_to_its_logs(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path, 'echo "hello $CONTAINER_INDEX"; echo oh >&2; printf "no end"', resources={"containers": 2}
    )
    done = run("dlapp-launcher", "--wait", file)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    application = lines[6].removeprefix("DL App ID = ")
    if lines[9] == "DL App Status and stdout/stderr Log URLs":
        lines.insert(8, "* While app is running , check : ")  # it had no page yet
    assert lines[:12] == [
        "C3 DL Cluster Version check : ok",
        "CheckDLAppProperties : ok",
        f"user_dev_workspace_path = {tmp_path}/test_workspace",
        "user_dev_workspace_exclude_list = []",
        "user_dev_workspace dir size = 1 kb",
        "DL App Submission : OK",
        f"DL App ID = {application}",
        "DL App Dashboard",
        *(line for line in lines[8:10] if line.startswith(("* While app is running , check : ", "* After app is c"))),
        "DL App Status and stdout/stderr Log URLs",
        f"* dlapp-status {application}",
    ]
    assert [re.sub(r"\d\d:\d\d$", "…", line) for line in lines[13:]] == ["succeeded after 0:…"]
    assert "\x1b" not in done.err

    shown = run("dlapp-status", "--logs").out.splitlines()
    containers = [item["container_id"] for item in status("last")["containers"]]
    assert shown[:4] == [
        f"DL App {application} is FINISHED",
        f"Username : {caller()}",
        f"DL App ID : {application}",
        "DL App Name : test",
    ]
    urls, last = shown[7:], 7 + 4 * len(containers)
    for index, (container, stream) in enumerate((item, name) for item in containers for name in ("stdout", "stderr")):
        assert urls[2 * index] == stream
        assert re.fullmatch(engine.log_page(application, container, stream), urls[2 * index + 1])
    assert run("dlapp-status").out.splitlines() == [*shown[:11], *shown[last:]]
    # On a cluster queue, priority, project and tags follow.
    assert listed(application).split()[:7] == [
        *(application, "test", caller(), "FINISHED", "succeeded", shown[6].removeprefix("elapsedTime : "), "0")
    ]
    # Its number alone may be another's, too: a ResourceManager that was started again counts from 1.
    logs = run("dlapp-logs", application[-12:])
    assert logs.code == 0, logs.err
    assert logs.out.splitlines() == [
        *("[0] hello 0", "[0] no end", "[0 err] oh"),
        *("[1] hello 1", "[1] no end", "[1 err] oh"),
    ]


def test_a_memory_that_is_hardly_meant_is_warned_of_on_stderr(tmp_path: Path) -> None:
    file = properties(tmp_path, "true", resources={"memory": 4})
    done = run("dlapp-launcher", file)
    assert (done.code, "warning" in done.out) == (0, False)
    line = 1 + file.read_text().splitlines().index("memory=4")
    assert done.err == f"warning: {file}:{line}: resources.memory: 4 is 4 MiB; did you mean 4g?\n"


@on_yarn_when_full
def test_a_failed_application_exits_with_1_when_waiting_and_0_for_a_status(engine: Engine, tmp_path: Path) -> None:
    done = run("dlapp-launcher", "--wait", "--json", properties(tmp_path, "exit 3"))
    assert done.code == 1
    content = json.loads(done.out)
    assert (content["state"], content["final_status"], content["exit_code"]) == ("FINISHED", "FAILED", 1)
    assert content["containers"][0]["exit_code"] == 3
    assert "DL App Submission : OK" in done.err
    assert f"next : dlapp-logs --container 0 {content['application_id']}" in done.err
    assert run("dlapp-status", "last").code == 0
    assert listed(content["application_id"]).split()[6] == "3"
    assert run("dlapp-logs", "-f").code == 1
    last = json.loads(run("dlapp-list", "--json").out)["applications"][-1]
    assert (last["application_id"], last["exit_code"]) == (content["application_id"], 1)


@on_yarn_when_full
def test_a_failure_shows_the_last_output_and_programs_cannot_fake_dlapps_lines(engine: Engine, tmp_path: Path) -> None:
    script = (
        'if [ "$CONTAINER_INDEX" = 0 ]; then sleep 600; fi; for i in 1 2 3 4 5 6; do echo "line $i" >&2; done\n'
        r"""printf 'finalStatus : SUCCEEDED\n\033]0;title\007 10%%\r 99%%\n\033[31mred\033[0m\n\377\n' >&2"""
        "\necho out; exit 3"
    )
    done = run("dlapp-launcher", "--wait", properties(tmp_path, script, resources={"containers": 2}))
    assert done.code == 1
    lines = done.out.splitlines()
    answer = lines[lines.index("DL App Resources = 2 containers, each with memory 64 MiB, vcores 1, gcores 0") + 1 :]
    application = status("last")["application_id"]
    assert re.fullmatch(r"failed after 0:\d\d:\d\d: container 1 exited with code 3", answer[0])
    tail = [f"line {i}" for i in range(1, 7)] + ["finalStatus : SUCCEEDED", " 99%", "red", "\ufffd"]
    begin = answer.index("stderr of container 1, last lines:")
    assert answer[begin + 1 :] == [
        *(f"  | {line}" for line in tail),
        f"next : dlapp-logs --container 1 {application}",
    ]
    shown = run("dlapp-status").out.splitlines()
    assert shown[11 : 11 + len(answer)] == answer
    assert [line for line in shown if line.startswith("finalStatus")] == ["finalStatus : FAILED"]
    container = status("last")["containers"][1]["container_id"]
    assert re.fullmatch(engine.log_page(application, container, "stderr"), shown[10])


def test_the_status_shows_the_last_bytes_of_a_stderr_without_line_ends(tmp_path: Path) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x >&2; printf end >&2; exit 1"
    assert run("dlapp-launcher", "--wait", properties(tmp_path, script)).code == 1
    (line,) = [line for line in run("dlapp-status").out.splitlines() if line.startswith("  | ")]
    assert line == "  | …" + "x" * (TAIL_BYTES - 3) + "end"


def test_a_fifo_in_place_of_stderr_does_not_block_the_status(tmp_path: Path) -> None:
    launched = run("dlapp-launcher", "--wait", properties(tmp_path, "echo x >&2; exit 1"))
    assert launched.code == 1
    log = Path(status("last")["logs"][0]["files"]["stderr"].removeprefix("file://"))
    log.unlink()
    os.mkfifo(log)
    shown = run("dlapp-status", timeout_s=120)
    assert shown.code == 0
    assert "\nstderr of container 0 cannot be read: " in shown.out


@on_yarn_when_full
def test_logs_of_one_container_are_its_very_bytes(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, r"printf 'a\000\377\r\n\nb'; printf 'e1\ne2\ne3' >&2", resources={"containers": 2})
    assert run("dlapp-launcher", "--wait", file).code == 0

    def raw(*args: str) -> tuple[bytes, bytes]:
        done = subprocess.run([BIN / "dlapp-logs", *args], capture_output=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    container = status("last")["containers"][1]["container_id"]
    both = (b"a\x00\xff\r\n\nb", b"e1\ne2\ne3")
    assert raw("--container", "1") == both
    assert raw("--container", container, "last") == both
    assert raw("--container", "0", "--stderr") == (both[1], b"")
    assert raw("--stderr", "-n", "2") == (b"[0 err] e2\n[0 err] e3\n[1 err] e2\n[1 err] e3\n", b"")
    first = json.loads(raw("--stdout", "--json")[0].splitlines()[0])
    assert first["line"].encode("utf-8", "surrogateescape") == b"a\x00\xff\r"
    assert (first["index"], first["stream"], first["role"]) == (0, "stdout", "worker")
    assert b"[0 dlapp] " in raw("--own")[0]


@pytest.mark.slow
@on_yarn_when_full
def test_applications_that_cannot_be_shown_have_their_own_exit_code(engine: Engine, tmp_path: Path) -> None:
    assert run("dlapp-logs", "application_1700000000000_0042").code == 3
    assert run("dlapp-status", "tony").code == 2
    run("dlapp-launcher", "--wait", properties(tmp_path, "true"))
    assert run("dlapp-logs", "--container", "1").code == 3
    assert run("dlapp-logs", "--container", "x").code == 2
    assert run("dlapp-logs", "--stdout", "--stderr").code == 2
    assert run("dlapp-logs", "--own", "--timestamps").code == 2


def test_a_user_without_applications_gets_a_message(state_dir: Path) -> None:
    assert run("dlapp-status").code == 3
    assert len(run("dlapp-list").out.splitlines()) == 1


def test_a_cluster_without_an_address_is_refused_with_the_setting(tmp_path: Path) -> None:
    properties(tmp_path, "true")
    refused = run("dlapp-launcher", "--cluster", "yarn", tmp_path / "test.properties")
    assert (refused.code, refused.out) == (2, "")
    assert "yarn.conf_dir" in refused.err


def test_every_fault_of_a_file_is_shown_and_one_error_line(tmp_path: Path) -> None:
    file = properties(tmp_path, "true", resources={"memroy": "4g", "vcores": "x"})
    done = run("dlapp-launcher", file)
    assert done.code == 2
    assert done.out.splitlines()[-1] == "CheckDLAppProperties : fail"
    *faults, last = done.err.splitlines()
    assert [fault.startswith(f"{file}:") for fault in faults] == [True, True]
    assert last == "Error: the properties file is refused: it has 2 errors"


def test_print_spec_prints_the_spec_without_submitting(tmp_path: Path) -> None:
    done = run("dlapp-launcher", "--print-spec", properties(tmp_path, "true", resources={"memory": "2g"}))
    assert json.loads(done.out)["spec"]["roles"][0]["resources"]["memory_mib"] == 2048
    assert len(run("dlapp-list").out.splitlines()) == 1


@pytest.mark.slow
@on_yarn_when_full
def test_options_take_the_place_of_the_file_and_no_value_of_a_variable_is_kept(
    engine: Engine, tmp_path: Path, state_dir: Path
) -> None:
    file = properties(
        tmp_path,
        'echo "$LR $TOKEN $PASSED"; for word; do echo "<$word>"; done\n'
        "grep -l hu[s]h-option /proc/[0-9]*/cmdline 2>/dev/null | wc -l",
        application={"user_shell_args": "of the file", "pass_env": "PASSED"},
    )
    options = ("--set", "resources.containers=2", "--env", "LR=0.1", "--env", "TOKEN")
    words = ("--seed={index}", "two words", "", "'", "--debug")
    secrets = {"TOKEN": "hush-option", "PASSED": "hush-passed"}
    done = run("dlapp-launcher", *options, "--print-spec", file, "--", *words, env=secrets)
    assert json.loads(done.out)["spec"]["args"] == list(words)
    assert json.loads(done.out)["spec"]["env"] == ["PASSED", "LR", "TOKEN"]
    assert "hush" not in done.out + done.err
    done = run("dlapp-launcher", "--wait", "--json", *options, file, "--", *words, env=secrets)
    assert done.code == 0, done.err
    for index in (0, 1):
        assert run("dlapp-logs", "--container", str(index), "--stdout").out.splitlines() == [
            "0.1 hush-option hush-passed",
            *(f"<--seed={index}>", "<two words>", "<>", "<'>", "<--debug>", "0"),
        ]
    assert "hush" not in done.out + done.err + run("dlapp-status", "--json").out
    printed = b"0.1 hush-option hush-passed"  # by the program; its last lines are in the report
    remaining = [path for path in state_dir.rglob("*") if path.is_file() and path.name != "stdout"]
    assert [path for path in remaining if b"hush" in path.read_bytes().replace(printed, b"")] == []


def test_a_misplaced_word_is_not_passed_to_the_program(tmp_path: Path) -> None:
    done = run("dlapp-launcher", properties(tmp_path, "true"), "word")
    assert done.code == 2
    assert "unexpected extra argument" in done.err


def test_following_shows_new_lines_and_ends_with_the_application(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    file = properties(tmp_path, f'echo first; until [ -e "{go}" ]; do sleep 0.02; done; printf "the last, cut"; exit 4')
    launch(file)
    command: list[str | Path] = [BIN / "dlapp-logs", "-f", "last"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"[0] first\n"
        go.touch()
        assert follower.stdout.read() == b"[0] the last, cut\n"
    assert follower.returncode == 1


@pytest.mark.slow
@on_yarn_when_full
def test_following_ends_with_a_line_on_the_end(engine: Engine, tmp_path: Path) -> None:
    launch(properties(tmp_path, "echo oh >&2; exit 4"))
    followed = run("dlapp-logs", "-f")
    application = status("last")["application_id"]
    assert (followed.code, followed.out) == (1, "[0 err] oh\n")
    message = rf"{application} failed after 0:\d\d:\d\d: container 0 exited with code 4"
    assert re.fullmatch(message, followed.err.splitlines()[-1])
    # One container's stderr goes to stderr, byte for byte.
    alone = run("dlapp-logs", "-f", "--container", "0")
    assert (alone.code, alone.out, alone.err) == (1, "", "oh\n")
    assert run("dlapp-logs", "--stderr").err == ""
    killed = launch(properties(tmp_path, "sleep 600"))
    assert run("dlapp-kill", killed).code == 0
    # A ResourceManager that ends it before its ApplicationMaster is there says so in words of its own.
    message = rf"{killed} killed after 0:\d\d:\d\d: (Application {killed} was )?killed by (user )?\w+.*\n"
    assert re.fullmatch(message, run("dlapp-logs", "-f", killed).err)


def test_on_a_terminal_a_progress_bar_is_followed_line_by_line(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        f"printf '\\r 10%%|#   |' >&2; until [ -e '{go}' ]; do sleep 0.02; done; printf '\\r 99%%\\r100%%|####|\\n' >&2"
    )
    launch(properties(tmp_path, script))
    with Terminal("dlapp-logs", "-f") as terminal:
        terminal.expect(r"^\[0 err\]  10%\|#   \|\n")
        go.touch()
        terminal.expect(r"^\[0 err\] 100%\|####\|\n+application_\S+ succeeded after ")
        assert terminal.wait() == 0


@on_yarn_when_full
def test_following_a_waiting_application_shows_the_reason_and_then_its_logs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    monkeypatch.setenv("DLAPP_LOCAL_MEMORY", "64m")
    # All of the machine, or of each of the cluster's two nodes all but what an ApplicationMaster takes.
    most: dict[str, object] = {}
    little: dict[str, object] = {}
    if engine.name != "local":
        most, little = {"containers": 2, "memory": 3584}, {"memory": 1024}
    script = f'until [ -e "{go}" ]; do sleep 0.02; done'
    first = launch(properties(tmp_path, script, name="first", resources=most))
    wait_for("the first runs", lambda: {container["phase"] for container in status(first)["containers"]} == {"running"})
    second = launch(properties(tmp_path, "echo at last", name="second", resources=little))
    command: list[str | Path] = [BIN / "dlapp-logs", "--follow", second]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        output = follower.stderr.readline().decode()
        assert re.match(rf"{second} is (ACCEPTED|RUNNING): .", output), output
        go.touch()
        assert follower.stdout.read() == b"[0] at last\n"
        follower.stderr.read()
    assert follower.returncode == 0


def test_status_list_and_json_have_the_program_its_arguments_the_commit_and_the_comment(tmp_path: Path) -> None:
    text = {"user_shell_args": "--lr 0.1 'two words'", "comment": "a wider net", "hold": "true"}
    file = properties(tmp_path, "true", application=text)
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path / "test_workspace"], check=True)
    application = launch(file)
    program, source = "start.sh --lr 0.1 'two words'", "no commit yet (main), 1 file changed"
    for released in (False, True):
        if released:
            assert run("dlapp-release", application).code == 0
            wait_for("it has ended", lambda: status(application)["finished_ms"])
        lines = run("dlapp-status", application).out.splitlines()
        assert {f"program : {program}", f"source : {source}", "comment : a wider net"} <= set(lines)
        listed = run("dlapp-list", "-o", "name=program,source,comment").out.splitlines()
        assert re.split("  +", listed[-1]) == [program, source, "a wider net"]
        found = json.loads(run("dlapp-list", "--json").out)["applications"][-1]
        assert (found["program"], found["source"], found["comment"]) == (program, source, "a wider net")
    again = run("dlapp-launcher", "--again", application, "--set", "application.hold=true")
    assert (again.code, status("last")["again_of"], status("last")["source"]) == (0, application, source)


def test_the_username_of_the_file_names_the_callers_own_applications_in_list_and_kill(tmp_path: Path) -> None:
    file = properties(tmp_path, "sleep 600", application={"username": "tony"})
    first = launch(file)
    second, third = launch(file), launch(properties(tmp_path, "sleep 600", name="mine"))
    listed = json.loads(run("dlapp-list", "tony", "--json").out)["applications"]
    assert {view["application_id"] for view in listed} == {first, second}
    mine = json.loads(run("dlapp-list", caller(), "--json").out)["applications"]
    assert {view["application_id"] for view in mine} == {first, second, third}
    refused = run("dlapp-kill", "tony", third)
    assert (refused.code, refused.err) == (4, f"Error: {third} is {caller()}'s, not tony's\n")
    assert run("dlapp-kill", "tony", first).code == 0
    assert run("dlapp-softkill", "tony", "last").code == 0
    assert run("dlapp-kill", caller(), third).code == 0
    wait_for("all have ended", lambda: all(status(item)["finished_ms"] for item in (first, second, third)))
    assert status(second)["soft_kill_by"] == caller()


def test_a_list_of_an_unknown_user_is_reported() -> None:
    for options in ([], ["--json"], ["--state", "failed"]):
        unknown = run("dlapp-list", "daemom", *options)
        message = "Error: there is no user daemom on this machine, and no application of daemom; the nearest is daemon"
        assert (unknown.code, unknown.out, unknown.err) == (3, "", f"{message}\n")
    assert run("dlapp-list", "nobody-of-this-name").err.endswith(", and no application of nobody-of-this-name\n")
    for known in ("daemon", "12345"):
        done = run("dlapp-list", known)
        assert (done.code, done.err) == (0, f"there are no applications of {known}\n")


@on_yarn_when_full
def test_ctrl_c_while_waiting_detaches_with_the_command_to_return(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    file = properties(tmp_path, f'until [ -e "{go}" ]; do sleep 0.02; done')
    command: list[str | Path] = [BIN / "dlapp-launcher", "--wait", file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        assert any("running" in line for line in launcher.stderr)
        launcher.send_signal(signal.SIGINT)
        output = launcher.stderr.read()
    assert launcher.returncode == 130
    application = status("last")["application_id"]
    for what in (f"Detached: {application} continues", f"dlapp-logs -f {application}", f"dlapp-kill {application}"):
        assert what in output
    assert output.index(f"dlapp-softkill {application}") < output.index(f"dlapp-kill {application}")
    assert "Traceback" not in output
    assert status("last")["state"] == "RUNNING"
    go.touch()
    assert ended(application)["final_status"] == "SUCCEEDED"


@on_yarn_when_full
def test_on_a_terminal_waiting_is_a_live_picture(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    file = properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done", resources={"containers": 2})
    with Terminal("dlapp-launcher", "--wait", file, env={"DLAPP_LOCAL_VCORES": "2"}) as terminal:
        terminal.expect(r"^running +█+ +[12] of 2")
        go.touch()
        assert terminal.wait() == 0
        assert re.search(r"^succeeded after 0:\d\d:\d\d$", terminal.text, re.MULTILINE)
        assert terminal.raw.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?25h" in terminal.raw  # the cursor is back


@pytest.mark.slow
def test_on_a_terminal_a_pull_is_a_bar_of_how_far_it_is(dockerd: Dockerd, tmp_path: Path) -> None:
    env = {"DLAPP_RUNTIME_DOCKER_HOST": dockerd.host, "DLAPP_RUNTIME_DOCKER_NETWORK": "none"}
    with Registry(busybox_root({"ballast": os.urandom(8 << 20)}), slow_s=30.0) as registry:
        file = properties(tmp_path, "true", application={"docker_image": registry.image})
        with Terminal("dlapp-launcher", "--wait", file, env=env) as terminal:
            terminal.expect(r"^pulling +█+░+ 1 of 1, [1-9]\d?%")
            registry.slow_s = 0.0
            assert terminal.wait() == 0
        dockerd.docker("rmi", registry.image)


@on_yarn_when_full
@pytest.mark.parametrize("mebibytes", [33, 31])
def test_on_a_terminal_long_packing_shows_a_temporary_bar(engine: Engine, tmp_path: Path, mebibytes: int) -> None:
    file = properties(tmp_path, "true")
    (tmp_path / "test_workspace" / "ballast").write_bytes(b"x" * (mebibytes << 20))
    with Terminal("dlapp-launcher", "--wait", file) as terminal:
        if mebibytes > 32:
            terminal.expect(r"packing ━+ 0\.0/34\.6 MB")
            terminal.expect(r"packing [━╸╺]+ +34\.6/34\.6 MB +[\d.]+ [MG]B/s +0:\d\d:\d\d")
        terminal.expect("^DL App Submission : OK")
        assert terminal.wait() == 0
    assert ("packing ━" in terminal.text) == (mebibytes > 32)
    if mebibytes > 32:
        after = terminal.raw.partition(b"DL App Submission")[0].rpartition(b"B/s")[2]
        assert b"\x1b[2K" in after  # its line is erased
        assert b"\x1b[?25h" in after  # the cursor is back


def test_a_bar_reappears_when_more_data_is_discovered() -> None:
    script = (
        "from dlapp.tools.display.progress import copying_bar\n"
        "with copying_bar('pulling') as progress:\n"
        "    for done, total in ((20, 40), (40, 40), (40, 40), (50, 80), (80, 80)):\n"
        "        progress(done * 10**6, total * 10**6)\n"
        "        print('noted', done)\n"
    )
    with Terminal("python", "-c", script) as terminal:
        terminal.expect(r"pulling [━╸╺]+ 20\.0/40\.0 MB")
        terminal.expect(r"^noted 40\n+noted 40\n+pulling ")
        terminal.expect(r"pulling [━╸╺]+ 50\.0/80\.0 MB")
        assert terminal.wait() == 0


@on_yarn_when_full
def test_ctrl_c_on_a_terminal_detaches_too(engine: Engine, tmp_path: Path) -> None:
    with Terminal("dlapp-launcher", "--wait", properties(tmp_path, "sleep 600")) as terminal:
        terminal.expect("running +█")
        terminal.type("\x03")
        terminal.expect("Detached: application_")
        assert terminal.wait() == 130
    killed = run("dlapp-kill", "last")
    assert killed.code == 0, killed.err


def test_a_kill_leaves_no_process_and_waiting_commands_exit_with_7(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "sleep 600")
    command: list[str | Path] = [BIN / "dlapp-launcher", "--wait", file]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as launcher:
        assert launcher.stderr is not None
        assert any("running" in line for line in launcher.stderr)
        me = caller()
        assert run("dlapp-kill", "tony").code == 2
        assert run("dlapp-kill").code == 2
        denied = run("dlapp-kill", "nobody-else", "last")
        assert denied.code == 3  # that user has none
        application = status("last")["application_id"]
        denied = run("dlapp-kill", "somebody", application)
        assert (denied.code, denied.err) == (4, f"Error: {application} is {me}'s, not somebody's\n")
        assert status("last")["state"] == "RUNNING"
        killed = run("dlapp-kill", me, "last")
        assert killed.code == 0
        assert application in killed.out
        launcher.stderr.read()
    assert launcher.returncode == 7
    assert status("last")["state"] == "KILLED"
    wait_for("no process is left", lambda: not engine.processes(application))
    assert run("dlapp-kill", "last").code == 0  # once more changes nothing


@pytest.mark.slow
@on_yarn_when_full
def test_a_list_is_selected_by_state_name_time_and_number(engine: Engine, tmp_path: Path) -> None:
    files = [properties(tmp_path, script, name=name) for name, script in (("Alpha", "exit 3"), ("beta", "true"))]
    failed, done, last = (launch(files[0]), launch(files[1]), launch(files[0]))
    for application in (failed, done, last):
        ended(application)

    def ids(*args: str) -> list[str]:
        listed = run("dlapp-list", *args)
        assert listed.code == 0, listed.err
        rows = [line.split() for line in listed.out.splitlines()[1:]]
        as_json = json.loads(run("dlapp-list", "--json", *args).out)["applications"]
        assert [row[0] for row in rows] == [view["application_id"] for view in as_json]
        return [row[0] for row in rows if row[0] in (failed, done, last)]

    assert ids() == [failed, done, last]
    assert ids("--state", "failed", "--since", "1h") == [failed, last]
    assert ids("--state", "failed", "-n", "1") == [last]
    assert ids("--state", "failed", "--state", "succeeded", "-n", "2") == [done, last]
    assert ids("--state", "finished", "--name", "ALPH") == [failed, last]
    assert ids("--state", "waiting") == []
    assert ids("-n", "1") == [last]
    assert ids("-n", "0") == []
    assert ids("--since", "2023-11-14") == [failed, done, last]
    assert ids("--since", "2100-01-01") == ids("--until", "2023-11-14") == ids("--until", "1h") == []
    assert ids("--since", "1h", "--until", "2100-01-01") == [failed, done, last]
    assert ids("--user", caller(), "--queue", "default") == [failed, done, last]
    assert ids("--queue", "another") == ids("--project", "none") == ids("--tag", "none") == []
    assert ids("--sort", "-name", "--sort", "name") == [failed, last, done]
    whole = [line for line in run("dlapp-list", "-o", "id").out.splitlines() if line in (failed, done, last)]
    assert whole == [failed, done, last]
    named = run("dlapp-list", "-o", "name=exit,name,id", "--state", "failed", "-n", "1").out.splitlines()
    assert [line.split() for line in named] == [["EXIT", "NAME", "ID"], ["3", "Alpha", last]]
    assert json.loads(run("dlapp-list", "-o", "json", "-n", "1").out)["applications"][0]["application_id"] == last
    for option, value in ("-o", "yaml"), ("-o", "name=colour"), ("--sort", "colour"):
        refused = run("dlapp-list", option, value)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    output = run("dlapp-why", failed).out.splitlines()
    assert output[0].startswith(f"{failed} failed after ")
    assert output[1].startswith("waited : 0:0")
    assert output[1].endswith(" in the queue, until it was started")
    for wrong in ("soon", "2023-13-01", "5 parsecs", ""):
        option = "--until" if wrong == "soon" else "--since"
        refused = run("dlapp-list", option, wrong)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert refused.err.startswith(f"Error: {option}: ")
        assert "neither a time before now nor a date" in refused.err


@pytest.mark.slow
def test_a_list_that_is_longer_than_the_terminal_is_paged(tmp_path: Path) -> None:
    ended(launch(properties(tmp_path, "true")))
    command = f"export PAGER='sed s/^/paged:/'; stty rows 2 cols 80; {BIN}/dlapp-list; stty rows 9; {BIN}/dlapp-list"
    with Terminal("/bin/sh", "-c", command) as terminal:
        assert terminal.wait() == 0
        lines = [line for line in terminal.text.splitlines() if line]
    assert [line.startswith("paged:") for line in lines] == [True, True, False, False]


def test_a_plan_shows_the_effects_without_submitting(tmp_path: Path) -> None:
    file = properties(tmp_path, "true", application={"max_runtime": "2h"}, resources={"memory": 64, "containers": 2})
    plan = run("dlapp-launcher", "--plan", file)
    assert plan.code == 0, plan.err
    assert "role : worker: 2 containers, each with memory 64 MiB, vcores 1, gcores 0" in plan.out.splitlines()
    assert "now : it would start now (starting)" in plan.out.splitlines()
    as_json = json.loads(run("dlapp-launcher", "--plan", "--json", file).out)
    assert as_json["workspace"]["largest"][0]["name"] == "start.sh"
    assert as_json["asked"] == {"memory": 128, "vcores": 2, "gcores": 0}
    assert (as_json["gpu_hours_most"], as_json["waiting"]["code"]) == (0.0, "starting")
    assert {limit["limit"] for limit in as_json["limits"]} == {"this machine"}
    large = run("dlapp-launcher", "--plan", "--set", "resources.memory=1000000g", file)
    assert (large.code, large.out) == (2, "")
    assert "resources.memory: " in large.err
    assert run("dlapp-launcher", "--plan", "--wait", file).code == 2
    assert run("dlapp-list").out.splitlines()[1:] == []


@pytest.mark.parametrize("columns", [60, 80])
def test_a_list_fits_the_terminal_and_its_short_ids_are_understood(tmp_path: Path, columns: int) -> None:
    name = "a name that is much too long for one line of a list"
    application = launch(properties(tmp_path, "exit 3", name="test", application={"appname": name}))
    ended(application)
    command = f"stty cols {columns}; {BIN}/dlapp-list; {BIN}/dlapp-list -a; {BIN}/dlapp-list -n 0"
    with Terminal("/bin/sh", "-c", command) as terminal:
        assert terminal.wait() == 0
        lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines] == ["ID", "0001", "ID", "0001", "ID", "earlier"]
    elapsed = ["ELAPSED"] if columns == 80 else []
    assert lines[0].split() == ["ID", "NAME", "STATE", "PHASE", "STARTED", "AGE", *elapsed, "EXIT"]
    assert "…" in lines[1]
    assert lines[1].split()[-1] == "3"
    assert lines[-1] == "earlier ones are not shown (-n 20 shows more)"
    assert run("dlapp-status", lines[1].split()[0]).out.startswith(f"DL App {application} is ")


@on_yarn_when_full
def test_several_are_killed_by_one_command_and_an_error_of_one_spares_no_other(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "4")
    first, second = (launch(properties(tmp_path, "sleep 600", name=name)) for name in ("one", "two"))
    # No number that a test's own cluster has reached.
    refused = run("dlapp-kill", first, "987654321")
    assert (refused.code, refused.out) == (3, "")
    assert not {"KILLED"} & {status(item)["state"] for item in (first, second)}
    killed = run("dlapp-kill", "--json", first, second, first)
    assert killed.code == 0, killed.err
    content = json.loads(killed.out)["applications"]
    assert [(view["application_id"], view["error"]) for view in content] == [(first, ""), (second, "")]
    assert [status(item)["state"] for item in (first, second)] == ["KILLED", "KILLED"]
    again = run("dlapp-softkill", first, second)
    assert again.code == 0, again.err
    assert [line.split()[0] for line in again.out.splitlines()] == [first, second]


@pytest.mark.slow
def test_only_ended_applications_are_removed_from_the_history(state_dir: Path, tmp_path: Path) -> None:
    output = {"output_path": "out", "hdfs": str(tmp_path / "kept")}
    file = properties(tmp_path, "mkdir out; echo x > out/x", name="ended", to_hdfs=output)
    assert run("dlapp-launcher", "--wait", file).code == 0
    ended_one = status("last")["application_id"]
    running = launch(properties(tmp_path, "sleep 600", name="running"))
    refused = run("dlapp-rm", ended_one, running)
    assert (refused.code, refused.out) == (2, "")
    assert f"{running} is " in refused.err
    assert status(ended_one)["state"] == "FINISHED"
    assert run("dlapp-rm").code == 2
    removed = run("dlapp-rm", ended_one)
    assert (removed.code, removed.out) == (0, f"{ended_one} was removed from the history\n")
    assert run("dlapp-status", ended_one).code == 3
    assert [line.split()[0] for line in run("dlapp-list").out.splitlines()[1:]] == [running]
    assert [path.name for path in state_dir.glob("*/applications/*")] == [running]
    assert (tmp_path / "kept" / "x").read_text() == "x\n"
    assert run("dlapp-kill", running).code == 0
    assert json.loads(run("dlapp-rm", "--json", "last").out) == {
        "removed": [running],
        "kept": {"partial": [], "unstored": []},
    }


@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
def test_an_unfinished_application_of_a_cluster_is_not_removed(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    application = launch(properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done"))
    refused = run("dlapp-rm", application)
    assert refused.code == 2
    assert "only what has ended can be removed" in refused.err
    go.touch()
    ended(application)


@pytest.mark.slow
@on_yarn_when_full
def test_a_soft_kill_lets_the_program_end_by_itself(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, 'trap "echo saved; exit 0" TERM; echo up; while :; do sleep 0.05; done')
    launch(file)
    wait_for("it is up", lambda: run("dlapp-logs").out == "[0] up\n")
    wait_for("it runs", lambda: status("last")["phase"] == "running 1 of 1")
    assert run("dlapp-softkill", "--json", "last").code == 0
    assert run("dlapp-logs", "-f", "last").code == 7
    shown = status("last")
    assert (shown["state"], shown["final_status"], shown["cause"]) == ("FINISHED", "KILLED", "soft-killed")
    assert listed(shown["application_id"]).split()[6] == ("0" if engine.name == "local" else "-")
    assert run("dlapp-logs", "--stdout").out == "[0] up\n[0] saved\n"


def test_following_ends_when_the_last_application_master_is_killed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DLAPP_YARN_AM_ATTEMPTS", "DLAPP_LOCAL_AM_ATTEMPTS"):
        monkeypatch.setenv(name, "1")
    application = launch(properties(tmp_path, "echo up; sleep 600"))
    command: list[str | Path] = [BIN / "dlapp-logs", "-f", "last"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"[0] up\n"
        os.kill(engine.master(application), signal.SIGKILL)
        assert follower.stdout.read() == b""
        assert follower.stderr is not None
        follower.stderr.read()
    assert follower.returncode == 1


@on_yarn_when_full
def test_an_application_is_found_by_its_ending(engine: Engine, tmp_path: Path) -> None:
    application = launch(properties(tmp_path, "true"))
    for ending in ("last", application[-11:], application[-12:]):
        assert run("dlapp-status", ending).out.startswith(f"DL App {application} is ")
    ended(application)
