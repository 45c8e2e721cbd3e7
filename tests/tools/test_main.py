"""`dlapp COMMAND` is what `dlapp-COMMAND` is, and loads no more."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dlapp.tools.main import COMMANDS, load_command
from tests.applications import BIN, properties, run

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_programs_are_those_of_the_table() -> None:
    programs = {command.program: f"dlapp.tools.{command.module}:main" for command in COMMANDS.values()}
    assert PROJECT["scripts"] == {"dlapp": "dlapp.tools.main:main", **programs}
    assert [word for word, one in COMMANDS.items() if one.program != f"dlapp-{word}"] == ["submit"]
    assert [load_command(word).name for word in COMMANDS] == list(programs)


def loaded(module: str, *words: str) -> set[str]:
    check = (
        f"import importlib, sys; sys.argv = {['x', *words]}\n"
        f"it = importlib.import_module('dlapp.tools.{module}')\n"
        "try: it.main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_a_dlapp_subcommand_loads_its_program_and_the_table_only(words: tuple[str, ...], tmp_path: Path) -> None:
    assert run("dlapp-launcher", "--wait", properties(tmp_path, "true")).code == 0
    alone = loaded("applications.status", *words)
    assert "dlapp.tools.applications.status" in alone
    assert loaded("main", "status", *words) - alone == {"dlapp.tools.main"}


def test_the_help_names_every_command_and_loads_none() -> None:
    helps = [run("dlapp", *words).out for words in ((), ("--help",), ("help",))]
    assert helps[0] == helps[1] == helps[2]
    for word, entry in COMMANDS.items():
        assert f"\n  {word} " in helps[0]
        assert entry.summary in helps[0]
    modules = loaded("main", "help")
    assert not {f"dlapp.tools.{entry.module}" for entry in COMMANDS.values()} & modules


@pytest.mark.parametrize("word", COMMANDS)
def test_the_help_of_a_subcommand_is_that_of_its_program(word: str) -> None:
    alone = run(COMMANDS[word].program, "--help").out
    for words in ((word, "--help"), ("help", word), ("help", COMMANDS[word].program), ("help", COMMANDS[word].name)):
        found = run("dlapp", *words)
        assert found.code == 0
        assert found.out.partition("\n\n")[2] == alone.partition("\n\n")[2]
        assert found.out.startswith(f"Usage: dlapp {word} ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sttus"], "'sttus' is not a command of dlapp: the nearest is status (dlapp help lists them)"),
        (["launcher"], "'launcher' is not a command of dlapp: use submit (dlapp help lists them)"),
        (["dlapp-launcher"], "'dlapp-launcher' is not a command of dlapp: use submit (dlapp help lists them)"),
        (["dlapp-logs"], "'dlapp-logs' is not a command of dlapp: use logs (dlapp help lists them)"),
        (["dlapp-sttus"], "'dlapp-sttus' is not a command of dlapp: the nearest is status (dlapp help lists them)"),
        (["status", "--jsno"], "(dlapp status --help shows the usage)"),
        (
            ["submit", "--cpus-per-task=2", "f"],
            "'--cpus-per-task': use resources.vcores of the file, or --set resources.v",
        ),
        (
            ["submit", "--array", "1-9", "f"],
            "'--array': use [sweep], whose trials run with other parameters (dlapp subm",
        ),
        (["submit", "--waitt", "f"], "Did you mean one of: '--init', '--wait'?"),
        (["help", "nope"], "'nope' is not one of 'submit', 'status'"),
        (["run"], "dlapp-run works inside dlapp-shell only"),
        (["status", "tony"], "'tony' is neither 'last'"),
    ],
)
def test_a_refused_subcommand_gives_one_line_and_code_2(words: list[str], message: str) -> None:
    refused = run("dlapp", *words)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert message in refused.err


def test_words_run_an_application_from_its_submission_to_its_removal(tmp_path: Path) -> None:
    submitted = run("dlapp", "submit", "--wait", properties(tmp_path, "echo hello; exit 3"))
    assert submitted.code == 1, submitted.err
    assert "container 0 exited with code 3" in submitted.out
    assert run("dlapp", "logs", "-f").code == 1
    assert run("dlapp", "logs").out == "[0] hello\n"
    assert run("dlapp", "status").out == run("dlapp-status").out
    assert run("dlapp", "list", "--json").code == 0
    assert run("dlapp", "rm", "last").code == 0
    assert run("dlapp", "--debug", "status").code == 3


def test_arguments_after_two_dashes_reach_the_subcommands_program(tmp_path: Path) -> None:
    printed = run("dlapp", "submit", "--print-spec", properties(tmp_path, "true"), "--", "--wait", "a b")
    assert json.loads(printed.out)["spec"]["args"] == ["--wait", "a b"]


@pytest.mark.slow
def test_inside_a_shell_dlapp_run_submits_with_its_options(tmp_path: Path) -> None:
    done = subprocess.run(
        [BIN / "dlapp", "shell", properties(tmp_path, "true")],
        input=f"{BIN}/dlapp run --wait; echo code $?\n",
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "\nsucceeded after " in done.stdout, done.stderr
    assert done.stdout.endswith("code 0\n")
