"""Test how a script is started, and what an end is read from."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dlapp.runtime.payload import AS_PROGRAM, BY_SHELL, PayloadError, PayloadExit, ended_with, start_method
from dlapp.values.messages import Fault


@pytest.mark.parametrize(
    ("content", "executable", "how"),
    [
        (b"", False, BY_SHELL),
        (b"", True, BY_SHELL),
        (b"echo hi\n", True, BY_SHELL),
        (b"#!/bin/sh\n", False, BY_SHELL),
        (b"#!/bin/sh\n", True, "/bin/sh"),
        (b"#! /usr/bin/env  bash\necho\n", True, "/usr/bin/env"),
        (b"#!/bin/sh -e", True, "/bin/sh"),
        (b"#!\n", True, BY_SHELL),
        (b"#!bin/mine\n", True, AS_PROGRAM),
        (b"\xef\xbb\xbf#!/bin/sh\n", True, BY_SHELL),
        (b"\x7fELF\x02\x01\x01", True, AS_PROGRAM),
        (b"\x7fELF\x02\x01\x01", False, BY_SHELL),
        ("#!/opt/파이썬\n".encode(), True, "/opt/파이썬"),
    ],
)
def test_how_a_script_is_started(tmp_path: Path, content: bytes, executable: bool, how: str) -> None:
    (tmp_path / "run.sh").write_bytes(content)
    (tmp_path / "run.sh").chmod(0o755 if executable else 0o644)
    assert start_method(str(tmp_path), "run.sh") == how


def test_a_script_in_a_directory_below_is_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").write_text("echo\n")
    assert start_method(str(tmp_path), "bin/go") == BY_SHELL


@pytest.mark.parametrize("name", ["none.sh", "a-file/run.sh", "a-directory"])
def test_a_payload_that_is_not_a_script_is_a_user_fault(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-directory").mkdir()
    with pytest.raises(PayloadError, match=name) as refused:
        start_method(str(tmp_path), name)
    assert refused.value.fault is Fault.USER


def test_a_wait_status_distinguishes_codes_from_signals() -> None:
    assert ended_with(3 << 8) == PayloadExit(3, None)
    assert ended_with(137 << 8) == PayloadExit(137, None, problem="exit code 137 (128 + 9: often signal 9)")
    assert ended_with(int(signal.SIGTERM)) == PayloadExit(None, signal.SIGTERM)
    assert ended_with(int(signal.SIGSEGV) | 0x80) == PayloadExit(None, signal.SIGSEGV)
