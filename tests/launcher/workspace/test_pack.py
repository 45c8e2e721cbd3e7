from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from dlapp.errors import UsageError
from dlapp.launcher.workspace import gzip_blocks
from dlapp.launcher.workspace.pack import Packed, Scan, pack, scan_workspace

LIMIT = 1 << 30


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "user dev workspace"
    root.mkdir()
    return root


def fill(root: Path, *names: str, content: str = "x") -> None:
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def packed(root: Path, *, limit: int = LIMIT) -> Packed:
    return pack(scan_workspace(str(root)), str(root.parent / "cache"), limit_bytes=limit)


def names(scan: Scan) -> list[str]:
    return [entry.name for entry in scan.entries]


def members(archive: str) -> list[tarfile.TarInfo]:
    with tarfile.open(archive) as tar:
        return tar.getmembers()


# ---- what is packed ----


def test_the_archive_is_named_by_its_digest_and_alone_in_the_cache(workspace: Path) -> None:
    fill(workspace, "dl_app_start.sh", "data/", "examples/mnist/readme")
    done = packed(workspace)
    assert done.archive == f"{workspace.parent}/cache/{done.digest}.tar.gz"
    assert os.listdir(workspace.parent / "cache") == [f"{done.digest}.tar.gz"]
    assert [(member.name, member.type, member.uid, member.uname) for member in members(done.archive)] == [
        ("data", tarfile.DIRTYPE, 0, ""),
        ("dl_app_start.sh", tarfile.REGTYPE, 0, ""),
        ("examples", tarfile.DIRTYPE, 0, ""),
        ("examples/mnist", tarfile.DIRTYPE, 0, ""),
        ("examples/mnist/readme", tarfile.REGTYPE, 0, ""),
    ]
    assert (done.files, done.warnings, done.reused) == (2, (), False)


def test_the_digest_is_of_the_uncompressed_archive(workspace: Path) -> None:
    import hashlib

    fill(workspace, "a", content="text" * 1000)
    done = packed(workspace)
    with gzip.open(done.archive) as stream:
        assert done.digest == f"sha256-{hashlib.sha256(stream.read()).hexdigest()}"


def test_an_unchanged_workspace_is_not_written_again_but_marked_as_used(workspace: Path) -> None:
    fill(workspace, "a", "b/c")
    first = packed(workspace)
    inode = os.stat(first.archive).st_ino
    os.utime(first.archive, (1000, 1000))
    os.utime(workspace / "a", (5000, 5000))
    second = packed(workspace)
    assert (second.archive, second.reused, second.size_bytes) == (first.archive, True, first.size_bytes)
    assert os.stat(first.archive).st_ino == inode
    assert os.stat(first.archive).st_mtime > 1000
    assert os.listdir(workspace.parent / "cache") == [os.path.basename(first.archive)]


@pytest.mark.parametrize("damage", ["empty", "cut short", "other bytes", "unreadable", "a link to nowhere"])
def test_a_damaged_archive_in_the_cache_is_replaced(workspace: Path, damage: str) -> None:
    fill(workspace, "a", content="text" * 1000)
    first = packed(workspace)
    archive = Path(first.archive)
    good = archive.read_bytes()
    match damage:
        case "empty":
            archive.write_bytes(b"")
        case "cut short":
            archive.write_bytes(good[:-1])
        case "other bytes":
            archive.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        case "unreadable":
            archive.unlink()
            archive.write_bytes(b"not for us")
            archive.chmod(0)
        case _:
            archive.unlink()
            archive.symlink_to("nowhere")
    second = packed(workspace)
    assert (second.archive, second.digest, second.reused) == (first.archive, first.digest, False)
    assert archive.read_bytes() == good
    assert os.listdir(archive.parent) == [archive.name]
    assert packed(workspace).reused


@pytest.mark.parametrize("change", ["content", "permission", "name", "empty directory", "link"])
def test_every_change_that_a_program_could_see_changes_the_digest(workspace: Path, change: str) -> None:
    fill(workspace, "a", "b/c")
    (workspace / "l").symlink_to("a")
    before = packed(workspace).digest
    if change == "content":
        (workspace / "a").write_text("y")
    elif change == "permission":
        (workspace / "a").chmod(0o755)
    elif change == "name":
        (workspace / "a").rename(workspace / "A")
    elif change == "empty directory":
        (workspace / "b" / "d").mkdir()
    else:
        (workspace / "l").unlink()
        (workspace / "l").symlink_to("b")
    assert packed(workspace).digest != before


def test_existing_output_is_left_out_and_counted(workspace: Path) -> None:
    fill(workspace, "run.sh", "output/model", "output/logs/1", "output/logs/2", "other/output/kept", "empty/")
    scan = scan_workspace(str(workspace), keep_empty=["./output/", "empty"])
    assert names(scan) == ["empty", "other", "other/output", "other/output/kept", "output", "run.sh"]
    assert scan.left_out == {"./output/": 3}


def test_exclude_patterns_work_like_in_git(workspace: Path) -> None:
    fill(workspace, "a.log", "keep.log", "build/x", "sub/build/x", "sub/b.log", ".git/config", "data/raw/1", "data/2")
    scan = scan_workspace(str(workspace), exclude=["# a comment", "*.log", "!keep.log", "/build/", ".git", "data/*/"])
    assert names(scan) == ["data", "data/2", "keep.log", "sub", "sub/build", "sub/build/x"]


DEFAULTS = (
    "sub/.git/x",
    ".git/config",
    ".venv/bin/python",
    "__pycache__/a.pyc",
    "sub/__pycache__/b",
    "node_modules/c/d",
)


@pytest.mark.parametrize(
    ("exclude", "packed_names", "messages"),
    [
        ([], ["a", "git", "sub"], [".git", ".venv", "__pycache__", "node_modules", "sub/.git", "sub/__pycache__"]),
        (["a", "__pycache__"], ["git", "sub"], [".git", ".venv", "node_modules", "sub/.git"]),
        (
            ["!/.git"],
            [".git", ".git/config", "a", "git", "sub"],
            [".venv", "__pycache__", "node_modules", "sub/.git", "sub/__pycache__"],
        ),
    ],
)
def test_default_exclusions_are_left_out_and_reported(
    workspace: Path, exclude: list[str], packed_names: list[str], messages: list[str]
) -> None:
    fill(workspace, "a", "git", *DEFAULTS)
    scan = scan_workspace(str(workspace), exclude=exclude, exclude_defaults=True)
    assert names(scan) == packed_names
    assert sorted(scan.excluded) == messages


def test_an_environment_that_is_a_link_out_of_the_workspace_is_left_out(workspace: Path) -> None:
    fill(workspace, "a")
    (workspace / ".venv").symlink_to("/elsewhere")
    assert names(scan_workspace(str(workspace), exclude_defaults=True)) == ["a"]
    with pytest.raises(UsageError, match="is a link out of the workspace"):
        scan_workspace(str(workspace))


def test_all_is_packed_where_the_defaults_are_off(workspace: Path) -> None:
    fill(workspace, *DEFAULTS)
    scan = scan_workspace(str(workspace))
    assert set(DEFAULTS) <= set(names(scan))
    assert scan.excluded == ()


def test_a_pattern_that_git_would_not_take_is_refused_by_name(workspace: Path) -> None:
    with pytest.raises(UsageError, match=r"user_dev_workspace_exclude_list: ! is not a gitignore pattern"):
        scan_workspace(str(workspace), exclude=["*.log", "!"])


def test_a_hard_link_is_packed_as_a_file_of_its_own(workspace: Path) -> None:
    fill(workspace, "a", content="same")
    os.link(workspace / "a", workspace / "b")
    assert [(member.name, member.type, member.size) for member in members(packed(workspace).archive)] == [
        ("a", tarfile.REGTYPE, 4),
        ("b", tarfile.REGTYPE, 4),
    ]


def test_sockets_and_fifos_are_skipped_with_a_note(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(workspace, "a")
    os.mkfifo(workspace / "pipe")
    monkeypatch.chdir(workspace)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("sock")
        scan = scan_workspace(str(workspace))
    assert names(scan) == ["a"]
    assert scan.warnings == ("pipe is not packed: it is a FIFO", "sock is not packed: it is a socket")


def test_there_has_to_be_a_workspace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such directory"):
        scan_workspace(str(tmp_path / "nothing"))


# ---- links ----


def test_links_inside_stay_and_absolute_ones_become_relative(workspace: Path) -> None:
    fill(workspace, "data/1", "deep/er/x")
    (workspace / "relative").symlink_to("data/1")
    (workspace / "deep/er/up").symlink_to("../../data")
    (workspace / "dangling").symlink_to("data/comes later")
    (workspace / "circle").symlink_to("circle")
    (workspace / "deep/er/absolute").symlink_to(workspace / "data/1")
    (workspace / "deep/root").symlink_to(workspace)
    scan = scan_workspace(str(workspace))
    assert {entry.name: entry.link for entry in scan.entries if entry.link is not None} == {
        "circle": "circle",
        "dangling": "data/comes later",
        "deep/er/absolute": "../../data/1",
        "deep/er/up": "../../data",
        "deep/root": "..",
        "relative": "data/1",
    }


def test_links_out_of_the_workspace_are_refused_all_at_once(workspace: Path) -> None:
    fill(workspace, "data/deep/1", "excluded/x")
    (workspace / "etc").symlink_to("/etc")
    (workspace / "data/up").symlink_to("../..")
    # Lexically this stays inside; but `shortcut` is a link to a deeper place, so `..` behind it is not the root.
    (workspace / "shortcut").symlink_to("data/deep")
    (workspace / "fine").symlink_to("shortcut/../deep/1")
    (workspace / "data/deep/back").symlink_to("../..")
    (workspace / "sly").symlink_to("data/deep/back/../x")
    # It comes back by the workspace's name, which is another one where the program runs.
    (workspace / "by name").symlink_to(f"../{workspace.name}/data")
    (workspace / "excluded/out").symlink_to("/tmp")
    with pytest.raises(UsageError) as refused:
        scan_workspace(str(workspace), exclude=["excluded/"])
    lines = str(refused.value).splitlines()
    assert lines[1:] == [
        f"  by name is a link out of the workspace, to ../{workspace.name}/data",
        "  data/up is a link out of the workspace, to ../..",
        "  etc is a link out of the workspace, to /etc",
        "  sly is a link out of the workspace, to data/deep/back/../x",
    ]


# ---- limits and faults ----


def test_a_workspace_above_the_limit_is_refused_with_its_ten_largest_entries(workspace: Path) -> None:
    for number in range(30):
        fill(workspace, f"data/{number:02d}", content="x" * 1000)
    for number in range(12):
        fill(workspace, f"model{number:02d}", content="y" * (100 + number))
    fill(workspace, "sub/one/huge.bin", content="z" * 50_000)
    fill(workspace, "sub/small", content="z")
    scan = scan_workspace(str(workspace))
    assert scan.largest() == [
        ("sub/one/huge.bin", 50_000),
        ("data/", 30_000),
        *((f"model{number:02d}", 100 + number) for number in range(11, 3, -1)),
    ]
    with pytest.raises(
        UsageError, match=r"has 79\.4 KiB, the limit .* is 70\.0 KiB; .*: sub/one/huge\.bin 48\.8 KiB, data/"
    ):
        pack(scan, str(workspace.parent / "cache"), limit_bytes=70 << 10)
    assert not (workspace.parent / "cache").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; the next test becomes somebody else")
def test_files_that_cannot_be_read_are_named_all_at_once(workspace: Path) -> None:
    fill(workspace, "a", "b", "c", "closed/x")
    for name in ("a", "c", "closed"):
        (workspace / name).chmod(0)
    try:
        with pytest.raises(UsageError) as refused:
            scan_workspace(str(workspace))
    finally:
        (workspace / "closed").chmod(0o700)
    assert [line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]] == [
        "a cannot be read",
        "c cannot be read",
        "closed cannot be read",
    ]


@pytest.mark.root
def test_a_user_learns_which_files_they_may_not_read(workspace: Path) -> None:
    fill(workspace, "a", "b", "closed/x")
    (workspace / "a").chmod(0o600)
    (workspace / "closed").chmod(0o700)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # The directories above are pytest's own, closed to others: the scan starts from inside.
            os.chdir(workspace)
            os.chroot(".")
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            scan_workspace("/")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as output:
        lines = output.read().splitlines()
    os.waitpid(child, 0)
    assert lines == [
        "UsageError the workspace / cannot be packed; exclude these, or put them right:",
        "  a cannot be read: Permission denied",
        "  closed cannot be read: Permission denied",
    ]


# ---- files that do not stand still ----


def test_a_file_that_disappears_is_named_and_the_rest_is_packed(workspace: Path) -> None:
    fill(workspace, "a", "b", "gone/c", "z")
    scan = scan_workspace(str(workspace))
    (workspace / "b").unlink()
    (workspace / "gone/c").unlink()
    (workspace / "gone").rmdir()
    done = pack(scan, str(workspace.parent / "cache"), limit_bytes=LIMIT)
    assert [member.name for member in members(done.archive)] == ["a", "gone", "z"]
    assert done.warnings == (
        "b disappeared while the workspace was packed, so it is not in it",
        "gone/c disappeared while the workspace was packed, so it is not in it",
    )
    assert done.files == 2


def test_a_file_replaced_by_a_fifo_or_a_link_is_named_without_blocking(workspace: Path) -> None:
    fill(workspace, "a", "b", "c")
    scan = scan_workspace(str(workspace))
    (workspace / "a").unlink()
    os.mkfifo(workspace / "a")
    (workspace / "b").unlink()
    (workspace / "b").symlink_to("/etc/passwd")
    done = pack(scan, str(workspace.parent / "cache"), limit_bytes=LIMIT)
    assert [member.name for member in members(done.archive)] == ["c"]
    assert [warning.split()[:3] for warning in done.warnings] == [["a", "was", "replaced"], ["b", "was", "replaced"]]


@pytest.mark.parametrize("size", [5_000, 3 << 20], ids=["small", "large"])
@pytest.mark.parametrize("change", ["grows", "shrinks", "is written to"])
def test_a_file_that_changes_while_it_is_read_is_named_and_the_archive_stays_well_formed(
    workspace: Path, size: int, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(workspace, "a", "z", content="unchanged")
    victim = workspace / "moving"
    victim.write_bytes(b"m" * size)
    scan = scan_workspace(str(workspace))
    inode = victim.stat().st_ino
    real_fstat = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        """The first look at the file is the moment at which it changes."""
        status = real_fstat(descriptor)
        if status.st_ino == inode and victim.stat().st_mtime_ns == status.st_mtime_ns and not changed:
            changed.append(True)
            if change == "grows":
                with open(victim, "ab") as file:
                    file.write(b"more")
            elif change == "shrinks":
                os.truncate(victim, size - 100)
            else:
                with open(victim, "r+b") as file:
                    file.write(b"new")
            os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
        return status

    changed: list[bool] = []
    monkeypatch.setattr(os, "fstat", fstat)
    done = pack(scan, str(workspace.parent / "cache"), limit_bytes=LIMIT)
    assert len(done.warnings) == 1
    assert done.warnings[0].startswith("moving ")
    with tarfile.open(done.archive) as tar:
        assert tar.getnames() == ["a", "moving", "z"]
        last = tar.extractfile("z")
        assert last is not None
        assert last.read() == b"unchanged"
    subprocess.run(["tar", "tzf", done.archive], check=True, stdout=subprocess.DEVNULL, timeout=240)


# ---- names and sizes that do not fit ----


def test_names_of_any_length_and_encoding_are_unpacked_by_gnu_tar_and_tarfile(workspace: Path) -> None:
    odd = [
        os.fsdecode(b"latin-\xe9"),
        "new\nline",
        "한국어",
        " ",
        "-rf",
        "back\\slash",
        "n" * 255,
        "m" * 100,
        "o" * 101,
    ]
    fill(workspace, *odd, f"{'d' * 200}/{'e' * 200}/f")
    (workspace / "long").symlink_to(f"{'d' * 200}/{'e' * 200}/f")
    (workspace / ("p" * 99)).mkdir()
    done = packed(workspace)
    out = workspace.parent / "out"
    out.mkdir()
    subprocess.run(["tar", "xzf", done.archive, "-C", str(out)], check=True, timeout=240)
    assert sorted(map(os.fsencode, os.listdir(out))) == sorted(map(os.fsencode, os.listdir(workspace)))
    assert (out / "long").read_text() == "x"
    with tarfile.open(done.archive) as tar:
        assert sorted(tar.getnames()) == sorted(
            os.fsdecode(os.fsencode(name)) for name in names(scan_workspace(str(workspace)))
        )


def test_a_sparse_terabyte_is_packed_in_seconds_and_keeps_its_holes(workspace: Path) -> None:
    pieces = {0: b"start", 5_000_000: b"middle" * 1000, 1 << 40: b"end"}
    pieces |= {(1 << 33) + (number << 20): b"%d" % number for number in range(60)}
    with open(workspace / "sparse", "wb") as file:
        for offset, data in pieces.items():
            file.seek(offset)
            file.write(data)
        file.truncate((1 << 40) + (1 << 20))
    if os.stat(workspace / "sparse").st_blocks * 512 > 1 << 30:
        pytest.skip("this file system has no holes")
    (workspace / "after").write_text("after")
    scan = scan_workspace(str(workspace))
    assert scan.size_bytes < 10 << 20
    done = pack(scan, str(workspace.parent / "cache"), limit_bytes=LIMIT)
    assert done.size_bytes < 1 << 20
    out = workspace.parent / "out"
    out.mkdir()
    subprocess.run(["tar", "xzf", done.archive, "-C", str(out)], check=True, timeout=240)
    status = os.stat(out / "sparse")
    assert status.st_size == (1 << 40) + (1 << 20)
    with open(out / "sparse", "rb") as file:
        for offset, data in pieces.items():
            file.seek(offset)
            assert file.read(len(data)) == data
    assert (out / "after").read_text() == "after"


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_files_of_all_sizes_are_unpacked_unchanged(workspace: Path, size: int) -> None:
    (workspace / "file").write_bytes(os.urandom(size))
    with tarfile.open(packed(workspace).archive) as tar:
        file = tar.extractfile("file")
        assert file is not None
        assert file.read() == (workspace / "file").read_bytes()


# ---- the machinery ----


def test_progress_reaches_the_end(workspace: Path) -> None:
    for number in range(10):
        (workspace / f"{number}").write_bytes(bytes(700_000))
    progress_calls: list[tuple[int, int]] = []
    pack(
        scan_workspace(str(workspace)),
        str(workspace.parent / "cache"),
        limit_bytes=LIMIT,
        progress=lambda done, total: progress_calls.append((done, total)),
    )
    assert len(progress_calls) > 3
    assert progress_calls == sorted(progress_calls)
    assert progress_calls[-1] == (7_000_000, 7_000_000)


def test_packing_leaves_no_threads_after_success_or_failure(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (workspace / f"{number}").write_bytes(os.urandom(700_000))
    before = set(threading.enumerate())
    packed(workspace)
    assert not set(threading.enumerate()) - before

    def full(block: bytes) -> bytes:
        raise MemoryError

    monkeypatch.setattr(gzip_blocks, "_compressed", full)
    (workspace / "new").write_text("new")
    with pytest.raises(MemoryError):
        packed(workspace)
    assert not set(threading.enumerate()) - before
    assert len(os.listdir(workspace.parent / "cache")) == 1


def test_the_next_packing_removes_only_leftovers_of_killed_processes(workspace: Path) -> None:
    fill(workspace, "a")
    (workspace / "large").write_bytes(os.urandom(3 << 20))
    cache = workspace.parent / "cache"
    code = (
        "import sys, time\n"
        "from dlapp.launcher.workspace.pack import *\n"
        "def stay(done, total): print(flush=True); time.sleep(600)\n"
        "pack(scan_workspace(sys.argv[1]), sys.argv[2], limit_bytes=1 << 30, progress=stay)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(workspace), str(cache)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"  # its file is not only there, but locked, too
        (alive,) = os.listdir(cache)
        done = packed(workspace)
        assert sorted(os.listdir(cache)) == sorted([alive, os.path.basename(done.archive)])
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    packed(workspace)
    assert os.listdir(cache) == [os.path.basename(done.archive)]


def test_packing_twice_at_the_same_time_gives_one_good_archive(workspace: Path) -> None:
    (workspace / "a").write_bytes(os.urandom(2 << 20))
    results: list[Packed] = []
    both = [threading.Thread(target=lambda: results.append(packed(workspace))) for _ in range(4)]
    for item in both:
        item.start()
    for item in both:
        item.join()
    assert len({result.archive for result in results}) == 1
    assert os.listdir(workspace.parent / "cache") == [os.path.basename(results[0].archive)]
    assert [member.name for member in members(results[0].archive)] == ["a"]


def test_pathspec_is_loaded_only_where_something_is_excluded(workspace: Path) -> None:
    code = (
        "import sys; from dlapp.launcher.workspace.pack import scan_workspace; "
        f"scan_workspace({str(workspace)!r}, exclude_defaults=True); "
        "print(sorted({'pathspec', 'tarfile', 'threading'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"
