from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.locations import local_path, shown
from dlapp.storage import fetch_plan
from dlapp.storage import local as files_module
from dlapp.storage import tree as tree_module
from dlapp.storage.local import LocalFiles
from dlapp.storage.open import open_location
from dlapp.storage.values import DiskFull, MatchedEntry, TreeNode, Workspace
from dlapp.system.files import UntrustedFile, remove_tree
from tests.storage.fetching import fetch_entries, fetch_sources

FILES = LocalFiles()


def location(path: Path | str) -> str:
    return f"file://{path}"


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


def listing(root: Path) -> list[str]:
    return sorted(f"{path.relative_to(root)}{'/' if path.is_dir() else ''}" for path in root.rglob("*"))


# ---- locations ----


@pytest.mark.parametrize("name", ["a b", "50%25", "x#y", "a+b", "한글", "new\nline", "latin-\udce9", "?q=1", "c:d"])
def test_a_name_survives_in_its_location_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("content")
    assert local_path(location(tmp_path / name)) == str(tmp_path / name)
    assert FILES.exists(location(tmp_path / name))
    escaped = "".join("\\" + char for char in name)
    assert FILES.matches(location(f"{tmp_path}/{escaped}")) == [MatchedEntry(location(tmp_path / name), False, 7)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("/data", "is not a location, such as file:///data/train"),
        ("file://data", "after file:// comes an absolute path"),
        ("hdfs://host/data", "no HDFS is configured"),
        ("file:///a\0b", "after file://"),
    ],
)
def test_an_unsupported_location_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        open_location(text)


def test_a_name_is_shown_on_one_line() -> None:
    assert shown("a b/한글") == "a b/한글"
    assert shown("a\nb\udce9") == "'a\\nb\\udce9'"


# ---- fetch ----


def test_sources_are_placed_like_by_hdfs_get(tmp_path: Path) -> None:
    fill(tmp_path / "lake", "train/1", "train/deep/2", "train/empty/", "test/.hidden", "test/3", "single")
    lake, into = location(tmp_path / "lake"), tmp_path / "workspace" / "data"
    progress_calls: list[tuple[int, int]] = []
    moved = fetch_sources(
        [f"{lake}/train", f"{lake}/test/*", f"{lake}/single"],
        str(into),
        progress=lambda *progress: progress_calls.append(progress),
    )
    assert listing(into) == [
        ".hidden",
        "3",
        "single",
        "train/",
        "train/1",
        "train/deep/",
        "train/deep/2",
        "train/empty/",
    ]
    assert moved == (5, sum(path.stat().st_size for path in into.rglob("*") if path.is_file()))
    assert progress_calls[-1] == (moved.size_bytes, moved.size_bytes)


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"file:///.*/none/\*: nothing is there"):
        fetch_sources([f"{location(tmp_path)}/none/*"], str(tmp_path / "into"))
    assert not (tmp_path / "into").exists()


def test_a_workspace_directory_accepts_new_files_without_overwriting(tmp_path: Path) -> None:
    fill(tmp_path / "lake", "train/1", "train/2")
    fill(tmp_path / "workspace", "data/train/mine")
    fetch_sources([f"{location(tmp_path)}/lake/train"], str(tmp_path / "workspace/data"))
    assert listing(tmp_path / "workspace") == [
        "data/",
        "data/train/",
        "data/train/1",
        "data/train/2",
        "data/train/mine",
    ]
    fill(tmp_path / "other", "data/train/2")
    with pytest.raises(DlappError, match=r"lake/train/2 cannot be fetched: .*other/data/train/2 already exists"):
        fetch_sources([f"{location(tmp_path)}/lake/train"], str(tmp_path / "other/data"))
    assert listing(tmp_path / "other") == ["data/", "data/train/", "data/train/2"]


def test_two_sources_that_would_land_on_each_other_are_named_before_anything_is_written(tmp_path: Path) -> None:
    fill(tmp_path, "one/x", "two/x")
    with pytest.raises(DlappError, match=r"two/x and .*one/x would both be placed at .*/into/x"):
        fetch_sources([f"{location(tmp_path)}/*/x"], str(tmp_path / "into"))
    assert not (tmp_path / "into").exists()


def test_links_out_of_a_source_are_replaced_by_their_targets(tmp_path: Path) -> None:
    fill(tmp_path, "big disk/images/1", "big disk/images/2", "big disk/labels", "lake/set/own")
    lake = tmp_path / "lake" / "set"
    (lake / "images").symlink_to("../../big disk/images")
    (lake / "labels").symlink_to(tmp_path / "big disk/labels")
    (lake / "inside").symlink_to(lake / "own")
    (tmp_path / "big disk/images/same").symlink_to("1")
    fetch_sources([location(lake)], str(tmp_path / "into"))
    into = tmp_path / "into/set"
    assert listing(into) == ["images/", "images/1", "images/2", "images/same", "inside", "labels", "own"]
    assert not (into / "images").is_symlink()
    assert not (into / "labels").is_symlink()
    assert os.readlink(into / "inside") == "own"
    assert os.readlink(into / "images/same") == "1"


def test_link_loops_and_dangling_links_are_errors(tmp_path: Path) -> None:
    fill(tmp_path, "a/x", "b/y", "c/z", "d/")
    (tmp_path / "a/b").symlink_to("../b")
    (tmp_path / "b/a").symlink_to("../a")
    (tmp_path / "c/gone").symlink_to("../gone")
    os.mkfifo(tmp_path / "d/pipe")
    for name, problem in {
        "a": "is a link to a directory above it",
        "c": "c/gone cannot be read",
        "d": "d/pipe is neither .* but a FIFO",
    }.items():
        with pytest.raises(DlappError, match=problem):
            fetch_sources([f"{location(tmp_path)}/{name}"], str(tmp_path / "into"))
    assert not (tmp_path / "into").exists()


def test_fetched_files_are_writable_whatever_their_permissions(tmp_path: Path) -> None:
    fill(tmp_path / "lake", "set/deep/x")
    (tmp_path / "lake/set/deep/x").chmod(0o555)
    (tmp_path / "lake/set/deep").chmod(0o555)
    try:
        fetch_sources([f"{location(tmp_path)}/lake/set"], str(tmp_path / "into"))
    finally:
        (tmp_path / "lake/set/deep").chmod(0o755)
    assert (tmp_path / "into/set/deep").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "into/set/deep/x").stat().st_mode & 0o777 == 0o755


def test_free_space_is_checked_before_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "lake/x")
    monkeypatch.setattr(fetch_plan, "free_bytes", lambda path: 3)
    with pytest.raises(DiskFull, match=r"the input has 6 bytes, more than .*/into can take"):
        fetch_sources([f"{location(tmp_path)}/lake/x"], str(tmp_path / "into"))
    assert not (tmp_path / "into").exists()


def test_a_source_that_changes_size_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "lake/x")
    (entry,) = FILES.matches(f"{location(tmp_path)}/lake/x")
    real = tree_module.nodes_to_fetch

    def then_it_grows(top: str) -> list[TreeNode]:
        nodes = real(top)
        (tmp_path / "lake/x").write_text("longer than before")
        return nodes

    monkeypatch.setattr(files_module, "nodes_to_fetch", then_it_grows)
    with pytest.raises(DlappError, match=r"lake/x changed while it was copied: it had 6 bytes"):
        fetch_entries(FILES, [entry], str(tmp_path / "into"))


@pytest.mark.parametrize("within", [True, False], ids=["one file system", "two file systems"])
@pytest.mark.parametrize("size", [0, 1, 10_000, (3 << 20) + 1])
def test_copies_are_exact_and_keep_holes(tmp_path: Path, size: int, within: bool) -> None:
    shared = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(dir=tmp_path if within else shared) as other:
        (tmp_path / "x").write_bytes(os.urandom(size))
        with open(tmp_path / "sparse", "wb") as file:
            file.seek(1 << 30)
            file.write(b"middle")
            file.truncate((1 << 31) + size)
        fetch_sources([f"{location(tmp_path)}/{name}" for name in ("x", "sparse")], f"{other}/into")
        assert Path(f"{other}/into/x").read_bytes() == (tmp_path / "x").read_bytes()
        status = os.stat(f"{other}/into/sparse")
        assert status.st_size == (1 << 31) + size
        assert status.st_blocks * 512 < 10 << 20
        with open(f"{other}/into/sparse", "rb") as file:
            file.seek((1 << 30) - 2)
            assert file.read(10) == b"\0\0middle\0\0"


# ---- store ----


def test_moving_renames_and_copying_leaves_the_original(tmp_path: Path) -> None:
    fill(tmp_path, "output/model", "output/logs/1")
    inode = os.stat(tmp_path / "output/model").st_ino
    assert FILES.store(str(tmp_path / "output"), location(tmp_path / "far/part")) == (2, 25)
    assert listing(tmp_path / "output") == listing(tmp_path / "far/part") == ["logs/", "logs/1", "model"]
    assert FILES.store(str(tmp_path / "output"), location(tmp_path / "far/part"), move=True) == (2, 25)
    assert not (tmp_path / "output").exists()
    assert os.stat(tmp_path / "far/part/model").st_ino == inode


def test_a_part_of_an_earlier_try_is_replaced_as_a_whole(tmp_path: Path) -> None:
    fill(tmp_path, "output/new", "far/part/old")
    FILES.store(str(tmp_path / "output"), location(tmp_path / "far/part"))
    assert listing(tmp_path / "far/part") == ["new"]


def test_an_output_may_be_one_file(tmp_path: Path) -> None:
    fill(tmp_path, "score")
    assert FILES.store(str(tmp_path / "score"), location(tmp_path / "far/score"), move=True) == (1, 5)
    assert (tmp_path / "far/score").read_text() == "score"


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("path", ["output", "above/model"])
def test_a_link_on_the_way_to_an_output_is_not_followed(tmp_path: Path, path: str, move: bool) -> None:
    fill(tmp_path, "elsewhere/model")
    (tmp_path / path.partition("/")[0]).symlink_to("elsewhere")
    with pytest.raises(UntrustedFile, match=f"{path}: leads to .*/elsewhere"):
        FILES.store(str(tmp_path / path), location(tmp_path / "far/part"), move=move)
    assert listing(tmp_path / "elsewhere") == ["model"]


def test_an_output_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "output")
    with pytest.raises(DlappError, match="output cannot be stored: it is a FIFO"):
        FILES.store(str(tmp_path / "output"), location(tmp_path / "far/part"))


def test_an_output_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"/output: there is no such file or directory to store"):
        FILES.store(str(tmp_path / "output"), location(tmp_path / "far/part"))
    assert not (tmp_path / "far").exists()


@pytest.mark.parametrize("move", [True, False], ids=["moved", "copied"])
def test_links_stay_valid_and_unstorable_files_are_noted(
    tmp_path: Path, move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "output/checkpoints/10", "secret")
    output = tmp_path / "output"
    (output / "latest").symlink_to("checkpoints/10")
    (output / "best").symlink_to("/dlapp/workspace/output/checkpoints/10")  # as a payload in Docker saw it
    (output / "host").symlink_to(output / "checkpoints")
    (output / "out").symlink_to(tmp_path / "secret")
    os.mkfifo(output / "pipe")
    monkeypatch.chdir(output)
    notes: list[str] = []
    left_out: list[tuple[str, str]] = []
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("sock")
        moved = FILES.store(
            str(output),
            location(tmp_path / "far/part"),
            move=move,
            workspace=Workspace(str(output), ("/dlapp/workspace/output",)),
            note=notes.append,
            left_out=left_out.append,
        )
    part = tmp_path / "far/part"
    links = {name: os.readlink(part / name) for name in os.listdir(part) if (part / name).is_symlink()}
    assert links == {"latest": "checkpoints/10", "best": "checkpoints/10", "host": "checkpoints"}
    assert sorted(os.listdir(part)) == ["best", "checkpoints", "host", "latest"]
    assert moved == (1, len("output/checkpoints/10"))
    assert left_out == [
        ("out", f"a link out of the output, to {tmp_path}/secret"),
        ("pipe", "a FIFO"),
        ("sock", "a socket"),
    ]
    assert notes == [f"{output}/{name} is not stored: it is {reason}" for name, reason in left_out]


def test_a_write_protected_output_is_stored_and_can_be_moved_on_by_its_owner(tmp_path: Path) -> None:
    for move in (True, False):
        fill(tmp_path, "output/deep/x")
        for name in ("output/deep/x", "output/deep", "output"):
            (tmp_path / name).chmod(0o555 if name != "output/deep/x" else 0o444)
        FILES.store(str(tmp_path / "output"), location(tmp_path / "far/part"), move=move)
        part = tmp_path / "far/part"
        assert [os.stat(part / name).st_mode & 0o777 for name in ("", "deep", "deep/x")] == [0o755, 0o555, 0o444]
        os.rename(part, tmp_path / "moved on")
        FILES.remove(location(tmp_path / "moved on"))
        FILES.remove(location(tmp_path / "output"))
        assert os.listdir(tmp_path) == ["far"]


# ---- remove, check_writable ----


def test_removing_follows_no_link_and_may_be_repeated(tmp_path: Path) -> None:
    fill(tmp_path, "keep/x", "go/deep/er/y", "file")
    (tmp_path / "go/link").symlink_to("../keep")
    (tmp_path / "link").symlink_to("keep")
    for name in ("go", "link", "file", "go", "never was"):
        FILES.remove(location(tmp_path / name))
    assert listing(tmp_path) == ["keep/", "keep/x"]


def test_a_tree_deeper_than_python_recurses_is_removed(tmp_path: Path) -> None:
    here = str(tmp_path / "deep")
    for _ in range(1100):
        os.makedirs(here)
        here += "/d"
    remove_tree(str(tmp_path / "deep"))
    assert os.listdir(tmp_path) == []


def test_a_writable_target_passes_and_the_check_leaves_no_file(tmp_path: Path) -> None:
    fill(tmp_path, "there/old")
    for name in ("new", "many/levels/down", "there"):
        FILES.check_writable(location(tmp_path / name))
    assert listing(tmp_path) == ["there/", "there/old"]


def test_impossible_targets_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, "file")
    with pytest.raises(UsageError, match="is not a directory"):
        FILES.check_writable(location(tmp_path / "file/below"))
    for mount in ("/", "/proc"):
        with pytest.raises(UsageError, match="is a mount point"):
            FILES.check_writable(location(mount))
    with pytest.raises((Denied, NotFound, DlappError), match="cannot be written"):
        FILES.check_writable(location("/proc/results"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; the next test becomes somebody else")
def test_a_target_in_a_closed_directory_is_denied(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(Denied, match=r"closed cannot be written: Permission denied"):
        FILES.check_writable(location(tmp_path / "closed/run"))


@pytest.mark.root
def test_a_target_of_another_user_is_denied() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        os.mkdir(f"{name}/sticky")
        os.chmod(f"{name}/sticky", 0o1777)
        os.mkdir(f"{name}/sticky/run")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            for target in (f"{name}/run", f"{name}/sticky/run", f"{name}/sticky/mine"):
                try:
                    FILES.check_writable(location(target))
                    os.write(writing, b"fine\n")
                except BaseException as error:
                    os.write(writing, f"{type(error).__name__} {error}\n".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as output:
            lines = output.read().splitlines()
        os.waitpid(child, 0)
        assert lines == [
            f"Denied {name} cannot be written: Permission denied",
            f"Denied file://{name}/sticky/run belongs to another user, and {name}/sticky lets only owners replace",
            "fine",
        ]
