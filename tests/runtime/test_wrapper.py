"""The wrapper by itself, run by each shell that it may meet."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from dlapp.runtime.lifeline import EndNotice, Lifeline
from dlapp.runtime.payload import WRAPPER
from tests.runtime.driver import wait_until

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A shell's command."""
    command = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    return command


class Wrapped:
    """A payload under the wrapper, with no guardian and no container around it."""

    def __init__(self, directory: Path, script: str) -> None:
        self.directory = directory
        (directory / "run.sh").write_text(script)
        self.line = Lifeline(str(directory / "life"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        mode: str,
        shell: list[str],
        *args: str,
        how: str = "shell",
        program: str = "run.sh",
        around: str = "",
    ) -> None:
        files = [str(self.directory / name) for name in ("life", "stdout", "stderr", "exit")]
        command = [*shell, WRAPPER, mode, *files, how, program, *args]
        if around:
            command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", around, *command]
        self.process = subprocess.Popen(command, cwd=self.directory, stdin=subprocess.DEVNULL)

    def start_in_namespace(self, shell: list[str]) -> None:
        """Run it as in a container: process 1 is the wrapper's parent, and what is left dies with it."""
        if os.geteuid() != 0:
            pytest.skip("a pid namespace needs root")
        self.start("wait", shell, around='"$0" "$@"; exit $?')

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=120)

    def text(self, name: str) -> str:
        path = self.directory / name
        return path.read_text() if path.exists() else ""


def test_the_wrapper_becomes_the_payload(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, 'echo $$ "$1" "$2"; echo err >&2; kill -9 $$')
    wrapped.start("exec", shell, "a  b", "")
    assert wrapped.wait() == -signal.SIGKILL
    assert wrapped.process is not None
    assert wrapped.text("stdout") == f"{wrapped.process.pid} a  b \n"
    assert wrapped.text("stderr") == "err\n"
    wrapped.line.close()


@pytest.mark.parametrize("mode", ["exec", "wait"])
def test_without_a_task_no_payload_is_started(tmp_path: Path, shell: list[str], mode: str) -> None:
    wrapped = Wrapped(tmp_path, "echo ran")
    wrapped.line.close()
    wrapped.start(mode, shell)
    # It waits for a writer; one that comes to look has no word for it.
    with open(tmp_path / "life", "wb"):
        pass
    assert wrapped.wait() == 125
    assert wrapped.text("stdout") == ""


def test_outside_a_namespace_of_its_own_it_refuses_to_signal_everybody(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, "echo ran")
    wrapped.start("wait", shell)
    assert wrapped.wait() == 125
    assert wrapped.text("stdout") == ""
    wrapped.line.close()


def test_the_wrapper_records_the_exit_code(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, "echo out; exit 3")
    wrapped.start_in_namespace(shell)
    assert wrapped.wait() == 3
    assert (wrapped.text("exit"), wrapped.text("stdout")) == ("exited 3\n", "out\n")
    assert wrapped.line.is_held_by_payload
    assert wrapped.line.is_payload_gone
    wrapped.line.close()


def test_a_command_is_looked_up_in_the_path_and_not_in_the_working_directory(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "printf").write_text("#!/bin/sh\necho the workspace's own\n")
    (tmp_path / "printf").chmod(0o755)
    wrapped = Wrapped(tmp_path, "")
    wrapped.start("exec", shell, "<%s>", "$HOME", "a  b", how="command", program="printf")
    assert (wrapped.wait(), wrapped.text("stdout")) == (0, "<$HOME><a  b>")
    wrapped.line.close()


def test_a_command_that_is_not_there_is_an_exit_code_of_127_with_its_name_in_stderr(
    tmp_path: Path, shell: list[str]
) -> None:
    wrapped = Wrapped(tmp_path, "")
    wrapped.start("exec", shell, how="command", program="there-is-none")
    assert wrapped.wait() == 127
    assert "there-is-none" in wrapped.text("stderr")
    wrapped.line.close()


def test_a_command_starts_in_its_directory_or_the_missing_one_is_written_down(tmp_path: Path, shell: list[str]) -> None:
    directory = tmp_path / "an odd $name"
    directory.mkdir()
    wrapped = Wrapped(tmp_path, "")
    wrapped.start("exec", shell, how=f"command:{directory}", program="pwd")
    assert (wrapped.wait(), wrapped.text("stdout")) == (0, f"{directory}\n")
    wrapped.line.close()
    wrapped = Wrapped(tmp_path, "")
    wrapped.start("exec", shell, how="command:/none", program="pwd")
    assert (wrapped.wait(), wrapped.text("exit"), wrapped.text("stderr")) == (127, "no workdir\n", "")
    wrapped.line.close()


def test_a_missing_interpreter_is_written_down(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, "")
    wrapped.start("exec", shell, how="/none/python")
    assert wrapped.wait() == 127
    assert wrapped.text("exit") == "no interpreter\n"
    wrapped.line.close()


def test_a_stop_message_is_sigterm_for_the_whole_payload(tmp_path: Path, shell: list[str]) -> None:
    child = 'trap "echo child; exit" TERM; echo ready; while :; do sleep 0.02; done'
    wrapped = Wrapped(tmp_path, f"trap 'exit 6' TERM; setsid sh -c '{child}' & while :; do sleep 0.02; done")
    wrapped.start_in_namespace(shell)
    wait_until(lambda: "ready" in wrapped.text("stdout"), "the child is ready")
    wrapped.line.send("term")
    assert wrapped.wait() == 6
    assert wrapped.text("stdout") == "ready\nchild\n"
    wrapped.line.close()


def test_a_script_gets_sigterm_only_after_its_program_which_saves(tmp_path: Path, shell: list[str]) -> None:
    # bash catches SIGTERM while it starts a program: this one waits until its shell waits for it.
    begin = 'trap "sleep 0.2; echo saved; exit 0" TERM; until grep -q ") S" /proc/$PPID/stat; do :; done'
    child = f"{begin}; echo ready; while :; do sleep 0.02; done"
    wrapped = Wrapped(tmp_path, f"sh -c '{child}' | tee copy; echo shell >>copy; exit 6")
    wrapped.start_in_namespace(shell)
    wait_until(lambda: "ready" in wrapped.text("stdout"), "the child is ready")
    wrapped.line.send("term")
    assert wrapped.wait() == 6
    assert (wrapped.text("stdout"), wrapped.text("copy")) == ("ready\nsaved\n", "ready\nsaved\nshell\n")
    wrapped.line.close()


def test_words_that_follow_are_sigterm_for_a_script_that_starts_further_programs(
    tmp_path: Path, shell: list[str]
) -> None:
    wrapped = Wrapped(tmp_path, "echo ready; while :; do sleep 0.02; done")
    wrapped.start_in_namespace(shell)
    wait_until(lambda: "ready" in wrapped.text("stdout"), "the script runs")

    def has_ended() -> bool:
        assert wrapped.process is not None
        wrapped.line.send("term")
        return wrapped.process.poll() is not None

    wait_until(has_ended, "the wrapper ends")
    assert wrapped.wait() == 128 + signal.SIGTERM
    wrapped.line.close()


@pytest.mark.parametrize("word", ["kill", ""])
def test_the_lifelines_end_is_sigkill_for_all_of_the_payload(tmp_path: Path, shell: list[str], word: str) -> None:
    wrapped = Wrapped(tmp_path, "trap '' TERM; (setsid sh -c 'exec sleep 1000' &); echo ready; exec sleep 1000")
    wrapped.start_in_namespace(shell)
    wait_until(lambda: "ready" in wrapped.text("stdout"), "the payload is ready")
    if word:
        wrapped.line.send(word)
    else:
        wrapped.line.close()
    assert wrapped.wait() == 128 + signal.SIGKILL
    assert wrapped.text("exit") == ""
    wrapped.line.close()


def test_a_payloads_sigint_is_not_ignored(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, "kill -INT $$; echo survived")
    wrapped.start_in_namespace(shell)
    assert wrapped.wait() == 128 + signal.SIGINT
    assert wrapped.text("stdout") == ""
    wrapped.line.close()


@pytest.mark.parametrize("word", ["done", "kill", ""])
def test_after_the_payloads_end_the_wrapper_waits_for_the_tasks_last_read(
    tmp_path: Path, shell: list[str], word: str
) -> None:
    wrapped = Wrapped(tmp_path, "sleep 1000 & exit 3")
    notice = EndNotice(str(tmp_path / "ending"), clock=iter(range(1_000_000)).__next__)
    wrapped.start_in_namespace(shell)
    wait_until(lambda: wrapped.text("exit") == "exited 3\n", "the payload has ended")
    wait_until(notice.poll, "the wrapper says so")
    assert wrapped.process is not None
    assert wrapped.process.poll() is None
    if word:
        wrapped.line.send(word)
    else:
        wrapped.line.close()
    assert wrapped.wait() == 3
    wait_until(lambda: not word or wrapped.line.is_payload_gone, "all of it is gone")
    wrapped.line.close()
    notice.close()


def test_output_through_a_scripts_own_pipe_is_in_its_log(tmp_path: Path, shell: list[str]) -> None:
    logger = 'mkfifo p; (while read -r line; do sleep 0.1; echo "[ts] $line"; done <p) & exec >p 2>&1'
    wrapped = Wrapped(tmp_path, f"{logger}\necho epoch 1\necho RuntimeError: CUDA out of memory\nexit 3")
    wrapped.start_in_namespace(shell)
    assert wrapped.wait() == 3
    assert wrapped.text("stdout") == "[ts] epoch 1\n[ts] RuntimeError: CUDA out of memory\n"
    assert wrapped.text("exit") == "exited 3\n"
    wrapped.line.close()


def test_processes_that_are_killed_at_the_scripts_end_are_written_down(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, "sleep 1000 & (exec setsid sleep 1000 </dev/null >file 2>&1) & exit 3")
    wrapped.start_in_namespace(shell)
    assert wrapped.wait() == 3
    assert wrapped.text("exit") == "exited 3\nleft 2 sleep\n"
    wrapped.line.close()


def test_a_payload_that_fakes_the_wrappers_notice_ends_normally(tmp_path: Path, shell: list[str]) -> None:
    wrapped = Wrapped(tmp_path, "for i in 1 2 3; do echo end >ending; done; exit 3")
    notice = EndNotice(str(tmp_path / "ending"), clock=iter(range(1_000_000)).__next__)
    wrapped.start_in_namespace(shell)

    def has_ended() -> bool:
        assert wrapped.process is not None
        if notice.poll():
            wrapped.line.send("done")
        return wrapped.process.poll() is not None

    wait_until(has_ended, "the wrapper ends")
    assert wrapped.wait() == 3
    wrapped.line.close()
    notice.close()
