"""Running the command blocks of one section as a newcomer would: in a mount namespace, a HOME and a copy of their own.

The section's blocks run in one bash, so directories, variables and applications go from one to the next. What they
write in /etc, /opt, /srv, /run/lock and /var/lib is seen in the namespace alone, and its processes end with it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.applications import BIN
from tests.closes.copy import copy_tree
from tests.documented.pages import ROOT, Block, blocks, pattern
from tests.documented.scenarios import Scenario, Section
from tests.services.containers.nvml_stub import StubDevice, seen_by_all

PRIVATE = ("/etc", "/opt", "/srv", "/run/lock", "/var/lib")
"""Directories of the machine that documented commands write to."""

MAX_S = 4800
"""A section at most: a part of `make nightly` [s]."""

_BEGIN = """
set -e  # without one of these mounts the commands would change the machine
mount -t tmpfs documented "$PRIVATE_DIR"
for path in {paths}; do
    [ -d "$path" ] || continue
    layer=$PRIVATE_DIR/$(echo "$path" | tr / _); mkdir -p "$layer/up" "$layer/work"
    mount -t overlay documented -o "lowerdir=$path,upperdir=$layer/up,workdir=$layer/work" "$path"
done
if [ -n "${{HADOOP_CONF:-}}" ]; then mkdir -p /etc/hadoop; ln -sfn "$HADOOP_CONF" /etc/hadoop/conf; fi
unset PRIVATE_DIR HADOOP_CONF
cd {directory}
exec 9>{records}/steps
status=0
set +e
"""


@dataclass(frozen=True)
class Step:
    """One command or file; ``printed`` is what the page says it prints, None: it must exit with one of ``codes``."""

    what: str
    script: str
    printed: str | None = None
    codes: tuple[int, ...] = (0,)


class Refused(AssertionError):
    """A command of a page that did not do what the page says."""


def run_section(
    section: Section, scenario: Scenario, left_out: frozenset[str], directory: Path, variables: Mapping[str, str]
) -> None:
    """Run all command blocks of a section, and write the files that it shows.

    Args:
        section: the page and the heading.
        scenario: what its commands need.
        left_out: first commands of blocks that carry a reason, and are not run.
        directory: an empty directory of the test.
        variables: of the cluster that the blocks use.

    Raises:
        Refused: a command failed, or printed something else than the page says.
    """
    home, records, private = (directory / name for name in ("tony", "records", "private"))
    for path in (home, records, private):
        path.mkdir()
    where = home / scenario.directory
    if scenario.directory.partition("/")[0] == "dlapp" or "{tree}" in scenario.replace.values():
        copy_tree(home / "dlapp")
        (home / "dlapp" / ".venv").symlink_to(BIN.parent)
    where.mkdir(parents=True, exist_ok=True)
    places = {"home": str(home), "tree": str(home / "dlapp"), "repository": str(ROOT)}
    replace = {name: text.format(**places) for name, text in scenario.replace.items()}
    steps = list(_steps(section, scenario, left_out, records, replace))
    script = directory / "script"
    script.write_text(
        _BEGIN.format(paths=" ".join(PRIVATE), directory=shlex.quote(str(where)), records=shlex.quote(str(records)))
        + "".join(_one(number, step, records) for number, step in enumerate(steps)),
        encoding="utf-8",
    )
    gpus = seen_by_all(directory, [StubDevice()] * scenario.gpus) if scenario.gpus else {}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DLAPP_", "XDG_", "PYTHON"))}
    environment = {
        **inherited,
        "HOME": str(home),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "COMMANDS": str(BIN),
        "DLAPP_LOCAL_VCORES": "8",  # the pages ask for up to so many containers, and not each machine has the cores
        "PRIVATE_DIR": str(private),
        **gpus,
        **variables,
    }
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*alone, "bash", script],
        cwd=where,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=MAX_S,
    )
    _judge(section, steps, records, done.stdout)


def _steps(
    section: Section, scenario: Scenario, left_out: frozenset[str], records: Path, replace: Mapping[str, str]
) -> Iterator[Step]:
    if scenario.begins_with:
        for block in _blocks_of(scenario.begins_with):
            if block.file or not block.is_session:
                yield from _block_steps(block, Scenario(), records, replace)
    if scenario.prepare:
        yield Step("preparation", f"set -e\n{scenario.prepare}\nset +e")
    for block in _blocks_of(section):
        if not block.file and block.name in left_out:
            continue
        if not block.file and (before := scenario.before.get(block.name)):
            yield Step(f"before {block.name}", f"set -e\n{before}\nset +e")
        yield from _block_steps(block, scenario, records, replace)


def _blocks_of(section: Section) -> list[Block]:
    return [block for block in blocks(section[0]) if block.section == section[1] and (block.file or block.is_commands)]


def _block_steps(block: Block, scenario: Scenario, records: Path, replace: Mapping[str, str]) -> Iterator[Step]:
    def filled(text: str) -> str:
        for name, value in replace.items():
            text = text.replace(name, value)
        return text

    if block.file:
        mode = "755" if block.text.startswith("#!") else "644"
        quoted = shlex.quote(block.file)
        yield Step(
            block.file,
            f"set -e\nmkdir -p \"$(dirname {quoted})\"\ncat >{quoted} <<'END OF FILE'\n{block.text}END OF FILE\n"
            f"chmod {mode} {quoted}\nset +e",
        )
        return
    codes = scenario.codes.get(block.name, (0,))
    for command, printed in block.commands:
        text = filled(command)
        if scenario.payload is not None:
            yield Step(command, _as_payload(text, scenario.payload), codes=codes)
        elif block.name in scenario.typed:
            match, typed = scenario.typed[block.name]
            script = records / f"{block.line}.sh"
            script.write_text(text, encoding="utf-8")
            # Ctrl-C ends a command with an exit code of its own, and the next one of the block still runs.
            bash = ["bash", *(["-e"] if codes == (0,) else []), str(script)]
            words = [sys.executable, str(Path(__file__).with_name("terminal.py")), match, typed, *bash]
            yield Step(command, shlex.join(words), codes=codes)
        elif block.language in ("zsh", "fish"):
            yield Step(command, shlex.join([block.language, "-c", text]), codes=codes)
        elif block.is_session and scenario.compare:
            yield Step(command, text, filled(printed))
        else:
            yield Step(command, text if codes != (0,) else f"set -e\n{text}\nset +e", codes=codes)


def _as_payload(text: str, sections: str) -> str:
    return (
        "set -e\nmkdir -p code\ncat >code/start.sh <<'END OF FILE'\n#!/bin/sh\nset -e\nmkdir -p model\n"
        f"{text}\nEND OF FILE\nchmod +x code/start.sh\n"
        "cat >payload.properties <<'END OF FILE'\n[resources]\nmemory=64m\ngcores=0\n[application]\nappname=payload\n"
        f"user_dev_workspace_path=code\nuser_shell_script=start.sh\n{sections}END OF FILE\n"
        "dlapp-launcher --wait payload.properties\nset +e"
    )


def _one(number: int, step: Step, records: Path) -> str:
    """Return the lines that run a step in the shell of all, with what is known of it afterwards."""
    return (
        f'echo "begin {number}" >&9\n(exit $status)\n'
        f"{{\n{step.script}\n}} >{shlex.quote(str(records / str(number)))} 2>&1 9>&-\n"
        f'status=$?\necho "end {number} $status" >&9\n'
    )


def _judge(section: Section, steps: list[Step], records: Path, rest: str) -> None:
    steps_file = records / "steps"
    ended = dict(re.findall(r"^end (\d+) (\d+)$", steps_file.read_text() if steps_file.exists() else "", re.MULTILINE))
    for number, step in enumerate(steps):
        output = records / str(number)
        out = output.read_text(errors="replace") if output.exists() else rest
        where = f"{section[0]}, {section[1] or 'the page'}:\n$ {step.what}\n"
        if str(number) not in ended:
            raise Refused(f"{where}did not end with exit code 0\n{out[-5000:]}")
        code = int(ended[str(number)])
        if step.printed is not None:
            if not re.fullmatch(pattern(step.printed), out):
                raise Refused(f"{where}should print\n{step.printed}\nand printed (exit code {code})\n{out[-5000:]}")
        elif code not in step.codes:
            raise Refused(f"{where}exit code {code}\n{out[-5000:]}")
