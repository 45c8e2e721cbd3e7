"""Plain payloads, real ones, in both of the guardian's ways: in a pid namespace, and as a subreaper."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from dlapp.runtime.process import Guardian
from tests.runtime.driver import Driven, children, own_pid, wait_until
from tests.services.users import interpreter_for_everybody

FAMILY = """
echo $$
sleep MARKER &
(sleep MARKER & setsid sh -c 'sleep MARKER & exec sleep MARKER' </dev/null >/dev/null 2>&1 &)
(env -i setsid setsid "$(command -v sleep)" MARKER &)
echo ready
exec sleep MARKER
"""
"""A payload with children of every kind: of its group, orphaned, in own sessions, with an empty environment."""

ODD_ARGUMENTS = [
    "one space",
    "two  spaces",
    "a\ttab",
    "a\nnewline",
    "trailing newline\n",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "$(id)",
    "*",
    "~",
    "\\",
    "!",
    "",
    "-n",
    "--",
    "한글 인자",
    "".join(chr(code) for code in range(32, 127)),
]


STANDARD = ["life", "null", "stderr", "stdout"]


def test_a_command_runs_in_the_workspace_with_its_words_as_they_are(runner: Driven) -> None:
    runner.run(None, "$HOME", command=["printf", "<%s>", "a  b"])
    assert runner.end()["code"] == 0
    assert runner.out() == b"<a  b><$HOME>"


def test_arguments_arrive_byte_for_byte(runner: Driven) -> None:
    runner.run('for one in "$@"; do printf "%s\\0" "$one"; done', *ODD_ARGUMENTS)
    assert runner.end()["code"] == 0
    assert runner.out() == b"".join(argument.encode() + b"\0" for argument in ODD_ARGUMENTS)


def test_standard_input_is_empty(plain: Driven) -> None:
    plain.run("cat; echo done")
    assert plain.end()["code"] == 0
    assert plain.out() == b"done\n"


def test_the_working_directory_is_the_workspace(plain: Driven) -> None:
    plain.run("pwd; ls")
    plain.end()
    assert plain.out().decode().split() == [str(plain.home / "workspace"), "run.sh"]


def test_the_environment_is_the_given_one_and_few_additions(plain: Driven) -> None:
    given = {"PATH": os.environ["PATH"], "ODD": "a  b\n'\"$X", "_dlapp": "mine", "EMPTY": ""}
    plain.run("#!/usr/bin/env -S cat /proc/self/environ\n", mode=0o755, env=given)
    plain.end()
    found = dict(pair.split("=", 1) for pair in plain.out().decode().split("\0") if pair and "=" in pair)
    # What shells add of themselves is known.
    assert {name: value for name, value in found.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")} == given


def test_variables_of_the_start_are_added(plain: Driven) -> None:
    late = {"ODD": "a  b\n'\"$X", "A": "late"}
    plain.run(
        'printf "%s|%s|%s" "$ODD" "$A" "$B"', env={"PATH": os.environ["PATH"], "A": "1", "B": "2"}, start_env=late
    )
    plain.end()
    assert plain.out().decode() == f"{late['ODD']}|late|2"


def test_arguments_of_the_start_replace_their_placeholders(plain: Driven) -> None:
    args = ("{master}", "-x={hosts:ps}", "${master}", "a  b'", "{index}")
    plain.run('printf "%s|" "$@"', *args, peer_values={"master": "it's 1", "hosts:ps": "a:1,b:2"})
    plain.end()
    assert plain.out().decode() == "it's 1|-x=a:1,b:2|${master}|a  b'|{index}|"


def test_defaults_are_replaced_by_the_variables_of_the_payload(plain: Driven) -> None:
    plain.run('printf "%s|%s" "$A" "$B"', env={"PATH": os.environ["PATH"], "A": "1"}, defaults={"A": "0", "B": "0"})
    plain.end()
    assert plain.out().decode() == "1|0"


@pytest.mark.parametrize("code", [0, 3, 137, 255])
def test_an_exit_code_is_reported_unchanged(plain: Driven, code: int) -> None:
    plain.run(f"exit {code}")
    end = plain.end()
    assert (end["code"], end["signal"]) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_distinguished_from_an_exit_code(runner: Driven, number: signal.Signals) -> None:
    runner.run(f"kill -{int(number)} $$")
    end = runner.end()
    assert (end["code"], end["signal"]) == (None, number)


def test_no_signal_is_ignored_from_the_start(runner: Driven) -> None:
    runner.run("#!/usr/bin/env -S cat /proc/self/status\n", mode=0o755)
    runner.end()
    masks = [line.split()[1] for line in runner.out().splitlines() if line.startswith((b"SigIgn:", b"SigBlk:"))]
    # Signals 32 and 33 belong to glibc: its posix_spawn may leave them ignored, and no program can set them.
    assert [int(mask, 16) & ~(0b11 << 31) for mask in masks] == [0, 0]


def test_only_standard_files_the_lifeline_and_kept_descriptors_are_inherited(runner: Driven) -> None:
    read, write = os.pipe()
    extra = os.dup(read)
    runner.run(
        "#!/usr/bin/env -S ls -l /proc/self/fd\n", mode=0o755, pass_fds=(write, extra), keep_fds=[write]
    )  # fmt: skip
    runner.end()
    for fd in (read, write, extra):
        os.close(fd)
    targets = [line.split(" -> ")[1] for line in runner.out().decode().splitlines() if " -> " in line]
    pipes = [target for target in targets if target.startswith("pipe:")]
    others = sorted(os.path.basename(target) for target in targets if not target.startswith("pipe:"))
    assert len(pipes) == 1, targets
    # The last is the directory that ls looks at.
    assert [other for other in others if not other.isdigit()] in (["fd", *STANDARD], STANDARD)


@pytest.mark.slow
def test_a_hundred_megabytes_of_output_arrive_unchanged(plain: Driven) -> None:
    size = 100_000_000
    plain.run(f"head -c {size} /dev/zero | tr '\\0' 'x'; printf end")
    assert plain.end()["code"] == 0
    with open(plain.home / "stdout", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    expected = hashlib.sha256(b"x" * size + b"end")
    assert digest == expected.hexdigest()


def test_output_can_be_read_before_the_payload_ends(plain: Driven) -> None:
    plain.run("printf 'no newline'; sleep MARKER")
    plain.wait_for_out(b"no newline")
    plain.order("kill")
    assert plain.end()["signal"] == signal.SIGKILL


# ---- how it starts ----


def test_a_script_without_x_bit_is_run_by_bash(plain: Driven) -> None:
    plain.run("#!/bin/false\necho $BASH_VERSION; echo $0")
    assert plain.end()["code"] == 0
    assert plain.out().split()[0][:1].isdigit()
    assert plain.out().split()[1] == b"./run.sh"


def test_a_script_without_shebang_is_run_by_bash(plain: Driven) -> None:
    plain.run("[[ -n $BASH_VERSION ]] && echo bash", mode=0o755)
    plain.end()
    assert plain.out() == b"bash\n"


def test_without_bash_it_is_run_by_sh(plain: Driven, place: Path) -> None:
    only = place / "bin"
    only.mkdir()
    (only / "sh").symlink_to("/bin/sh")
    plain.run("echo by ${BASH_VERSION:-sh}", env={"PATH": str(only)})
    plain.end()
    assert plain.out() == b"by sh\n" or os.path.realpath("/bin/sh").endswith("bash")


def test_a_shebang_with_an_argument_is_obeyed(plain: Driven) -> None:
    plain.run("#!/bin/cat -n\ntext\n", mode=0o755)
    plain.end()
    assert b"2\ttext" in plain.out()


def test_a_missing_interpreter_is_the_users_fault_with_its_name(plain: Driven) -> None:
    plain.run("#!/opt/none/python\n", mode=0o755)
    refused = plain.hear("refused")
    assert refused["fault"] == "user"
    assert refused["problem"] == "run.sh: its interpreter /opt/none/python is not there"


def test_windows_line_ends_in_the_shebang_are_explained(plain: Driven) -> None:
    plain.run("#!/bin/bash\r\necho hi\r\n", mode=0o755)
    refused = plain.hear("refused")
    assert "carriage return" in refused["problem"]
    assert "sed -i" in refused["problem"]


def test_a_missing_script_is_the_users_fault(plain: Driven) -> None:
    plain.run(None)
    assert plain.hear("refused")["problem"] == "run.sh: there is no such script in the workspace"


def test_two_payloads_of_a_host_do_not_have_the_same_pids(runner: Driven) -> None:
    runner.run("echo $$")  # in a namespace of its own it would be 2, as in every other
    assert runner.end()["code"] == 0
    assert runner.process is not None
    assert int(runner.out()) > runner.process.pid


# ---- how it ends ----


def test_children_that_are_left_when_the_script_ends_are_killed(runner: Driven) -> None:
    runner.run(FAMILY.replace("exec sleep MARKER", "exit 4"))
    assert runner.end()["code"] == 4
    assert runner.payload_pids() == []


LOGGERS = {
    "a filter of the whole script": 'exec > >(while read -r line; do sleep 0.1; echo "[ts] $line"; done) 2>&1',
    "a chain of two": "exec > >(while read -r line; do sleep 0.1; echo \"$line\"; done | sed -u 's/^/[ts] /') 2>&1",
    "of stderr too": 'exec 2> >(while read -r l; do sleep 0.1; echo "[ts] $l"; done >&2)\nexec >&2',
    "with a copy in a file": 'exec > >(while read -r l; do sleep 0.1; echo "[ts] $l"; done | tee copy) 2>&1',
    "on a named pipe": 'mkfifo p; (while read -r l; do sleep 0.1; echo "[ts] $l"; done <p) & exec >p 2>&1',
    "in its own session": "exec > >(setsid sh -c 'while read -r l; do sleep 0.1; echo \"[ts] $l\"; done') 2>&1",
}


FOREVER_S = 3600.0
SLEEPS = "until grep -q sleep /proc/$!/comm; do sleep 0.02; done"
"""Words of a script that wait until its last process in the background is what it was started as."""


@pytest.mark.parametrize("logger", LOGGERS.values(), ids=LOGGERS)
def test_output_through_a_scripts_own_pipe_is_in_its_log(runner: Driven, logger: str) -> None:
    runner.moment_s = FOREVER_S
    runner.run(f"{logger}\necho epoch 1\necho RuntimeError: CUDA out of memory\nexit 1")
    end = runner.end()
    assert (end["code"], end["left"]) == (1, "")
    assert (runner.out() + runner.err()).decode() == "[ts] epoch 1\n[ts] RuntimeError: CUDA out of memory\n"


def test_output_through_a_scripts_own_pipe_reaches_the_readers_file(plain: Driven) -> None:
    plain.moment_s = FOREVER_S
    plain.run("exec > >(while read -r l; do sleep 0.1; echo $l; done >copy 2>/dev/null) 2>&1\necho one\necho two")
    assert plain.end()["left"] == ""
    assert (plain.home / "workspace" / "copy").read_text() == "one\ntwo\n"


def test_a_helper_that_uploads_with_the_output_of_its_program_ends_by_itself(plain: Driven) -> None:
    plain.moment_s = FOREVER_S
    plain.run("(setsid sh -c 'sleep 0.2; echo uploaded >file' &)")
    assert (plain.end()["left"], (plain.home / "workspace" / "file").read_text()) == ("", "uploaded\n")


def test_processes_that_are_killed_at_the_scripts_end_are_named(runner: Driven) -> None:
    runner.moment_s = 0.1
    runner.run(f"sleep MARKER & {SLEEPS}; setsid sleep MARKER </dev/null >file 2>&1 & {SLEEPS}; exit 4")
    end = runner.end()
    assert (end["code"], end["left"]) == (4, "2 processes, sleep")
    assert runner.payload_pids() == []


def test_a_process_without_descriptors_of_the_script_is_killed_at_once(runner: Driven) -> None:
    runner.moment_s = FOREVER_S
    runner.run(f"setsid sleep MARKER </dev/null >file 2>&1 & {SLEEPS}")
    assert runner.end()["left"] == "1 process, sleep"


def test_an_order_to_kill_ends_the_moment_after_the_script(runner: Driven) -> None:
    runner.moment_s = FOREVER_S
    runner.run("sleep MARKER & echo ready", runner.marker)
    runner.wait_for_out(b"ready")
    wait_until(lambda: len(runner.payload_pids()) == 1, "the script has ended")
    runner.order("kill")
    end = runner.end()
    assert (end["code"], end["left"]) == (0, "")
    assert runner.payload_pids() == []


def test_an_order_to_kill_ends_all_of_it_at_once(runner: Driven) -> None:
    runner.run("trap '' TERM\n" + FAMILY)
    runner.wait_for_out(b"ready")
    wait_until(lambda: len(runner.payload_pids()) >= 5, "the whole family runs")
    runner.order("kill")
    assert runner.end()["signal"] == signal.SIGKILL
    assert runner.payload_pids() == []


def test_a_soft_stop_reaches_the_script_and_its_code_is_reported(runner: Driven) -> None:
    runner.run("trap 'echo saving; exit 9' TERM\necho ready\nwhile :; do sleep 0.02; done")
    runner.wait_for_out(b"ready")
    runner.order("soft")
    assert runner.end()["code"] == 9
    assert runner.out() == b"ready\nsaving\n"


SAVES = """
trap 'sleep 0.2; echo saved; exit 0' TERM
p=$PPID
while [ "$p" -gt 1 ]; do
    until grep -q ') S' "/proc/$p/stat"; do :; done
    p=$(sed 's/.*) . \\([0-9]*\\) .*/\\1/' "/proc/$p/stat")
done
echo ready
while :; do sleep 0.02; done
"""
"""A program that saves on SIGTERM. It is ready when the shells above it wait: bash catches SIGTERM while it forks."""
SHELLS_OF_IT = {
    "a shell": "sh saves\necho ended with $?",
    "shells in shells": "(bash -c 'sh saves; exit $?'; exit $?)\necho ended with $?",
    "with a log of its own": "sh saves | tee copy\necho ended with ${PIPESTATUS[0]}",
    "with its output in a filter": 'exec > >(while read -r l; do echo "$l"; done)\nsh saves\necho ended with $?',
    "in the background": "sh saves &\nwait $!\necho ended with $?",
}


@pytest.mark.parametrize("script", SHELLS_OF_IT.values(), ids=SHELLS_OF_IT)
def test_after_a_soft_stop_the_script_continues_once_its_program_has_saved(runner: Driven, script: str) -> None:
    (runner.home / "workspace").mkdir()
    (runner.home / "workspace" / "saves").write_text(SAVES)
    runner.run(script)
    runner.wait_for_out(b"ready")
    runner.order("soft")
    assert runner.end()["code"] == 0
    assert runner.out() == b"ready\nsaved\nended with 0\n"


def test_a_soft_stop_ends_a_script_that_starts_further_programs(runner: Driven) -> None:
    runner.run("echo ready\nwhile :; do sleep 0.02; done")
    runner.wait_for_out(b"ready")
    runner.order("soft")
    assert runner.end()["signal"] == signal.SIGTERM


def test_a_soft_stop_that_ends_a_scripts_program_is_reported_as_a_signal(runner: Driven) -> None:
    runner.run("echo ready\nsleep MARKER")
    runner.wait_for_out(b"ready")
    wait_until(lambda: runner.payload_pids() != [], "the program runs")
    runner.order("soft")
    assert runner.end()["signal"] == signal.SIGTERM


def test_a_script_that_traps_a_soft_stop_gets_it_while_its_program_runs(runner: Driven) -> None:
    child = 'trap "" TERM; echo ready; while [ ! -e finish ]; do sleep 0.02; done; echo child done'
    runner.run(f"trap 'touch finish' TERM\nsh -c '{child}' &\nwait $!; wait $!; exit 5")
    runner.wait_for_out(b"ready")
    runner.order("soft")
    assert runner.end()["code"] == 5
    assert runner.out() == b"ready\nchild done\n"


def test_a_soft_stop_reaches_children_in_sessions_of_their_own(runner: Driven) -> None:
    child = 'trap "echo child saved; exit" TERM; echo child ready; while :; do sleep 0.02; done'
    runner.run(f"trap 'exit 5' TERM\nsetsid sh -c '{child}' &\nwhile :; do sleep 0.02; done")
    runner.wait_for_out(b"child ready")
    runner.order("soft")
    assert runner.end()["code"] == 5
    assert runner.out().endswith(b"child saved\n")


def test_after_a_soft_stop_children_have_the_grace_time_too(runner: Driven) -> None:
    child = 'trap "" TERM; echo ready; while [ ! -e finish ]; do sleep 0.02; done; echo child done'
    runner.run(f"trap 'exit 5' TERM\nsh -c '{child}' &\nwhile :; do sleep 0.02; done")
    runner.wait_for_out(b"ready")
    runner.order("soft")
    (runner.home / "workspace" / "finish").touch()
    assert runner.end()["code"] == 5
    assert runner.out().endswith(b"child done\n")


def test_a_payload_that_ignores_a_soft_stop_is_killed_by_the_next_order(runner: Driven) -> None:
    runner.run("trap '' TERM\necho ready\nwhile :; do sleep MARKER; done")
    runner.wait_for_out(b"ready")
    runner.order("soft")
    runner.order("kill")
    assert runner.end()["signal"] == signal.SIGKILL
    assert runner.payload_pids() == []


def test_a_payload_may_signal_its_own_group(runner: Driven) -> None:
    runner.run("trap 'kill 0' EXIT\nsleep MARKER &\nexit 0")
    assert runner.end()["signal"] == signal.SIGTERM
    assert runner.payload_pids() == []


def test_a_fork_bomb_of_sleepers_is_killed_to_the_last(runner: Driven) -> None:
    runner.run("n=0; while [ $n -lt 200 ]; do (sleep MARKER &) ; n=$((n+1)); done; echo ready; sleep MARKER")
    runner.wait_for_out(b"ready")
    runner.order("kill")
    runner.end()
    assert runner.payload_pids() == []


def test_orphans_that_end_do_not_stay_as_zombies(runner: Driven) -> None:
    runner.run("n=0; while [ $n -lt 20 ]; do (true &) ; n=$((n+1)); done; echo ready; sleep MARKER")
    runner.wait_for_out(b"ready")
    _, inner = runner.guardian_pids()
    wait_until(lambda: len(children(inner)) == 1, "only the payload is left")
    listed = Path(f"/proc/{inner}/task/{inner}/children")  # with those that have ended and nobody asked for
    wait_until(lambda: len(listed.read_text().split()) == 1, "none is left that has ended")


# ---- who dies ----

VICTIMS = {
    "the task": ("task",),
    "the inner guardian": ("inner",),
    "the payload": ("payload",),
    "task and outer guardian": ("task", "outer"),
    "task and inner guardian": ("task", "inner"),
    "both guardians": ("outer", "inner"),
    "task and payload": ("task", "payload"),
}


def kill_all(runner: Driven, victims: tuple[str, ...]) -> None:
    runner.run(FAMILY)
    runner.wait_for_out(b"ready")
    wait_until(lambda: len(runner.payload_pids()) >= 5, "the whole family runs")
    assert runner.process is not None
    outer, inner = runner.guardian_pids()
    # Its orphans are children of the inner guardian, too, and their pids are not always higher: pids wrap around.
    output = int(runner.out().split()[0])
    (payload,) = [pid for pid in children(inner) if own_pid(pid) == output]
    by_name = {"task": runner.process.pid, "outer": outer, "inner": inner, "payload": payload}
    for name in victims:
        os.kill(by_name[name], signal.SIGSTOP)  # so that they die together
    for name in victims:
        with contextlib.suppress(ProcessLookupError):  # the death of one before it took it along
            os.kill(by_name[name], signal.SIGKILL)
    wait_until(lambda: runner.payload_pids() == [], "nothing of the payload is left")
    wait_until(lambda: not {outer, inner} & {pid for pid in (outer, inner) if is_alive(pid)}, "no guardian is left")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS.keys())
def test_no_process_of_the_payload_outlives_a_sigkill(runner: Driven, victims: tuple[str, ...]) -> None:
    kill_all(runner, victims)
    if "task" not in victims:
        end = runner.end()
        if "payload" in victims:
            assert end["signal"] == signal.SIGKILL
        else:
            assert end["fault"] == "node"
            assert "guardian was killed" in end["problem"]


def test_without_its_outer_half_the_guardian_still_does_its_work(place: Path) -> None:
    driven = Driven(place, as_user=True)
    try:
        driven.run(FAMILY)
        driven.wait_for_out(b"ready")
        outer, _ = driven.guardian_pids()
        os.kill(outer, signal.SIGKILL)
        assert driven.process is not None
        driven.process.kill()
        wait_until(lambda: driven.payload_pids() == [], "nothing of the payload is left")
    finally:
        driven.close()


@pytest.mark.root("to make a pid namespace")
def test_in_a_namespace_no_process_outlives_a_sigkill_of_all_at_once(place: Path) -> None:
    driven = Driven(place, as_user=False)
    try:
        kill_all(driven, ("task", "outer", "inner", "payload"))
    finally:
        driven.close()


def test_an_order_obeyed_before_the_task_continued_was_sent() -> None:
    class Slow(socket.socket):
        """Socket of a task that is put aside when it has sent its message; all that follows happens meanwhile."""

        def sendmsg(self, *arguments: Any) -> int:
            sent = super().sendmsg(*arguments)
            theirs.sendall(theirs.recv(65536) and b'{"ended": 0}\n')
            theirs.close()
            return sent

    ours, theirs = socket.socketpair()
    with Slow(fileno=ours.detach()) as channel:
        guardian = Guardian(0, channel)
        guardian.order("start", (0,), argv=["true"])
        assert guardian.receive() == {"ended": 0}


@pytest.mark.slow
def test_a_guardian_that_was_stopped_still_ends_its_payload(runner: Driven) -> None:
    runner.run(FAMILY)
    runner.wait_for_out(b"ready")
    _, inner = runner.guardian_pids()
    os.kill(inner, signal.SIGSTOP)
    runner.order("kill")
    assert runner.end()["fault"] == "node"
    assert runner.payload_pids() == []


# ---- what a payload uses ----

BURN = """
import os
def burn(seconds):
    while sum(os.times()[:2]) < seconds: pass
for seconds in (0.3, 0.2, 0.1):
    if os.fork() == 0:
        burn(seconds)
        os._exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        burn(0.3)
        said = str(sum(os.times()[:2]))
        with open("orphan", "w") as file: file.write(said)
        os._exit(0)
    os._exit(0)
burn(0.3)
for _ in range(4): os.wait()
"""
"""A payload whose time is that of a process, its children, and one that it loses."""


def timed(script: str, command: str) -> str:
    """A script that has /usr/bin/time count what a command uses, into the file ``counted``."""
    return f"cat >burn.py <<'END'\n{script}\nEND\n/usr/bin/time -f '%U %S' -o counted {command}\n"


def test_the_time_of_all_processes_is_exact_at_the_end(runner: Driven) -> None:
    script = timed(BURN, f"{interpreter_for_everybody()} -I burn.py")
    (runner.home / "workspace").mkdir()
    os.mkfifo(runner.home / "workspace/orphan")
    runner.run(script + "read said <orphan; echo $said\n")  # a loop that looks for it would take as long as it waits
    used = runner.end()["used"]
    counted = sum(map(float, (runner.home / "workspace/counted").read_text().split()))
    orphan = float(runner.out())
    # What is left is the shell.
    assert 0.98 * (counted + orphan) <= used["cpu_s"] <= 1.02 * (counted + orphan) + 0.1


def test_usage_of_a_payload_is_known_while_it_runs(runner: Driven) -> None:
    hold = "import time; held = bytearray(64 << 20); print('held', flush=True); time.sleep(1000)"
    runner.run(None, command=[str(interpreter_for_everybody()), "-I", "-c", hold])
    runner.wait_for_out(b"held")
    runner.order("count")
    counted = runner.hear("counted")
    assert 64 << 20 < counted["memory_bytes"] < 100 << 20
    assert 0.0 < counted["cpu_s"] < 5.0
    assert counted["peak_bytes"] is None
    assert counted["received_bytes"] is None, "it shares the network of the host"
    runner.order("kill")
    assert runner.end()["used"]["memory_bytes"] == counted["memory_bytes"]


def test_the_bytes_that_a_payload_writes_to_the_disk_are_counted(runner: Driven) -> None:
    write = "import os; file = open('data', 'wb'); file.write(bytes(3 << 20)); file.flush(); os.fsync(file.fileno())"
    runner.run(None, command=[str(interpreter_for_everybody()), "-I", "-c", write])
    written = runner.end()["used"]["written_bytes"]
    on_disk = os.stat(runner.home).st_dev == os.stat("/").st_dev
    assert 3 << 20 <= written < 4 << 20 if on_disk else written >= 0
