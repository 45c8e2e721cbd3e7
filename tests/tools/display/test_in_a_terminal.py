"""The display of ``--wait`` in a real terminal, tmux, that moves its cursor, wraps lines and scrolls."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import BIN, properties, wait_for

PICTURE = re.compile(r"application_\d+_\d+ RUNNING \S+")
PHASE = re.compile(r"[a-z]+ +[█░]+ +\d+ of 3.*|running +█+ +\d.*")
TMUX = shutil.which("tmux")


class Screen:
    """A terminal of 24 lines in which a command runs; what it shows stays after its end."""

    def __init__(self, socket: Path, columns: int, command: str) -> None:
        self._tmux = [str(TMUX), "-S", str(socket), "-f", "/dev/null"]
        words = f"unset COLUMNS LINES; {command}; echo finished $?; exec sleep 600"
        # Readline sets both for the tests, and they would count for more than the terminal.
        size = ["-x", str(columns), "-y", "24"]
        subprocess.run([*self._tmux, "new-session", "-d", *size, "sh", "-c", words], check=True, timeout=120)

    def lines(self) -> list[str]:
        """Return what is on the screen, without empty lines at its end."""
        done = subprocess.run([*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, timeout=120)
        return done.stdout.rstrip().splitlines()

    def close(self) -> None:
        """End the terminal and what runs in it."""
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=120)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    name = "a name that is longer than the terminal is wide, so that it must be cut or wrapped somewhere"
    return properties(tmp_path, script, resources={"containers": 3}, application={"appname": name})


@pytest.fixture(params=[60, 80])
def screen(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Iterator[Screen]:
    command = f"DLAPP_LOCAL_VCORES=4 {shlex.quote(str(BIN))}/dlapp-launcher --wait {shlex.quote(str(file))}"
    one = Screen(tmp_path / "tmux", request.param, command)
    yield one
    one.close()


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_each_redraw_erases_the_previous_display(screen: Screen, tmp_path: Path) -> None:
    """Look at ten pictures at 60 and at 80 columns, and at what stays when the application has ended."""
    wait_for(
        "three that run", lambda: any(re.match(r"running .* 3 of 3|running +█+ +3 ", line) for line in screen.lines())
    )
    pictures: dict[str, list[str]] = {}

    def ten() -> bool:
        lines = screen.lines()
        if found := next((line for line in lines if PICTURE.match(line)), None):
            pictures[found] = lines
        return len(pictures) >= 10

    wait_for("ten pictures", ten)
    heads = set()
    for lines in pictures.values():
        index = next(number for number, one in enumerate(lines) if PICTURE.match(one))
        heads.add("\n".join(lines[:index]))
        assert [line for line in lines[index + 1 :] if not PHASE.fullmatch(line)] == []
        assert len({line.split()[0] for line in lines[index:]}) == len(lines) - index, "a line is there twice"
    (head,) = heads
    (tmp_path / "go").touch()
    wait_for("its end", lambda: "finished 0" in screen.lines())
    end = "\n".join(screen.lines())
    assert end.startswith(head)
    assert "█" not in end
    assert not PICTURE.search(end)
