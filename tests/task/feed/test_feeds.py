"""Feeds of real tasks: programs that read them, in Python and by FIFOs, and what becomes of them under faults."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dlapp.system.processes.proc import descendants
from dlapp.values.messages import Fault, Phase, TaskResult
from dlapp.values.spec import FeedFormat, FeedSpec, InputSpec
from tests.applications import wait_for
from tests.task.fake_am import FakeAm, workspace_archive

PYTHON = "python3 - <<'END'\nimport dlapp_context\n{}\nEND\n"


@pytest.fixture
def lake(place: Path) -> Path:
    (lake := place / "lake").mkdir()
    for number in range(6):
        (lake / f"{number}.txt").write_text(f"{number}a\n{number}b")
    return lake


def feed(lake: Path, name: str = "", *, shard: bool = True, **keys: Any) -> InputSpec:
    path = f"fed/{name}".rstrip("/")
    return InputSpec(name=name, sources=(f"file://{lake}/*",), input_path=path, shard=shard, feed=FeedSpec(**keys))


def ran(place: Path, script: str, *inputs: InputSpec, **assignment: Any) -> tuple[TaskResult, FakeAm]:
    packed = workspace_archive(place, {"run.sh": script})
    with FakeAm(place / "containers", inputs=inputs, **(packed | assignment)) as am:
        am.start()
        return am.result(), am


def test_a_program_reads_its_part_of_several_feeds(place: Path, lake: Path) -> None:
    program = (
        "print(*(line.decode() for line in dlapp_context.feed()))\n"
        "print(*(file.read().decode()[:1] for file in dlapp_context.feed('all')))"
    )
    result, am = ran(
        place,
        PYTHON.format(program),
        feed(lake, "all", shard=False),
        feed(lake, format=FeedFormat.LINES, epochs=2),
        index=7,
        total=9,
        role_index=1,
        role_size=3,
    )
    assert result.fault is Fault.NONE, (result, am.log())
    assert am.printed().decode() == "1a 1b 4a 4b 1a 1b 4a 4b\n0 1 2 3 4 5\n"
    assert result.receipt is not None
    assert result.receipt.bytes.input == 6 * 5 + 2 * 2 * 5
    assert not (am.home / "feed").exists()


def test_programs_of_any_language_read_a_fifo_for_each_epoch(place: Path, lake: Path) -> None:
    script = (
        'for e in 0 1; do echo $(cat "$DLAPP_INPUT_LINES/epoch-$e"); done; ls "$DLAPP_INPUT_LINES"\n'
        'tar -xf "$DLAPP_INPUT_TAR/epoch-0" -C "$TMPDIR" && cd "$TMPDIR" && find . -type f | sort | xargs tail -qn1\n'
    )
    result, am = ran(place, script, feed(lake, "lines", format=FeedFormat.LINES, epochs=2), feed(lake, "tar"))
    assert result.fault is Fault.NONE, (result, am.log(), (am.home / "stderr").read_text())
    lines = " ".join(f"{number}a {number}b" for number in range(6))
    assert am.printed().decode() == f"{lines}\n{lines}\n" + "".join(f"{number}b" for number in range(6))


def test_a_program_reads_on_after_the_process_that_feeds_was_killed(place: Path, lake: Path) -> None:
    program = (
        "import os, time\nlines = iter(dlapp_context.feed())\nprint(next(lines).decode(), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "print(*(line.decode() for line in lines))"
    )
    packed = workspace_archive(place, {"run.sh": PYTHON.format(program)})
    wanted = feed(lake, format=FeedFormat.LINES, epochs=3)
    with FakeAm(place / "containers", inputs=(wanted,), **packed) as am:
        am.start()
        wait_for("the first record", lambda: b"0a\n" in _printed(am), 120)
        assert am.task is not None
        (victim,) = [pid for pid in descendants(am.task.pid) if _is_feed(pid)]
        os.kill(victim, signal.SIGKILL)
        (am.home / "workspace" / "go").touch()
        result = am.result()
    assert result.fault is Fault.NONE, (result, am.log())
    every = [f"{number}{each}" for _ in range(3) for number in range(6) for each in "ab"]
    assert am.printed().decode().split() == every
    assert "has ended; starting another one" in am.log()


def _is_feed(pid: int) -> bool:
    try:
        return b"dlapp.__main__" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it has ended


def test_input_that_changes_while_it_is_fed_ends_the_task_with_its_name(place: Path, lake: Path) -> None:
    program = f"""import os
for epoch, lines in dlapp_context.feed().by_epoch():
    list(lines)
    if not epoch: os.unlink({str(lake / "3.txt")!r})"""
    result, am = ran(place, PYTHON.format(program), feed(lake, format=FeedFormat.LINES, epochs=500))
    assert result.fault is Fault.DATA, (result, am.log())
    assert result.message.startswith("input fed could not be fed: "), result
    assert f"{lake}/3.txt" in result.message


def test_invalid_feeds_are_refused_before_the_payload_starts(place: Path, lake: Path) -> None:
    (lake / "large").write_bytes(bytes(17 << 20))
    for number, wanted in enumerate(
        (feed(place / "none"), feed(lake, format=FeedFormat.PARQUET, buffer_bytes=16 << 20))
    ):
        (here := place / str(number)).mkdir()
        result, am = ran(here, "echo ran", wanted)
        assert result.fault is Fault.DATA, (result, am.log())
        assert Phase.RUNNING not in am.phases


def test_a_feed_ends_with_its_task(place: Path, lake: Path) -> None:
    packed = workspace_archive(place, {"run.sh": "echo started; sleep 600"})
    with FakeAm(place / "containers", inputs=(feed(lake),), **packed) as am:
        am.start()
        wait_for("the start", lambda: b"started" in _printed(am), 120)
        assert am.task is not None
        (process,) = [pid for pid in descendants(am.task.pid) if _is_feed(pid)]
        am.task.kill()
        wait_for("its end", lambda: not _lives(process), 120)


def _lives(pid: int) -> bool:
    try:
        return b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except FileNotFoundError:
        return False


def _printed(am: FakeAm) -> bytes:
    return am.printed() if (am.home / "stdout").exists() else b""
