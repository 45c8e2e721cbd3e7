"""Links out of an output: what they lead to in the workspace is stored with it, and everything else is named."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.storage import tree
from dlapp.storage.local import LocalFiles
from dlapp.storage.values import FileTotals, Workspace

SEEN_AS = "/dlapp/workspace"
HOW = pytest.mark.parametrize("move", [True, False], ids=["moved", "copied"])


class Stored:
    """An output of a workspace, and what was stored of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.workspace, self.part = tmp_path / "workspace", tmp_path / "far" / "part"
        self.output = self.workspace / "output"
        self.output.mkdir(parents=True)
        self.left_out: dict[str, str] = {}
        self.linked: set[str] = set()

    def write(self, **contents: str) -> None:
        for name, content in contents.items():
            self.file(name, content)

    def file(self, name: str, content: str = "") -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content or name)
        return path

    def link(self, name: str, text: str) -> None:
        (self.output / name).parent.mkdir(parents=True, exist_ok=True)
        (self.output / name).symlink_to(text)

    def store(self, *, move: bool, mounted: tuple[str, ...] = ()) -> FileTotals:
        around = Workspace(str(self.workspace), (SEEN_AS,), mounted, self.linked.add)
        location = f"file://{self.part}"
        return LocalFiles().store(
            str(self.output),
            location,
            move=move,
            workspace=around,
            left_out=lambda item: self.left_out.update([item]),
        )

    def contents(self) -> dict[str, str]:
        """Return the files of the part by name; a link is named with its target."""
        found = {}
        for path in sorted(self.part.rglob("*")):
            name = str(path.relative_to(self.part))
            if path.is_symlink():
                found[name] = f"-> {os.readlink(path)}"
            elif path.is_file():
                found[name] = path.read_text()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@HOW
@pytest.mark.parametrize(
    "text",
    [
        "../checkpoints/e5.pt",
        "../checkpoints/../checkpoints/./e5.pt",
        f"{SEEN_AS}/checkpoints/e5.pt",
        "../latest",
        f"{SEEN_AS}/first",
        "../saved/e5.pt",
    ],
    ids=[
        "relative",
        "with dots",
        "as a container sees it",
        "to a link",
        "to a chain of links",
        "through a linked directory",
    ],
)
def test_a_link_to_a_file_of_the_workspace_is_stored_as_its_content(place: Stored, move: bool, text: str) -> None:
    model = place.file("checkpoints/e5.pt", "weights")
    model.chmod(0o640)
    os.utime(model, ns=(0, 1_500_000_000_000_000_000))
    for name, to in {"latest": "checkpoints/e5.pt", "first": f"{SEEN_AS}/latest", "saved": "checkpoints"}.items():
        (place.workspace / name).symlink_to(to)
    place.link("best.pt", text)
    place.file("output/log", "losses")
    assert place.store(move=move) == (2, len("weights") + len("losses"))
    assert place.contents() == {"best.pt": "weights", "log": "losses"}
    status = (place.part / "best.pt").stat()
    assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o640, 1_500_000_000_000_000_000)
    assert (place.left_out, place.linked) == ({}, {"checkpoints/e5.pt"})


@HOW
def test_a_link_with_the_path_on_the_host_is_stored_as_its_content(place: Stored, move: bool) -> None:
    place.link("best.pt", str(place.file("checkpoints/e5.pt", "weights")))
    place.store(move=move)
    assert place.contents() == {"best.pt": "weights"}


@HOW
def test_a_link_to_a_directory_is_stored_with_all_that_it_has(place: Stored, move: bool) -> None:
    place.write(**{"runs/3/model": "weights", "runs/3/logs/1": "losses", "common/vocabulary": "words"})
    (place.workspace / "runs/3/latest").symlink_to("logs/1")
    (place.workspace / "runs/3/vocabulary").symlink_to("../../common/vocabulary")
    (place.workspace / "runs/3/far").symlink_to("/etc/passwd")
    (place.workspace / "runs/3/empty").mkdir()
    os.mkfifo(place.workspace / "runs/3/pipe")
    (place.workspace / "runs/3/logs").chmod(0o550)
    place.link("deep/latest", "../../runs/3")
    assert place.store(move=move).files == 3
    assert place.contents() == {
        "deep/latest/latest": "-> logs/1",
        "deep/latest/logs/1": "losses",
        "deep/latest/model": "weights",
        "deep/latest/vocabulary": "words",
    }
    assert (place.part / "deep/latest/empty").is_dir()
    assert (place.part / "deep/latest/logs").stat().st_mode & 0o777 == 0o550
    assert not (place.part / "deep/latest").is_symlink()
    assert place.left_out == {
        "deep/latest/far": "a link out of the workspace, to /etc/passwd",
        "deep/latest/pipe": "a FIFO",
    }


@HOW
def test_links_that_stay_inside_stay_links_and_those_by_the_name_of_the_output_become_such(
    place: Stored, move: bool
) -> None:
    place.file("output/checkpoints/10", "weights")
    for name, text in {
        "last": "checkpoints/10",
        "logs/by name": "../../output/checkpoints",
        "absolute": f"{SEEN_AS}/output/checkpoints/10",
        "gone": "checkpoints/11",
    }.items():
        place.link(name, text)
    place.store(move=move)
    assert place.contents() == {
        "absolute": "-> checkpoints/10",
        "checkpoints/10": "weights",
        "gone": "-> checkpoints/11",
        "last": "-> checkpoints/10",
        "logs/by name": "-> ../checkpoints",
    }
    assert (place.left_out, place.linked) == ({}, set())


@HOW
def test_files_that_cannot_be_stored_are_named_with_the_reason(place: Stored, move: bool, tmp_path: Path) -> None:
    (tmp_path / "beside").write_text("not the workspace's")
    place.file("data/mounted/inner", "an empty mount point on the host")
    os.mkfifo(place.workspace / "pipe")
    os.mkfifo(place.output / "pipe")
    (place.workspace / "ping").symlink_to("pong")
    (place.workspace / "pong").symlink_to("ping")
    (place.workspace / "out").symlink_to("..")
    for name, text in {
        "absolute": "/etc/passwd",
        "above": "../..",
        "at": f"{SEEN_AS}else/x",
        "by a link": "../out/beside",
        "by dots": "../../beside",
        "circle": "../ping",
        "gone": "../nothing",
        "input": "../data/mounted/inner",
        "the whole workspace": "..",
        "to a FIFO": "../pipe",
    }.items():
        place.link(name, text)
    with socket.socket(socket.AF_UNIX) as one:
        fd = os.open(place.output, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{fd}/socket")
        os.close(fd)
    place.store(move=move, mounted=("data/mounted",))
    assert place.contents() == {}
    assert place.left_out == {
        "absolute": "a link out of the workspace, to /etc/passwd",
        "above": "a link out of the workspace, to ../..",
        "at": "a link out of the workspace, to /dlapp/workspaceelse/x",
        "by a link": "a link out of the workspace, to ../out/beside",
        "by dots": "a link out of the workspace, to ../../beside",
        "circle": "a link to links in a circle, ../ping",
        "gone": "a link to nothing, ../nothing",
        "input": "a link to a mounted input, ../data/mounted/inner",
        "pipe": "a FIFO",
        "socket": "a socket",
        "the whole workspace": "a link to a directory above it, ..",
        "to a FIFO": "a link to a FIFO, ../pipe",
    }


@HOW
def test_a_mounted_input_in_a_linked_directory_is_named_and_its_neighbours_are_stored(
    place: Stored, move: bool
) -> None:
    place.file("data/made", "features")
    (place.workspace / "data/images").mkdir()
    for name in ("data/labels.csv", "data/deep/words"):  # Docker makes an empty file to mount a file on
        place.file(name).write_text("")
    place.link("data", "../data")
    place.store(move=move, mounted=("data/images", "data/labels.csv", "data/deep/words"))
    assert place.contents() == {"data/made": "features"}
    assert place.left_out == dict.fromkeys(("data/images", "data/labels.csv", "data/deep/words"), "a mounted input")


@HOW
def test_a_link_to_too_many_files_is_named_and_not_stored_dangling(
    place: Stored, move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_LINKED", 2)
    place.write(**{"many/1": "", "many/2": "", "many/3": "", "output/log": "losses"})
    place.link("many", "../many")
    place.store(move=move)
    assert place.contents() == {"log": "losses"}
    assert list(place.left_out) == ["many"]
    assert place.linked == set()


@HOW
def test_directories_that_link_to_each_other_end(place: Stored, move: bool) -> None:
    place.write(**{"a/x": "1", "b/y": "2"})
    (place.workspace / "a/b").symlink_to("../b")
    (place.workspace / "b/a").symlink_to("../a")
    (place.workspace / "b/output").symlink_to("../output")
    place.link("a", "../a")
    place.store(move=move)
    assert place.contents() == {"a/b/y": "2", "a/x": "1"}
    assert place.left_out == {
        "a/b/a": "a link to a directory above it, ../a",
        "a/b/output": "a link to a directory above it, ../output",
    }


@HOW
def test_links_that_multiply_end_and_the_rest_of_the_output_is_stored(
    place: Stored, move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_LINKED", 50)
    for level in range(30):
        directory = place.workspace / f"level{level}"
        directory.mkdir()
        for name in ("left", "right"):
            (directory / name).symlink_to(f"../level{level + 1}")
    place.file("level30", "bottom")
    place.link("bomb", "../level0")
    place.file("output/z", "after it")
    assert place.store(move=move).files < 60
    assert place.contents()["z"] == "after it"
    assert "a directory behind links, which have more than 50 files" in place.left_out.values()


@HOW
def test_hard_links_are_stored_as_the_files_that_they_are(place: Stored, move: bool) -> None:
    model = place.file("checkpoints/e5.pt", "weights")
    for name in ("best.pt", "last.pt"):
        os.link(model, place.output / name)
    assert place.store(move=move).files == 2
    assert place.contents() == {"best.pt": "weights", "last.pt": "weights"}
    assert place.left_out == {}


def test_moving_needs_no_space_for_link_targets(place: Stored) -> None:
    model = place.file("checkpoints/e5.pt", "weights")
    place.link("best.pt", "../checkpoints/e5.pt")
    place.store(move=True)
    assert (place.part / "best.pt").stat().st_ino == model.stat().st_ino


@pytest.mark.parametrize("error", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_without_hard_links_all_is_copied_and_a_failed_try_loses_no_file(
    place: Stored, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    place.write(**{"runs/3/model": "weights", "checkpoints/e5.pt": "best"})
    place.link("best.pt", "../checkpoints/e5.pt")
    place.link("run", "../runs/3")
    before = sorted(os.listdir(place.workspace))

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        patched.setattr("dlapp.storage.local.free_bytes", lambda _: 0)
        with pytest.raises(DlappError, match=r"more than .* can take"):
            place.store(move=True)
        assert sorted(os.listdir(place.workspace)) == before
        patched.undo()
        patched.setattr(os, "link", refuse)
        place.store(move=True)
    assert place.contents() == {"best.pt": "best", "run/model": "weights"}


@HOW
def test_a_file_that_vanishes_after_it_was_listed_fails_the_try_and_leaves_the_rest(
    place: Stored, move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(**{"checkpoints/e5.pt": "best", "output/log": "losses"})
    place.link("best.pt", "../checkpoints/e5.pt")
    list_nodes = tree.nodes_to_store

    def listed(*args: object, **options: object) -> object:
        found = list_nodes(*args, **options)  # type: ignore[arg-type]
        (place.workspace / "checkpoints/e5.pt").unlink(missing_ok=True)
        return found

    monkeypatch.setattr("dlapp.storage.local.nodes_to_store", listed)
    with pytest.raises(DlappError, match=r"No such file|cannot be (read|written)"):
        place.store(move=move)
    monkeypatch.setattr("dlapp.storage.local.nodes_to_store", list_nodes)
    place.store(move=move)
    assert place.contents() == {"log": "losses"}
    assert place.left_out == {"best.pt": "a link to nothing, ../checkpoints/e5.pt"}


@HOW
def test_a_file_that_grows_after_it_was_listed_is_not_stored_half(
    place: Stored, move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.file("checkpoints/e5.pt", "best")
    place.link("best.pt", "../checkpoints/e5.pt")
    list_nodes = tree.nodes_to_store

    def listed(*args: object, **options: object) -> object:
        found = list_nodes(*args, **options)  # type: ignore[arg-type]
        model.write_text("best and more")
        return found

    monkeypatch.setattr("dlapp.storage.local.nodes_to_store", listed)
    if move:
        place.store(move=True)
        assert place.contents() == {"best.pt": "best and more"}
    else:
        with pytest.raises(DlappError, match=r"e5\.pt changed while it was copied"):
            place.store(move=False)
