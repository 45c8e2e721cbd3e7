"""Completion in real shells, with the ids of applications that there are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dlapp.client.completion import matching
from dlapp.cluster.local.client.ownership import database_of
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.config import load_config
from dlapp.tools.main import COMMANDS
from dlapp.values.ids import ApplicationId
from tests.applications import BIN, ended, launch, properties
from tests.documented.pages import blocks

BASH = """
source ~/.local/share/bash-completion/completions/dlapp-$1
COMP_WORDS=("dlapp-$1" "$2"); COMP_CWORD=1
_dlapp_$1_completion "dlapp-$1" "$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""
BASH_WORDS = """
source ~/.local/share/bash-completion/completions/dlapp
COMP_WORDS=(dlapp "$1" "$2"); COMP_CWORD=$3
_dlapp_completion dlapp "${COMP_WORDS[$3]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH_WORDS = 'if test $argv[3] = 1; complete -C "dlapp $argv[1]"; else; complete -C "dlapp $argv[1] $argv[2]"; end'
ZSH_WORDS = """
compdef() { :; }
compadd() { print -l -- ${(P)@[-1]}; }
_describe() { print -l -- ${${(P)3}%%:*}; }
words=(dlapp "$1" "$2"); CURRENT=$(($3 + 1))
source ~/.zsh/completions/_dlapp
_dlapp_completion
"""
FISH = 'complete -C "dlapp-$argv[1] $argv[2]"'
ZSH = """
compdef() { :; }
compadd() { print -l -- ${(P)@[-1]}; }  # its last word is the name of an array
_describe() { print -l -- ${${(P)3}%%:*}; }
_path_files() { print file; }
words=("dlapp-$1" "$2"); CURRENT=2
source ~/.zsh/completions/_dlapp-$1
_dlapp_$1_completion
"""


def in_shell(shell: str, script: str, *words: str) -> list[str]:
    """Return what a shell prints, with our commands on its path."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} (make test installs it on Debian and Ubuntu)")
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": []}[shell]
    rest = [shell, *words] if shell != "fish" else list(words)
    done = subprocess.run(
        [shell, *flags, "-c", script, *rest],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "XDG_CONFIG_HOME": f"{os.environ['HOME']}/.config"},
    )
    assert done.stderr == "", done.stderr
    return [re.split(r"\t", line)[0] for line in done.stdout.splitlines() if line]


def install() -> None:
    """Write the files as the page says it."""
    (block,) = (item for item in blocks("docs/commands.md") if item.language == "bash")
    assert in_shell("bash", block.text) == []


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_ids_options_and_actions(shell: str, tmp_path: Path) -> None:
    script = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    first, second = (launch(properties(tmp_path, "exit 0", name=name)) for name in ("one", "two"))
    install()
    assert set(in_shell(shell, script, "status", "app")) == {first, second}
    assert second in in_shell(shell, script, "logs", "2")
    assert "last" in in_shell(shell, script, "logs", "la")
    assert "--json" in in_shell(shell, script, "status", "--j")
    assert "heal" in in_shell(shell, script, "gpu", "he")
    words = {"bash": BASH_WORDS, "zsh": ZSH_WORDS, "fish": FISH_WORDS}[shell]
    assert set(in_shell(shell, words, "s", "", "1")) == {"submit", *(name for name in COMMANDS if name[0] == "s")}
    assert set(in_shell(shell, words, "status", "app", "2")) == {first, second}
    assert "submit" in in_shell(shell, words, "help", "su", "2")
    for application in (first, second):
        ended(application)
    assert in_shell(shell, script, "kill", "app") == []


def test_completing_ids_creates_no_files(tmp_path: Path) -> None:
    assert [view.application_id for view in matching("", unfinished=False)] == ["last"]
    home = Path(os.environ["HOME"])
    assert list(home.iterdir()) == []


def test_an_id_is_found_by_its_beginning_and_by_its_number() -> None:
    for number in (7, 42, 423):
        tools_tokens.keep(ApplicationId(1700000000000, number), tools_tokens.KeptToken("tony", "t"))
    ids = ["application_1700000000000_0423", "application_1700000000000_0042", "application_1700000000000_0007"]
    for incomplete, found in (("app", ids), ("42", ids[:2]), ("0042", ids[:2]), ("8", []), ("x", [])):
        assert [view.application_id for view in matching(incomplete, unfinished=True)] == found


def test_an_unreadable_state_completes_nothing_silently() -> None:
    database = Path(database_of(load_config().local))
    database.parent.mkdir(parents=True)
    database.write_text("garbage" * 1000)
    done = subprocess.run(
        [BIN / "dlapp-status"],
        env={
            **os.environ,
            "_DLAPP_STATUS_COMPLETE": "bash_complete",
            "COMP_WORDS": "dlapp-status app",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
