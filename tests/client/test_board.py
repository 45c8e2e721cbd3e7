"""Event files of applications, as dlapp-board copies them: real files, and a client that is made up."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dlapp.client import Client
from dlapp.client.board import event_files
from dlapp.client.board.event_files import BoardFiles
from dlapp.client.board.server import TensorBoardProcess
from dlapp.errors import Denied, DlappError, NotFound
from dlapp.locations import file_location
from dlapp.net.streams import StreamRefused
from dlapp.runtime.payload import PayloadPlace
from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.storage.checkpoints.store import open_store
from dlapp.task.streams.event_files import serve
from dlapp.task.streams.stream import Stream
from dlapp.value import replace
from dlapp.values.access import StreamRequest
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, ContainerView, OutputView, State
from dlapp.values.spec import AppSpec, CheckpointSpec, OutputSpec, Submission
from tests.services.missing import missing

APP = ApplicationId(1_700_000_000_000, 42)
EVENTS = "events.out.tfevents.1"


class KnownApplications:
    """A client of applications with these views and specs."""

    own = True

    def __init__(self, view: ApplicationView, spec: AppSpec | None = None) -> None:
        self.view, self.spec = view, spec

    def status(self, _: ApplicationId) -> ApplicationView:
        return self.view

    def submission(self, _: ApplicationId) -> Submission:
        if self.spec is None:
            raise Denied("it is another user's")
        return Submission(spec=self.spec, workspace_archive="", workspace_digest="", submitter="tony", submitted_ms=1)

    def hdfs_of(self, _: ApplicationId, username: str | None = None) -> None:
        return None

    def is_own(self, _: ApplicationId) -> bool:
        return self.own

    def stream_opener(self, _: ApplicationId) -> Callable[..., socket.socket]:
        raise Denied("its token is not here")


class ReachableApplications(KnownApplications):
    """The same, with streams to a container whose directory is ``home``."""

    home: Path

    def stream_opener(self, _: ApplicationId) -> Callable[..., socket.socket]:
        return self._open

    def _open(self, index: int, kind: str, head: dict[str, object]) -> socket.socket:
        StreamRequest(index=index, kind=kind, head=json.dumps(head))  # it is one that can be sent
        assert (index, kind) == (0, "event-files")
        if not (self.home / "workspace" / str(head["path"])).is_dir():
            raise StreamRefused("not yet")
        ours, theirs = socket.socketpair()
        stream = ContainerEnd(theirs, head, PayloadPlace(directory=str(self.home)))
        threading.Thread(target=serve, args=(cast(Stream, stream),)).start()
        return ours


class ContainerEnd:
    """A stream at the container's end."""

    def __init__(self, connection: socket.socket, head: dict[str, object], place: PayloadPlace) -> None:
        self._connection, self.head, self.place = connection, head, place

    def accept(self) -> socket.socket:
        return self._connection


def ended(target: Path, **fields: Any) -> ApplicationView:
    output = OutputView(name="", target=file_location(str(target)), committed=True)
    given: dict[str, Any] = {"outputs": (output,), "state": State.FINISHED} | fields
    return ApplicationView(application_id=APP, attempt=1, appname="my run/1", **given)


def board(place: Path, known: KnownApplications) -> tuple[BoardFiles, list[str]]:
    (place / "board").mkdir()
    notes: list[str] = []
    return BoardFiles(cast(Client, known), [APP], str(place / "board"), notes.append), notes


def copies(place: Path) -> dict[str, str]:
    """Return what TensorBoard would read: the path of each file below the run's directory, and its content."""
    runs = place / "board/runs"
    found = {str(path.relative_to(runs)): path.read_text() for path in runs.rglob("*") if path.is_file()}
    name = "my-run-1-1700000000000_0042/"
    assert all(item.startswith(name) for item in found)
    return {one.removeprefix(name): text for one, text in found.items()}


def test_only_event_files_are_copied_with_the_directories_that_they_are_in(tmp_path: Path) -> None:
    (tmp_path / "out/a/b").mkdir(parents=True)
    for name in (EVENTS, f"a/b/{EVENTS}", "a/model.bin", "tfevents"):
        (tmp_path / "out" / name).write_text(name)
    (tmp_path / "out/a/tfevents-link").symlink_to("/etc/passwd")
    files, notes = board(tmp_path, KnownApplications(ended(tmp_path / "out")))
    assert not files.refresh(), "nothing more is written"
    assert copies(tmp_path) == {name: name for name in (EVENTS, f"a/b/{EVENTS}", "tfevents")}
    assert notes == []


def test_files_of_a_running_application_grow_and_are_replaced(tmp_path: Path) -> None:
    container = ContainerView(
        container_id=ContainerId(APP, 1, 2),
        role="worker",
        role_index=0,
        index=0,
        phase=Phase.RUNNING,
        log_url=file_location(str(tmp_path / "container")),
    )
    output = OutputView(name="", target=file_location(str(tmp_path / "out")))
    view = ended(tmp_path, state=State.RUNNING, containers=(container,), outputs=(output,))
    spec = AppSpec(
        username="t",
        appname="a",
        workspace="/w",
        script="s",
        outputs=(OutputSpec(output_path="output", target=output.target),),
    )
    known = KnownApplications(view, spec)
    files, notes = board(tmp_path, known)
    assert files.refresh(), "there is nothing yet"
    events = tmp_path / "container/workspace/output" / EVENTS
    events.parent.mkdir(parents=True)
    events.write_text("one")
    assert files.refresh()
    copy = next((tmp_path / "board").rglob(EVENTS))
    inode = copy.stat().st_ino
    events.write_text("one, two")
    assert files.refresh()
    assert copies(tmp_path) == {EVENTS: "one, two"}
    assert copy.stat().st_ino == inode, "TensorBoard has it open and reads on"
    events.write_text("new")
    assert files.refresh()
    assert copies(tmp_path) == {EVENTS: "new"}
    known.view = replace(view, state=State.FINISHED, outputs=(replace(output, committed=True),))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / EVENTS).write_text("new and the rest")
    assert not files.refresh()
    assert copies(tmp_path) == {EVENTS: "new and the rest"}
    assert notes == []


def running(tmp_path: Path, known: type[KnownApplications], **fields: Any) -> KnownApplications:
    """An application whose container runs on another machine."""
    container = ContainerView(
        container_id=ContainerId(APP, 1, 2),
        role="worker",
        role_index=0,
        index=0,
        phase=Phase.RUNNING,
        log_url="http://node7:8042/logs",
    )
    view = ended(tmp_path, state=State.RUNNING, containers=(container,), outputs=())
    return known(view, AppSpec(username="t", appname="a", workspace="/w", script="s", **fields))


def test_files_of_a_remote_container_use_a_stream_of_its_task(tmp_path: Path) -> None:
    known = cast(
        ReachableApplications,
        running(tmp_path, ReachableApplications, outputs=(OutputSpec(output_path="out/put", target="hdfs:///out"),)),
    )
    known.home = tmp_path / "container"
    files, notes = board(tmp_path, known)
    assert files.refresh()
    output = known.home / "workspace/out/put"
    (output / "run").mkdir(parents=True)
    (output / "run/link.tfevents").symlink_to("/etc/passwd")
    (output / "linked").symlink_to("/etc")
    (output / "weights").write_text("large")
    for text in ("one", "one, two", "new"):
        (output / "run" / EVENTS).write_text(text)
        (output / EVENTS).write_text(f"0{text}")
        assert files.refresh()
        assert copies(tmp_path) == {f"run/{EVENTS}": text, EVENTS: f"0{text}"}
    assert notes == []


@pytest.mark.parametrize("path", ["../secrets", "/etc", "", 7, None, "linked"])
def test_a_stream_shows_only_files_of_the_workspace(tmp_path: Path, path: object) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/linked").symlink_to("/etc")
    left, right = socket.socketpair()
    with left, right, pytest.raises(StreamRefused):
        serve(cast(Stream, ContainerEnd(right, {"path": path}, PayloadPlace(directory=str(tmp_path)))))


@pytest.mark.parametrize(
    "answer",
    [b"", b"x\n", b"{}\n", b'[["../tfevents", 3]]\n', b'[["/tfevents", 3], [7, 7], ["a/tfevents"]]\n', b"[" * 10_000],
)
def test_file_lists_of_a_task_are_validated(tmp_path: Path, answer: bytes) -> None:
    class Strange(ReachableApplications):
        def _open(self, *_: object) -> socket.socket:
            ours, theirs = socket.socketpair()
            with theirs:
                theirs.sendall(answer)
            return ours

    output = OutputSpec(output_path="output", target="hdfs:///out")
    files, _ = board(tmp_path, running(tmp_path, Strange, outputs=(output,)))
    assert files.refresh()
    assert copies(tmp_path) == {}
    assert not list(tmp_path.rglob("*tfevents*"))


def test_the_newest_checkpoint_of_an_unreachable_application_is_copied(tmp_path: Path) -> None:
    target = file_location(str(tmp_path / "checkpoints"))
    output = OutputSpec(output_path="output", target="hdfs:///out")
    checkpoint = CheckpointSpec(path="model", target=target)
    files, notes = board(tmp_path, running(tmp_path, KnownApplications, outputs=(output,), checkpoint=checkpoint))
    assert files.refresh()
    model = tmp_path / "model"
    (model / "logs").mkdir(parents=True)
    with open_store(f"{target}/{APP}") as place:
        stored = Checkpoints(place, 3, lambda _: None)
        for text in ("one", "one, two"):
            (model / "logs" / EVENTS).write_text(text)
            (model / "weights").write_text("large")
            stored.store(str(model))
            assert files.refresh()
            assert copies(tmp_path) == {f"checkpoint/logs/{EVENTS}": text}
    assert notes == [f"{APP}: only its checkpoints are shown while it runs: its token is not here"]


@pytest.mark.proves("board-files")
@pytest.mark.parametrize("field", ["output", "role"])
@pytest.mark.parametrize("name", ["{outside}", "../../../outside", "a/../../../../outside", "..", "a//b", "a\nb"])
def test_a_view_of_another_user_gets_no_file_written_outside_of_the_run(tmp_path: Path, name: str, field: str) -> None:
    outside, theirs = tmp_path / "outside", tmp_path / "theirs/workspace/output"
    for directory in (outside, theirs):
        directory.mkdir(parents=True)
    (theirs / EVENTS).write_text("of mallory, and long")
    (outside / EVENTS).write_text("mine")
    name = name.format(outside=outside)
    known = running(tmp_path, KnownApplications, outputs=(OutputSpec(output_path="output", target="hdfs:///out"),))
    if field == "output":
        output = OutputView(name=name, target=file_location(str(theirs)), committed=True)
        known.view = replace(known.view, outputs=(output,), containers=())
    else:
        one = replace(known.view.containers[0], log_url=file_location(str(tmp_path / "theirs")))
        known.view = replace(known.view, containers=(replace(one, role=f"{name}/x", index=1), replace(one, role="b")))
    files, notes = board(tmp_path, known)
    files.refresh()
    files.refresh()
    assert [path.name for path in outside.iterdir()] == [EVENTS]
    assert (outside / EVENTS).read_text() == "mine"
    assert copies(tmp_path) == ({} if field == "output" else {f"b_0/{EVENTS}": "of mallory, and long"})
    assert len(notes) == 1
    assert "is no name that an output or a role can have" in notes[0]


@pytest.mark.parametrize("location", ["http://127.0.0.1:{port}/x", "ftp://127.0.0.1:{port}/x", "memory://x/y"])
def test_a_view_of_another_user_triggers_no_request_to_its_addresses(tmp_path: Path, location: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        target = location.format(port=server.getsockname()[1])
        view = ended(tmp_path, outputs=(OutputView(name="", target=target, committed=True),))
        known = KnownApplications(view)
        known.own = False
        files, notes = board(tmp_path, known)
        files.refresh()
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(notes) == 1
    assert f"of another user's application only files and the cluster's HDFS are read, not {target!r}" in notes[0]


@pytest.mark.proves("board-files")
def test_a_copy_that_became_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / EVENTS).write_text("one")
    (tmp_path / "mine").write_text("mine")
    files, notes = board(tmp_path, KnownApplications(ended(tmp_path / "out", state=State.RUNNING)))
    assert files.refresh()
    copy = next((tmp_path / "board").rglob(EVENTS))
    copy.unlink()
    copy.symlink_to(tmp_path / "mine")
    (tmp_path / "out" / EVENTS).write_text("one, two")
    assert files.refresh()
    assert (tmp_path / "mine").read_text() == "mine"
    assert len(notes) == 1


def test_files_above_the_limit_are_skipped_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "MAX_BYTES", 10)
    (tmp_path / "out").mkdir()
    for number in range(5):
        (tmp_path / f"out/tfevents.{number}").write_text("1234")
    files, notes = board(tmp_path, KnownApplications(ended(tmp_path / "out")))
    files.refresh()
    assert len(copies(tmp_path)) <= 3
    assert len(notes) == 1
    assert "are left out" in notes[0]


def test_unreadable_applications_are_reported_once_and_others_shown(tmp_path: Path) -> None:
    class Away(KnownApplications):
        def status(self, _: ApplicationId) -> ApplicationView:
            raise DlappError("not now")

    files, notes = board(tmp_path, Away(ended(tmp_path)))
    assert files.refresh()
    assert files.refresh()
    assert notes == [f"{APP}: not now"]


def test_without_tensorboard_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", missing())
    with pytest.raises(NotFound, match="python3"):
        TensorBoardProcess(str(tmp_path), str(tmp_path), None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with (
        pytest.raises(NotFound, match="tensorboard is not installed here"),
        TensorBoardProcess(str(tmp_path), str(tmp_path), None),
    ):
        pass
