"""Programs, names and messages that want to steer the terminal of whoever looks at them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.tools.common import exit_code_of, one_line
from dlapp.tools.display.progress import picture_lines
from dlapp.tools.display.terminal import RESET, TerminalStream, terminal_line, without_controls
from tests.applications import BIN, ended, launch, properties, run
from tests.tools.terminal import Terminal

HARMLESS = re.compile(r"(?:[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\x1b\[[0-9;:]*m)*")
RED = "\x1b[1;31m"

ATTACKS = {
    "title": "\x1b]0;mine\x07",
    "title, ended by ST": "\x1b]2;mine\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "hyperlink": "\x1b]8;;http://evil/\x1b\\",
    "report of the cursor": "\x1b[6n",
    "answer back": "\x05",
    "device attributes": "\x1b[c",
    "cursor up": "\x1b[5A",
    "clear": "\x1b[2J\x1b[H",
    "alternate screen": "\x1b[?1049h",
    "modify other keys": "\x1b[>4;2m",
    "DCS": '\x1bP$q"p\x1b\\',
    "APC": "\x1b_Gf=32;AAAA\x1b\\",
    "reset": "\x1bc",
    "charset": "\x1b(0",
    "shift out": "\x0e",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d0;mine\x9c",
    "C1 DCS": "\x90q\x9c",
    "backspaces": "\b\b\b",
    "delete": "\x7f",
    "form feed": "\x0c",
    "right to left": "\u202e",
    "unfinished": "\x1b[",
    "unfinished string": "\x1b]0;",
    "nested": "\x1b[\x1b[2J2J",
    "in two halves": "\x1b\x07[2J",
}

printed = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [*ATTACKS.values(), RED, RESET, "text", "\n", "\r", "\t", "ä", "\x1b", "[", "]", "0;", "m", "\\"]
        ),
        max_size=30,
    ).map(lambda parts: "".join(parts).encode()),
)


@pytest.mark.proves("terminal")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_no_sequence_but_colours_gets_to_the_terminal(attack: str) -> None:
    text, begun = without_controls(f"a{attack}b\nc")
    assert HARMLESS.fullmatch(text)
    assert text.startswith("a")
    assert text.endswith("c")
    assert begun == ""
    assert HARMLESS.fullmatch(terminal_line(f"a{attack}b".encode()))
    assert HARMLESS.fullmatch(one_line(attack).replace("\t", ""))


def test_colours_text_tabs_and_bars_arrive_as_they_were_printed() -> None:
    text = f"{RED}red\x1b[m, \x1b[38;5;12mblue\x1b[38:2::1:2:3m, \tplain äöü 漢字 👩‍👩‍👧\r10%\r\n"
    assert without_controls(text) == (text, "")


@given(printed)
def test_terminal_output_is_always_harmless(data: bytes) -> None:
    stream = TerminalStream()
    text = stream.feed(data) + stream.feed(b"")
    assert HARMLESS.fullmatch(text)
    assert without_controls(text)[0] == text
    assert HARMLESS.fullmatch(terminal_line(data))


@given(printed, st.lists(st.integers(0, 300), max_size=8))
def test_terminal_output_is_independent_of_chunk_boundaries(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole, cut = TerminalStream(), TerminalStream()
    pieces = [cut.feed(data[a:b]) for a, b in itertools.pairwise(places) if a < b]
    assert "".join(pieces) + cut.feed(b"") == (whole.feed(data) if data else "") + whole.feed(b"")


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_plain_text_is_not_touched(text: str) -> None:
    assert without_controls(text) == (text, "")


def test_a_sequence_that_does_not_end_is_held_back_no_longer_than_it_can_be() -> None:
    stream = TerminalStream()
    assert stream.feed(b"\x1b]0;" + b"x" * 4000) == ""
    assert stream.feed(b"x" * 200) == "0;" + "x" * 4200
    assert stream.feed(b"\x1b[31") == ""
    assert stream.feed(b"mred") == "\x1b[31mred"
    assert stream.feed(b"") == RESET


@pytest.mark.proves("terminal")
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"10%\r50%\r100%", "100%"),
        (b"done\r", "done"),
        (b"mine\r[1] not mine", "[1] not mine"),
        (b"\x1b[8mhidden", f"\x1b[8mhidden{RESET}"),
        (b"\x1b[1A\x1b[G[1] not mine", "[1] not mine"),
        (b"\b\b\b\b[1] not mine", "[1] not mine"),
    ],
)
def test_a_line_stays_behind_its_prefix_and_keeps_its_colours_to_itself(line: bytes, shown: str) -> None:
    assert terminal_line(line) == shown


def test_the_live_picture_shows_no_control_characters() -> None:
    view = {
        "application_id": "application_1_0001",
        "state": "WAITING",
        "submitted_ms": 0,
        "finished_ms": None,
        "started_ms": None,
        "total_containers": 1,
        "diagnostics": "\x1b]0;mine\x07",
        "waiting": {"message": "\x1b[2J"},
            "phase": "",
        "final_status": "UNDEFINED",
        "containers": [
            {"phase": "fetching", "finished_ms": None, "progress": None, "detail": "\x1b[2J", "role": "a\x9b2J",
             "role_index": 0},
        ] * 2,
    }  # fmt: skip
    for line in picture_lines(view, 1000):
        assert line.isprintable(), line


def test_a_traceback_is_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise OSError("\x1b]0;mine\x07")

    assert exit_code_of(body, debug=True, name="x") == 1
    assert "\x1b" not in capsys.readouterr().err


SCRIPT = r"""
printf '\033]0;mine\007\033[31mred\033[0m\033[2J\b\b\b\b\n'
printf 'mine\r[7] faked\n'
printf '\033[5A\233up'
"""


def _shown(*args: object) -> bytes:
    with Terminal("dlapp-logs", *args) as terminal:
        assert terminal.wait() == 0
        return terminal.raw


def test_dlapp_logs_on_a_terminal_passes_only_colours(tmp_path: Path) -> None:
    application = launch(properties(tmp_path, SCRIPT))
    ended(application)
    merged = _shown(application)
    assert merged == b"[0] \x1b[31mred\x1b[0m\x1b[0m\r\n[0] [7] faked\r\n[0] \xef\xbf\xbdup\r\n"
    alone = _shown("--container", 0, application)
    assert alone == b"\x1b[31mred\x1b[0m\r\nmine\r[7] faked\r\n\xef\xbf\xbdup\x1b[0m"
    printed = b"\x1b]0;mine\x07\x1b[31mred\x1b[0m\x1b[2J\b\b\b\b\nmine\r[7] faked\n\x1b[5A\x9bup"
    assert _shown("--raw", "--container", 0, application) == printed.replace(b"\n", b"\r\n")
    assert b"\x1b]0;mine\x07" in _shown("--raw", application)
    # Not to a terminal: every byte.
    piped = subprocess.run(
        [BIN / "dlapp-logs", "--container", "0", application], capture_output=True, check=True, env=os.environ
    )
    assert piped.stdout == printed


@pytest.mark.proves("terminal")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("dlapp-launcher", ["{place}/test.properties"]),
        ("dlapp-launcher", ["{place}/not-there"]),
        ("dlapp-launcher", ["--print-spec", "{place}/refused"]),
        ("dlapp-launcher", ["--cluster", "{evil}", "{place}/test.properties"]),
        ("dlapp-shell", ["{place}/not-there"]),
        ("dlapp-list", ["{evil}"]),
        ("dlapp-list", ["--{evil}"]),
        ("dlapp-status", ["{evil}"]),
        ("dlapp-logs", ["{evil}"]),
        ("dlapp-kill", ["{evil}", "{evil}"]),
        ("dlapp-softkill", ["{evil}"]),
        ("dlapp-gpu", ["{evil}"]),
        ("dlapp-cache", ["{evil}"]),
        ("dlapp-doctor", ["{evil}"]),
    ],
)
def test_no_name_or_path_steers_the_terminal(tmp_path: Path, command: str, args: list[str]) -> None:
    evil = "a\x1b]0;mine\x07\x9b2J\b"
    place = tmp_path / evil
    properties(place, "true")
    (place / "refused").write_text(f"[application]\n{evil}={evil}\n[{evil}]\n")
    words = [arg.format(place=place, evil=evil) for arg in args]
    with_debug = [] if command == "dlapp-launcher" else ["--debug"]
    for done in (run(command, *words), run(command, *words, *with_debug)):
        assert done.out + done.err
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.out + done.err), done
