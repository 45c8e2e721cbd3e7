"""The command blocks of README, docs and examples, as their text has them, and the files that the same text shows."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "docker/**/*.md", "examples/**/*.md")

SHELLS = ("sh", "bash", "zsh", "fish")
"""Languages of fenced blocks that are commands."""

PROGRAMS = frozenset(
    """
    . apt-get bash cat cd chmod chown conda cp curl dlapp docker docker/from-debian.sh echo env eval exec export for git
    grep groupadd hadoop hdfs if install kill kubectl ln ls make mkdir mount mpirun mv nvidia-smi pip pkill printf
    python python3 rm rsync scp sed set sh source ssh sudo systemctl systemd-tmpfiles tar test torchrun until useradd
    usermod wget while yarn
    """.split()  # noqa: SIM905  # a list of forty texts is not read
)
"""First words that make an indented block without a prompt one of commands, beside dlapp-NAME and ./NAME."""

ONE_STORY = ("docs/first-hour.md",)
"""Pages whose sections go on with what the former ones did."""

_FILE = re.compile(r"(?:`(?P<first>[\w/][\w./-]*[./][\w./-]*)`.*|.*`(?P<last>[\w/][\w./-]*[./][\w./-]*)`):")
_ENDS = re.compile(r"\s*|<!--.*-->")  # what a block may follow
_SESSION = re.compile(r"^\$ (.*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Args:
        page: its path in the project.
        section: the heading of second order above it; empty: none, or the page is one story.
        line: its first line in the page, from 1.
        language: of a fenced block; empty: it is indented.
        file: the file that it shows; empty: none.
        text: its lines, without the indentation.
    """

    page: str
    section: str
    line: int
    language: str
    file: str
    text: str

    @property
    def is_session(self) -> bool:
        """Return whether it has commands after a prompt, and what they print."""
        return not self.language and not self.file and self.text.startswith("$ ")

    @property
    def is_commands(self) -> bool:
        """Return whether it is commands."""
        if self.file:
            return False
        if self.language:
            return self.language in SHELLS
        first = next((line for line in self.text.splitlines() if line and not line.startswith("# ")), "")
        word, space, _ = first.partition(" ")
        return (
            self.is_session or word.startswith(("dlapp-", "./")) or (word in PROGRAMS and (word != "." or bool(space)))
        )

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Return each command with what it prints; a block without prompts is one command."""
        return _SESSION.findall(self.text) if self.is_session else [(self.text, "")]

    @property
    def name(self) -> str:
        """Return its first command, without a comment."""
        lines = self.commands[0][0].splitlines()
        return without_comment(next(line for line in lines if line and not line.startswith("# ")))

    @property
    def targets(self) -> list[str]:
        """Return its calls of make."""
        lines = [line for command, _ in self.commands for line in command.splitlines()]
        return [without_comment(line) for line in lines if line.startswith("make ")]

    @property
    def is_only_targets(self) -> bool:
        """Return whether each of its commands is a call of make."""
        return len(self.targets) == sum(len(command.splitlines()) for command, _ in self.commands)


def without_comment(line: str) -> str:
    """Return a command line without the comment at its end."""
    return re.sub(r"\s+# .*", "", line).strip()


@cache
def pages() -> tuple[str, ...]:
    """Return the pages, as paths in the project."""
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found if path.name != "CHANGELOG.md"))


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return all blocks of code of a page."""
    return tuple(_blocks(page, (ROOT / page).read_text(encoding="utf-8").splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    section, paragraph, here = "", "", 0
    while here < len(lines):
        line, begin = lines[here], here
        if fence := re.match(r"( *)```(\w*)", line):
            here += 1
            while not lines[here].strip().startswith("```"):
                here += 1
            text = "\n".join(lines[begin + 1 : here])
            here += 1
            yield _block(page, section, begin + 2, fence[2], paragraph, text)
        elif line.startswith("    ") and (begin == 0 or _ENDS.fullmatch(lines[begin - 1])):
            while here < len(lines) and (lines[here].startswith("    ") or not lines[here].strip()):
                here += 1
            yield _block(page, section, begin + 1, "", paragraph, "\n".join(lines[begin:here]))
        else:
            if line.startswith("## ") and page not in ONE_STORY:
                section = line[3:]
            paragraph = line or paragraph
            here += 1


def _block(page: str, section: str, line: int, language: str, above: str, text: str) -> Block:
    named = None if language else _FILE.fullmatch(above)
    file = (named["first"] or named["last"]) if named else ""
    return Block(page, section, line, language, file, textwrap.dedent(text).strip("\n") + "\n")


@cache
def command_blocks() -> dict[str, Block]:
    """Return the blocks of commands of all pages by what the table calls them: ``PAGE: FIRST COMMAND``.

    A name that a page has again ends with its number. Calls of make are listed for themselves, so a block of nothing
    else is left out.
    """
    found: dict[str, Block] = {}
    seen: Counter[str] = Counter()
    for block in (block for page in pages() for block in blocks(page) if block.is_commands):
        if not block.is_only_targets:
            name = f"{block.page}: {block.name}"
            seen[name] += 1
            found[name if seen[name] == 1 else f"{name} ({seen[name]})"] = block
    return found


def pattern(printed: str) -> str:
    """A regular expression for what is printed: ``…`` alone in a line is any lines, in a line it is any text."""
    lines = [
        r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in printed.splitlines()
    ]
    return "".join(lines)
