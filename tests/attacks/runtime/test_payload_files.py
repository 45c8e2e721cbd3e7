"""Test what a program leaves where dlapp looks afterwards: logs, exit codes, links in a workspace."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.client.logs import GrowingFile, LogPiece, read_logs
from dlapp.cluster.engine import LogFiles
from dlapp.errors import NotFound, UsageError
from dlapp.launcher.workspace.pack import pack
from dlapp.launcher.workspace.scan import scan_workspace
from dlapp.runtime.gpu.verification import visible_gpu_mismatch
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import InputSpec
from tests.applications import ended, launch, properties, run
from tests.live_input import fetch_into_workspace


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}")


def _directory(path: Path) -> None:
    path.mkdir()


KINDS = [_link, _fifo, _socket, _directory]


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_no_file_is_named_and_the_others_are_shown(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    app = ApplicationId(1700000000000, 1)
    logs = []
    for index in range(2):
        directory = tmp_path / str(index)
        directory.mkdir()
        (directory / "stderr").write_text("err\n")
        container = ContainerId(app, 1, index + 2)
        files = {name: f"file://{directory}/{name}" for name in ("stdout", "stderr")}
        logs.append(LogFiles(container_id=container, role="worker", role_index=index, index=index, files=files))
    kind(tmp_path / "0" / "stdout")
    (tmp_path / "1" / "stdout").write_text("out\n")
    missing: list[str] = []
    turns = iter([False, False, True])
    pieces = list(read_logs(lambda: (next(turns), logs), follow=True, missing=missing.append))
    shown = [(piece.log.index, piece.stream, piece.data) for piece in pieces if piece.data]
    assert sorted(shown) == [(0, "stderr", b"err\n"), (1, "stderr", b"err\n"), (1, "stdout", b"out\n")]
    (line,) = missing
    assert line.startswith(f"stdout of container 0: {tmp_path}/0/stdout: is a ")
    assert isinstance(pieces[0], LogPiece)


@pytest.mark.proves("program-files")
def test_dlapp_logs_does_not_wait_for_a_fifo_that_a_program_put_in_the_place_of_its_log(tmp_path: Path) -> None:
    script = 'log=$(readlink /proc/$$/fd/1); rm "$log"; mkfifo "$log"; echo err >&2'
    application = launch(properties(tmp_path, script))
    ended(application)
    done = run("dlapp-logs", application, timeout_s=120)
    assert done.out == "[0 err] err\n"
    assert "stdout of container 0: " in done.err
    assert "is a FIFO, not a regular file" in done.err


def test_a_log_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    log = tmp_path / "stdout"
    log.write_text("a\n")
    growing = GrowingFile(str(log))
    assert list(growing.pieces()) == [b"a\n"]
    log.unlink()
    log.symlink_to("/etc/passwd")
    with pytest.raises(NotFound, match="is a symbolic link"):
        list(growing.pieces())


@given(st.one_of(st.text(max_size=80), st.sampled_from(["node ² 195:1\n", f"node {'9' * 5000} 1:1\n", "node 1 ²:1\n"])))
def test_any_gpu_report_of_a_container_is_parsed(seen: str) -> None:
    assert isinstance(visible_gpu_mismatch([], f"{seen}\nsmi none\nend\n", {}), str)


@pytest.mark.proves("program-files")
@pytest.mark.parametrize("way", ["input_path", "on the way"])
def test_input_of_a_shell_does_not_land_where_a_link_of_a_program_leads(tmp_path: Path, way: str) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    workspace.mkdir()
    (elsewhere / "in").mkdir(parents=True)
    (tmp_path / "source").write_text("1")
    (workspace / "data").symlink_to(elsewhere)
    into = "data" if way == "input_path" else "data/in"
    wanted = InputSpec(sources=(f"file://{tmp_path}/source",), input_path=into)
    with pytest.raises(UsageError, match=f"{into}.* leads out of the workspace by a link, to .*elsewhere"):
        fetch_into_workspace((wanted,), str(workspace), str(tmp_path), lambda _: None)
    assert sorted(os.listdir(elsewhere)) == ["in"]
    assert os.listdir(elsewhere / "in") == []


@pytest.mark.proves("program-files")
def test_a_file_is_not_packed_through_a_directory_that_became_a_link(tmp_path: Path) -> None:
    workspace, secret = tmp_path / "workspace", tmp_path / "secret"
    (workspace / "data").mkdir(parents=True)
    secret.mkdir()
    (workspace / "data" / "key").write_text("public")
    (workspace / "start.sh").write_text("true")
    (secret / "key").write_text("TOP SECRET")
    scan = scan_workspace(str(workspace))
    (workspace / "data").rename(tmp_path / "away")
    (workspace / "data").symlink_to(secret)
    packed = pack(scan, str(tmp_path / "cache"), limit_bytes=1 << 20)
    out = subprocess.run(["tar", "-xzOf", packed.archive.removeprefix("file://")], capture_output=True, check=True)
    assert b"TOP SECRET" not in out.stdout
    assert any("data/key" in line and "was replaced" in line for line in packed.warnings)
