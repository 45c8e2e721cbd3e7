"""Errors become one line and an exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import dlapp
from dlapp.errors import ConfigError, Denied, FileRefused, NotFound, SpecError, TimedOut, Unreachable, UsageError
from dlapp.tools.common import exit_code_of, explain, one_line
from dlapp.tools.main import COMMANDS
from tests.applications import run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no"), 2),
        (SpecError("resources.memory", "is 0"), 2),
        (NotFound("no"), 3),
        (Denied("no"), 4),
        (Unreachable("no"), 5),
        (TimedOut("no"), 6),
        (PermissionError(errno.EACCES, "Permission denied", "/root"), 4),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.properties"), 1),
        (click.BadParameter("no"), 2),
        (KeyError("x"), 1),
    ],
)
def test_each_error_has_one_line_and_its_exit_code(error: Exception, code: int) -> None:
    lines, found = explain(error, "dlapp-status")
    assert found == code
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")


def test_a_system_error_names_the_file() -> None:
    lines, _ = explain(PermissionError(errno.EACCES, "Permission denied", b"/root/x"), "dlapp-list")
    assert lines == ["Error: /root/x: Permission denied"]


def test_a_removed_working_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as missing:
        os.getcwd()
    expected = ["Error: the working directory was removed; change to one that exists"]
    assert explain(missing.value, "dlapp-list") == (expected, 1)


def test_a_refused_file_shows_every_fault_and_then_one_error_line() -> None:
    lines, code = explain(FileRefused(["a:1: x: is wrong", "a:2: y: is wrong"]), "dlapp-launcher")
    assert lines == [
        "a:1: x: is wrong",
        "a:2: y: is wrong",
        "Error: the properties file is refused: it has 2 errors",
    ]
    assert code == 2


def test_a_refused_configuration_shows_every_fault_too() -> None:
    assert explain(ConfigError("a\nb"), "dlapp-list")[0][-1] == "Error: the configuration is refused: it has 2 errors"
    assert explain(ConfigError("a"), "dlapp-list")[0] == ["Error: a"]


def test_a_message_of_several_lines_ends_with_the_error_line() -> None:
    error = UsageError("the workspace w cannot be packed; exclude these:\n  a is a link out\n  b is a link out")
    lines, code = explain(error, "dlapp-launcher")
    assert lines == ["a is a link out", "b is a link out", "Error: the workspace w cannot be packed; exclude these"]
    assert code == 2


def test_an_interrupt_is_130_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise KeyboardInterrupt

    assert exit_code_of(body, debug=False, name="x") == 130
    assert capsys.readouterr().err == ""


def test_debug_shows_the_traceback_and_still_the_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise NotFound("nobody")

    assert exit_code_of(body, debug=True, name="x") == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "Error: nobody"


def test_one_line_keeps_text_and_escapes_control_characters() -> None:
    assert one_line("한글 a\tb") == "한글 a\tb"
    assert one_line("a\nb\x07\r") == "a b\\x07\\r"


NAMES = [entry.name for entry in COMMANDS.values()]
MODULES = [f"dlapp.tools.{entry.module}" for entry in COMMANDS.values()]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_an_example_json_debug_and_a_version(name: str) -> None:
    done = _run(name, "--help")
    assert done.returncode == 0
    assert f"\n  Example:\n    dlapp-{name}" in done.stdout
    for option in ("--json", "--debug", "--version", "-h, --help"):
        assert option in done.stdout
    assert _run(name, "--version").stdout.startswith(f"dlapp-{name} ")


@pytest.mark.parametrize("module", MODULES)
def test_help_loads_only_click_and_the_errors(module: str) -> None:
    check = (
        "import sys, importlib; sys.argv = ['x', '--help']\n"
        f"try: importlib.import_module('{module}').main()\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('dlapp')), file=sys.stderr)\n"
        "print([m for m in ('docker', 'kazoo', 'requests', 'rich', 'sqlite3', 'yaml') if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    ours, heavy = done.stderr.splitlines()
    allowed = {
        "dlapp",
        "dlapp.errors",
        "dlapp.version",
        "dlapp.tools",
        "dlapp.tools.common",
        "dlapp.tools.kill_target",
    }
    allowed |= {"dlapp.system", "dlapp.system.processes"}
    allowed |= {f"dlapp.system.processes.{name}" for name in ("fast_exit", "loading")}
    assert set(eval(ours)) <= allowed | {module, module.rpartition(".")[0]}
    assert heavy == "[]"


@pytest.mark.parametrize(
    "names",
    ["sqlite3", "json queue", "click", "yaml rich", "logging socket", "dataclasses random", "unicodedata subprocess"],
)
@pytest.mark.parametrize(
    ("command", "arguments"), [("dlapp-list", ("--json",)), ("dlapp-doctor", ("--json",)), ("dlapp", ("status",))]
)
def test_modules_of_the_user_in_pythonpath_are_not_imported(
    state_dir: Path, tmp_path: Path, names: str, command: str, arguments: tuple[str, ...]
) -> None:
    for name in names.split():
        (tmp_path / "lib" / name).mkdir(parents=True)
        (tmp_path / "lib" / name / "__init__.py").write_text("raise ImportError('mine')")
        (tmp_path / f"{name}.py").write_text("print('mine'); raise AttributeError")
    usual = run(command, *arguments)
    done = run(command, *arguments, env={"PYTHONPATH": f"{tmp_path}/lib:{tmp_path}:/missing"})
    assert (done.code, done.err) == (usual.code, usual.err)
    assert "mine" not in done.out


def test_a_library_that_is_only_in_pythonpath_is_found(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("print('found')")
    program = "import dlapp.tools, only_there"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("found\n", "")


def test_a_dlapp_in_pythonpath_is_used_with_the_libraries_beside_it(tmp_path: Path) -> None:
    (tmp_path / "dlapp").symlink_to(Path(dlapp.__file__).parent)
    (tmp_path / "click.py").write_text("raise SystemExit('beside')")
    command = [sys.executable, "-c", "import dlapp.tools"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, cwd="/", capture_output=True, text=True)
    assert done.stderr == "beside\n"


def test_a_command_runs_its_exit_handlers_and_flushes_its_output() -> None:
    check = (
        "import atexit, sys; from dlapp.tools.common import command, run\n"
        "def over(): print('over')\n"
        "@command('x', example='x')\n"
        "def main():\n"
        "    atexit.register(over); print('first'); print('second', file=sys.stderr)\n"
        "    return 5\n"
        "run(main, [])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (5, "first\nover\n", "second\n")


def test_an_unknown_option_is_one_error_line_and_code_2() -> None:
    done = _run("status", "--jsno")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: No such option")
    assert "dlapp-status --help" in done.stderr


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    program = (
        "import sys\nfrom dlapp.tools.common import exit_code_of, say\n"
        "def body():\n  for i in range(100_000): say('x' * 100)\n  return 0\n"
        "sys.exit(exit_code_of(body, debug=False, name='x'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlapp.tools", name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
