from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import subprocess
import tarfile
import threading
import zlib
from pathlib import Path

import pytest

from dlapp.errors import DlappError, NotFound
from dlapp.launcher.workspace.pack import Packed, pack, scan_workspace
from dlapp.launcher.workspace.tar import DIRECTORY, END, FILE, LINK, header, sparse_header
from dlapp.storage.values import DiskFull
from dlapp.task.data.unpack import ArchiveDamaged, unpack


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "data" / "empty").mkdir(parents=True)
    (root / "start.sh").write_text("#!/bin/sh\n")
    (root / "start.sh").chmod(0o755)
    (root / "data" / "numbers").write_bytes(os.urandom(100_000))
    (root / "link").symlink_to("data/numbers")
    return root


def packed(root: Path) -> Packed:
    return pack(scan_workspace(str(root)), str(root.parent / "cache"), limit_bytes=1 << 40)


def archive_of(tmp_path: Path, *members: bytes, end: bytes = END) -> str:
    path = tmp_path / "made.tar.gz"
    path.write_bytes(gzip.compress(b"".join(members) + end))
    return str(path)


def file_member(name: bytes, content: bytes = b"x", mode: int = 0o644) -> bytes:
    return header(name, mode, len(content)) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def test_a_workspace_is_unpacked_with_permissions_links_and_empty_directories(workspace: Path, tmp_path: Path) -> None:
    done = packed(workspace)
    for number, archive in enumerate((done.archive, f"file://{done.archive}")):
        into = tmp_path / f"into {number}"
        unpack(archive, str(into), digest=done.digest)
        assert subprocess.run(["diff", "-r", "--no-dereference", str(workspace), str(into)]).returncode == 0
        assert os.stat(into / "start.sh").st_mode & 0o777 == 0o755
        assert os.readlink(into / "link") == "data/numbers"
        assert (into / "data" / "empty").is_dir()


def test_many_files_are_unpacked_by_a_thread_that_ends(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    for number in range(60):
        (root / f"{number:03d}").write_bytes(os.urandom(100_000))
    (root / "zeros").write_bytes(bytes(20 << 20))
    done = packed(root)
    progress_calls: list[tuple[int, int]] = []
    before = set(threading.enumerate())
    unpack(
        done.archive, str(tmp_path / "into"), digest=done.digest, progress=lambda *offset: progress_calls.append(offset)
    )
    assert not set(threading.enumerate()) - before
    assert subprocess.run(["diff", "-r", str(root), str(tmp_path / "into")]).returncode == 0
    assert progress_calls[-1] == (done.size_bytes, done.size_bytes)
    assert progress_calls == sorted(progress_calls)


def test_write_protected_directories_are_unpacked_filled_and_protected(workspace: Path, tmp_path: Path) -> None:
    (workspace / "data").chmod(0o555)
    try:
        done = packed(workspace)
        unpack(done.archive, str(tmp_path / "into"), digest=done.digest)
        assert stat.S_IMODE(os.stat(tmp_path / "into" / "data").st_mode) == 0o555
        assert (tmp_path / "into" / "data" / "numbers").exists()
    finally:
        for item in (workspace / "data", tmp_path / "into" / "data"):
            item.chmod(0o755)


def test_holes_are_unpacked_as_holes(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    with open(root / "sparse", "wb") as file:
        for number in range(40):
            file.seek(number << 24)
            file.write(b"%d" % number)
        file.truncate(1 << 33)
    done = packed(root)
    unpack(done.archive, str(tmp_path / "into"), digest=done.digest)
    status = os.stat(tmp_path / "into" / "sparse")
    assert status.st_size == 1 << 33
    assert status.st_blocks * 512 < 10 << 20
    with open(tmp_path / "into" / "sparse", "rb") as file:
        for number in range(40):
            file.seek(number << 24)
            assert file.read(3).rstrip(b"\0") == b"%d" % number


@pytest.mark.parametrize(
    "members",
    [
        [file_member(b"/tmp/absolute")],
        [file_member(b"../above")],
        [header(b"a/", 0o755, 0, DIRECTORY), file_member(b"a/../../above")],
        [header(b"..", 0o755, 0, DIRECTORY)],
        [header(b"a/./b/", 0o755, 0, DIRECTORY)],
        [file_member(b"never made/file")],
        [file_member(b"")],
        [header(b"out", 0o777, 0, LINK, b"/tmp")],
        [header(b"out", 0o777, 0, LINK, b"../x")],
        [header(b"d/", 0o755, 0, DIRECTORY), header(b"d/out", 0o777, 0, LINK, b"x/../../..")],
        [header(b"out", 0o777, 0, LINK, b"."), file_member(b"out/through a link")],
        [header(b"cut", 0o777, 0, LINK, b"a\0b")],
        [header(b"cut", 0o777, 0, LINK, b"a" * 200 + b"\0b")],
        [header(b"to nothing", 0o777, 0, LINK)],
        # Two links, each inside by itself, together out.
        [
            header(b"d/", 0o755, 0, DIRECTORY),
            header(b"d/root", 0o777, 0, LINK, b".."),
            header(b"out", 0o777, 0, LINK, b"d/root/../x"),
        ],
        [header(b"device", 0o644, 0, b"3")],
        [header(b"hard", 0o644, 0, b"1", b"/etc/passwd")],
        [header(b"pax", 0o644, 0, b"x")],
        [sparse_header(b"sparse", 0o644, 100, [(512, 512)]), bytes(512)],
    ],
)
def test_members_that_lead_out_of_the_workspace_are_refused(tmp_path: Path, members: list[bytes]) -> None:
    (tmp_path / "outside").mkdir()
    with pytest.raises(ArchiveDamaged, match="it is not unpacked"):
        unpack(archive_of(tmp_path, *members), str(tmp_path / "outside" / "into"), digest=None)
    assert os.listdir(tmp_path / "outside") == ["into"]
    assert not [name for name in os.listdir(tmp_path / "outside" / "into") if name in ("device", "hard", "pax")]
    assert not os.path.lexists("/tmp/absolute")


def with_field(block: bytes, offset: int, field: bytes) -> bytes:
    """A header with another number, and the checksum that goes with it."""
    changed = block[:offset] + field + block[offset + len(field) :]
    sum_of = changed[:148] + b" " * 8 + changed[156:]
    return changed[:148] + b"%06o\0 " % sum(sum_of) + changed[156:]


@pytest.mark.parametrize("kind", [FILE, DIRECTORY])
@pytest.mark.parametrize("number", [b"7" * 12, b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7, b"\x80" + b"\xff" * 11])
@pytest.mark.parametrize("offset", [100, 124, 136])
def test_a_number_of_any_size_is_kept_or_refused(tmp_path: Path, kind: bytes, number: bytes, offset: int) -> None:
    member = with_field(
        header(b"x", 0o644, 0, kind), offset, number[-8:] if offset == 100 and number[0] != 0x80 else number
    )
    with contextlib.suppress(ArchiveDamaged):
        unpack(archive_of(tmp_path, member), str(tmp_path / "into"), digest=None)


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "mine").write_text("mine")
    with pytest.raises(DlappError, match="mine already exists"):
        unpack(archive_of(tmp_path, file_member(b"mine")), str(tmp_path / "into"), digest=None)
    assert (tmp_path / "into" / "mine").read_text() == "mine"
    with pytest.raises(DlappError, match="twice already exists"):
        unpack(archive_of(tmp_path, file_member(b"twice"), file_member(b"twice")), str(tmp_path / "b"), digest=None)


def test_another_archive_than_the_submitted_one_is_refused(workspace: Path, tmp_path: Path) -> None:
    first = packed(workspace)
    (workspace / "start.sh").write_text("#!/bin/sh\nrm -rf /\n")
    second = packed(workspace)
    os.replace(second.archive, first.archive)
    with pytest.raises(ArchiveDamaged, match=f"should be {first.digest}, but it is {second.digest}"):
        unpack(first.archive, str(tmp_path / "into"), digest=first.digest)


def test_a_cut_archive_is_damaged_wherever_it_is_cut(workspace: Path, tmp_path: Path) -> None:
    whole = Path(packed(workspace).archive).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    for place in [0, 1, 5, 17, 18, 100, len(whole) // 2, len(whole) - 9, len(whole) - 8, len(whole) - 1]:
        cut.write_bytes(whole[:place])
        with pytest.raises(ArchiveDamaged, match=r"cut\.tar\.gz is damaged"):
            unpack(str(cut), str(tmp_path / f"into {place}"), digest=None)


def test_a_cut_between_two_members_of_gzip_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    for number in range(12):
        (root / f"{number}").write_bytes(os.urandom(400_000))
    done = packed(root)
    whole = Path(done.archive).read_bytes()
    first = zlib.decompressobj(31)
    first.decompress(whole)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole[: len(whole) - len(first.unused_data)])
    before = set(threading.enumerate())
    with pytest.raises(ArchiveDamaged, match="it is cut short"):
        unpack(str(cut), str(tmp_path / "into"), digest=None)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    cut.write_bytes(flipped)
    with pytest.raises(ArchiveDamaged, match="is damaged"):
        unpack(str(cut), str(tmp_path / "again"), digest=None)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b"no tar" * 1000), gzip.compress(b"")],
    ids=["no gzip", "no tar", "empty"],
)
def test_a_file_of_another_format_is_reported_as_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "else.tar.gz"
    path.write_bytes(content)
    with pytest.raises(ArchiveDamaged, match=r"else\.tar\.gz is damaged"):
        unpack(str(path), str(tmp_path / "into"), digest=None)


def test_an_archive_that_others_made_is_refused_and_not_half_understood(tmp_path: Path) -> None:
    path = tmp_path / "theirs.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(ArchiveDamaged, match="not an archive of dlapp"):
        unpack(str(path), str(tmp_path / "into"), digest=None)


def test_something_behind_the_end_is_damage(tmp_path: Path) -> None:
    with pytest.raises(ArchiveDamaged, match="there is data after its end"):
        unpack(
            archive_of(tmp_path, file_member(b"a"), end=END + file_member(b"b")), str(tmp_path / "into"), digest=None
        )
    unpack(archive_of(tmp_path, file_member(b"a"), end=END + bytes(9000)), str(tmp_path / "again"), digest=None)


def test_a_missing_archive_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is gone"):
        unpack(str(tmp_path / "none.tar.gz"), str(tmp_path / "into"), digest=None)


@pytest.mark.root("to mount a small file system")
def test_a_full_disk_is_reported_in_one_line(workspace: Path, tmp_path: Path) -> None:
    (workspace / "large").write_bytes(os.urandom(4 << 20))
    done = packed(workspace)
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with pytest.raises(DiskFull, match=r"^disk full: .*large cannot be written; .* are free on /"):
            unpack(done.archive, str(small / "into"), digest=done.digest)
    finally:
        subprocess.run(["umount", str(small)], check=True)
