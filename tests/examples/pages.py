"""Pages with files and commands: writing the files that a page shows, and running its commands as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

from tests.applications import BIN

_FILE = re.compile(r"^.*`([\w./]+)`:\n\n((?: {4}[^\n]*\n|\n)+)", re.MULTILINE)
_BLOCK = re.compile(r"(?:^ {4}[^\n]*\n|^\n)+", re.MULTILINE)


def write_files(directory: Path, text: str) -> list[Path]:
    """Write each file that a text shows; those that begin with ``#!`` are executable."""
    files = []
    for name, content in _FILE.findall(text):
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(content).strip() + "\n", encoding="utf-8")
        file.chmod(0o755 if content.lstrip().startswith("#!") else 0o644)
        files.append(file)
    return files


def commands(text: str) -> list[tuple[str, str]]:
    """Return each command of the indented blocks that begin with one, and what it prints."""
    found = []
    for block in _BLOCK.findall(text):
        lines = textwrap.dedent(block).strip("\n")
        if lines.startswith("$ "):
            found += re.findall(r"^\$ (.*)\n?((?:(?!\$ ).*\n?)*)", lines, re.MULTILINE)
    return found


def pattern(printed: str) -> str:
    """A regular expression for what is printed: ``…`` alone in a line is any lines, in a line it is any text."""
    lines = [
        r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in printed.splitlines()
    ]
    return "".join(lines)


def shell(command: str, directory: Path, *, before: int = 0, stderr: int = subprocess.STDOUT) -> tuple[int, str, str]:
    """Run a command of a page. Return its exit code, what it printed, and what was on stderr alone.

    Args:
        command: as the page has it.
        directory: the working directory.
        before: exit code of the command before it, for ``$?``.
        stderr: STDOUT as on a terminal, or PIPE.
    """
    done = subprocess.run(
        ["bash", "-c", f"(exit {before})\n{command}"],
        cwd=directory,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "DLAPP_LOCAL_VCORES": "4"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout, done.stderr or ""
