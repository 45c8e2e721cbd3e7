from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.errors import DlappError, NotFound
from dlapp.storage.archives import unpack as archives
from dlapp.storage.archives.unpack import ArchiveRefused, unpack_archive
from dlapp.storage.values import DiskFull

TIME = 1_500_000_000


def tar_of(path: Path, members: list[tarfile.TarInfo | tuple[str, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size, info.mtime, info.mode = len(member[1]), TIME, 0o750
            tar.addfile(info, io.BytesIO(member[1]))
    return path


def member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mtime, info.mode = kind, link, TIME, 0o700
    return info


def zip_of(path: Path, members: list[tuple[str, bytes, int]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name, (2017, 7, 14, 2, 40, 0))
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            made.writestr(info, content)
    return path


def names(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


@pytest.mark.parametrize("kind", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_of_each_compression_is_unpacked_with_permissions_times_and_links(tmp_path: Path, kind: str) -> None:
    members: list[tarfile.TarInfo | tuple[str, bytes]] = [
        member("latest", tarfile.SYMTYPE, "a/x y"),
        member("empty", tarfile.DIRTYPE),
        ("./a/x y", b"1" * 3000),
        ("a/é%#+", b"2"),
        member("hard", tarfile.LNKTYPE, "a/x y"),
    ]
    reported: list[int] = []
    path = tar_of(tmp_path / "t", members, kind)
    done = unpack_archive(str(path), str(tmp_path / "into"), done=reported.append)
    assert names(tmp_path / "into") == ["a", "a/x y", "a/é%#+", "empty", "hard", "latest"]
    assert (done.files, done.size_bytes) == (3, 6001)
    assert sum(reported) == path.stat().st_size
    assert (tmp_path / "into/latest").read_bytes() == (tmp_path / "into/hard").read_bytes() == b"1" * 3000
    status = (tmp_path / "into/a/x y").stat()
    assert (status.st_mtime, stat.S_IMODE(status.st_mode)) == (TIME, 0o750)
    assert (tmp_path / "into/empty").stat().st_mtime == TIME


def test_a_zip_is_unpacked_with_permissions_and_links(tmp_path: Path) -> None:
    path = zip_of(
        tmp_path / "z",
        [("dir/", b"", 0o40755), ("dir/x", b"1" * 5000, 0o100750), ("plain", b"2", 0), ("to", b"dir/x", 0o120777)],
    )
    assert unpack_archive(str(path), str(tmp_path / "into")) == (2, 5001)
    assert names(tmp_path / "into") == ["dir", "dir/x", "plain", "to"]
    assert (tmp_path / "into/to").read_bytes() == b"1" * 5000
    assert stat.S_IMODE((tmp_path / "into/dir/x").stat().st_mode) == 0o750


SLIPS: list[tuple[str, list[tarfile.TarInfo | tuple[str, bytes]], str]] = [
    ("above", [("../out", b"x")], "would land elsewhere: ../out"),
    ("above, hidden", [("a/../../out", b"x")], "would land elsewhere"),
    ("absolute", [("/out", b"x")], "is not a relative path"),
    ("through a link", [member("d", tarfile.SYMTYPE, ".."), ("d/out", b"x")], "d is not a directory"),
    ("over a link", [member("d", tarfile.SYMTYPE, "a"), member("d", tarfile.DIRTYPE)], "d is not a directory"),
    ("link out", [member("d", tarfile.SYMTYPE, "../..")], "leads out of it, to ../.."),
    ("absolute link", [member("d", tarfile.SYMTYPE, "/etc")], "leads out of it, to /etc"),
    ("link by link", [member("a", tarfile.SYMTYPE, "."), member("b", tarfile.SYMTYPE, "a/../..")], "leads out of it"),
    ("hard link out", [member("h", tarfile.LNKTYPE, "../secret")], "would land elsewhere"),
    ("hard link to nothing", [member("h", tarfile.LNKTYPE, "secret")], "which is not before it"),
    ("device", [member("null", tarfile.CHRTYPE)], "null is a device or a FIFO"),
    ("fifo", [member("pipe", tarfile.FIFOTYPE)], "pipe is a device or a FIFO"),
    ("link to nothing", [member("d", tarfile.SYMTYPE, "")], "cannot be a name"),
    ("twice", [("x", b"1"), ("x", b"2")], "x already exists"),
    ("no name", [("./", b"1")], "a member without a name"),
]


@pytest.mark.parametrize(("members", "problem"), [item[1:] for item in SLIPS], ids=[item[0] for item in SLIPS])
def test_members_that_leave_the_directory_or_are_no_files_are_refused(
    tmp_path: Path, members: list[tarfile.TarInfo | tuple[str, bytes]], problem: str
) -> None:
    (tmp_path / "secret").write_text("mine")
    with pytest.raises(DlappError, match=problem):
        unpack_archive(str(tar_of(tmp_path / "t", members)), str(tmp_path / "into"), name="s3://b/t")
    assert {path.name for path in tmp_path.iterdir()} <= {"t", "into", "secret"}
    assert not any(path.is_symlink() for path in (tmp_path / "into").rglob("*"))


@pytest.mark.parametrize("mtime", ["1e300", "-1e300", "inf", "nan", "99999999999999999999999"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_a_time_that_no_file_can_have_is_damage(tmp_path: Path, kind: bytes, mtime: str) -> None:
    one = member("d", kind)
    one.pax_headers = {"mtime": mtime}
    with pytest.raises(ArchiveRefused, match="is damaged"):
        unpack_archive(str(tar_of(tmp_path / "t", [one])), str(tmp_path / "into"))


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_a_slip_of_a_zip_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArchiveRefused, match=r"would land elsewhere|not a relative path"):
        unpack_archive(str(zip_of(tmp_path / "z", [(name, b"x", 0)])), str(tmp_path / "into"))
    assert names(tmp_path) == ["into", "z"]


def test_unpacking_follows_no_link_of_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into/d").symlink_to("..")
    with pytest.raises(ArchiveRefused, match=r"d/x cannot be unpacked: .*/d is not a directory"):
        unpack_archive(str(tar_of(tmp_path / "t", [("d/x", b"1")])), str(tmp_path / "into"))
    assert not (tmp_path / "x").exists()


def test_a_bomb_is_refused_before_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    for path in (
        tar_of(tmp_path / "t.bz2", [("zeros", bytes(3_000_000))], "w:bz2"),
        zip_of(tmp_path / "z", [(f"zeros{n}", bytes(2_000_000), 0) for n in range(3)]),
        tar_of(tmp_path / "t.xz", [member(f"{n}", tarfile.DIRTYPE) for n in range(2000)], "w:xz"),
    ):
        with pytest.raises(ArchiveRefused, match=r"is an archive bomb: .* become more than"):
            unpack_archive(str(path), str(tmp_path / "into" / path.name))
        assert (
            sum(item.stat().st_size for item in (tmp_path / "into" / path.name).rglob("*") if item.is_file()) < 2 << 20
        )


def test_a_zip_with_overlapping_members_is_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "z", [("a", os.urandom(1000), 0), ("b", os.urandom(1000), 0)])
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    data[second + 20 : second + 24] = struct.pack("<I", 1900)  # its compressed size
    path.write_bytes(data)
    with pytest.raises(ArchiveRefused, match=r"is an archive bomb|is damaged"):
        unpack_archive(str(path), str(tmp_path / "into"))


def test_an_archive_without_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "free_bytes", lambda path: 1000)
    with pytest.raises(DiskFull, match=r"unpacked is more than .*/into can take"):
        unpack_archive(str(tar_of(tmp_path / "t", [("x", bytes(2000))])), str(tmp_path / "into"))


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 50]) + data[middle + 50 :]


@pytest.mark.parametrize("harm", [cut, changed])
@pytest.mark.parametrize("kind", ["w:gz", "w:bz2", "w:xz", "zip"])
def test_damage_is_reported_with_the_file_name(tmp_path: Path, kind: str, harm: Callable[[bytes], bytes]) -> None:
    content = os.urandom(20_000)
    if kind == "zip":
        path = zip_of(tmp_path / "z", [("x", content, 0)])
    else:
        path = tar_of(tmp_path / "t", [("x", content)], kind)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ArchiveRefused, match=r"^hdfs://nn/data.tar is damaged: "):
        unpack_archive(str(path), str(tmp_path / "into"), name="hdfs://nn/data.tar")


def test_a_file_that_is_not_an_archive_is_refused_by_name(tmp_path: Path) -> None:
    for content in (b"", b"\x28\xb5\x2f\xfd zstd", b"x" * 1000):
        (tmp_path / "data.csv").write_bytes(content)
        with pytest.raises(ArchiveRefused, match=r"/data\.csv is neither a tar \(plain, gzip, bzip2, xz\) nor a zip"):
            unpack_archive(str(tmp_path / "data.csv"), str(tmp_path / "into"))
    with pytest.raises(NotFound):
        unpack_archive(str(tmp_path / "none"), str(tmp_path / "into"))


def test_two_archives_share_a_tree_without_overwriting(tmp_path: Path) -> None:
    unpack_archive(str(tar_of(tmp_path / "a", [("d/x", b"1")])), str(tmp_path / "into"))
    unpack_archive(str(tar_of(tmp_path / "b", [("d/y", b"2")])), str(tmp_path / "into"))
    assert names(tmp_path / "into") == ["d", "d/x", "d/y"]
    with pytest.raises(DlappError, match="d/x already exists"):
        unpack_archive(str(tar_of(tmp_path / "c", [("d/x", b"3")])), str(tmp_path / "into"))
    assert (tmp_path / "into/d/x").read_bytes() == b"1"
