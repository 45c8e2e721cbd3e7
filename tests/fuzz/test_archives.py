"""Archives that somebody else packed, workspaces as HDFS gives them back, and collected logs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Literal

import pytest

from dlapp.cluster.yarn.logs import tfile
from dlapp.feed import FeedError, _samples
from dlapp.launcher.workspace.pack import pack
from dlapp.launcher.workspace.scan import scan_workspace
from dlapp.storage.archives.unpack import unpack_archive
from dlapp.task.data.unpack import unpack
from tests.cluster.yarn.logs.test_tfile import LOGS, SECOND, written
from tests.fuzz.mutation import mutated
from tests.fuzz.parsing import fuzz, limits
from tests.task.feed.serving import source_of


def tar(mode: Literal["w:", "w:gz", "w:bz2", "w:xz"] = "w:") -> bytes:
    """A tar with a directory, files, both kinds of links and a long name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as archive:
        top = tarfile.TarInfo("top")
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(top)
        for name in ("top/a.txt", "top/" + "n" * 120):
            file = tarfile.TarInfo(name)
            file.size, file.mtime = 5, 1_700_000_000
            archive.addfile(file, io.BytesIO(b"hello"))
        for name, kind in (("top/soft", tarfile.SYMTYPE), ("top/hard", tarfile.LNKTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "a.txt" if kind == tarfile.SYMTYPE else "top/a.txt"
            archive.addfile(link)
    return out.getvalue()


def zipped(method: int) -> bytes:
    """A zip with a directory, a file and a link."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("top/", b"")
        archive.writestr("top/a.txt", b"hello" * 100)
        link = zipfile.ZipInfo("top/soft")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, b"a.txt")
    return out.getvalue()


def with_checksums(data: bytes) -> bytes:
    """Make the checksum of each header of a tar right again: else most changes are noticed by it."""
    out = bytearray(data)
    for offset in range(0, len(out) - 511, 512):
        if out[offset + 257 : offset + 262] == b"ustar":
            out[offset + 148 : offset + 156] = b" " * 8
            out[offset + 148 : offset + 156] = b"%06o\0 " % sum(out[offset : offset + 512])
    return bytes(out)


ARCHIVES = {
    "tar": [tar()],
    "compressed tar": [tar("w:gz"), bz2.compress(tar()), lzma.compress(tar())],
    "zip": [zipped(zipfile.ZIP_STORED), zipped(zipfile.ZIP_DEFLATED)],
}


@pytest.mark.proves("archive-paths")
@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_is_unpacked_inside_or_refused(tmp_path: Path, kind: str) -> None:
    archive, into, beside = tmp_path / "a", tmp_path / "outer" / "into", tmp_path / "outer"

    def read(data: bytes) -> None:
        shutil.rmtree(beside, ignore_errors=True)
        into.mkdir(parents=True)
        archive.write_bytes(data)
        try:
            unpack_archive(str(archive), str(into))
        finally:
            assert [path.name for path in beside.iterdir()] == ["into"]
            check_inside(into)

    samples = ARCHIVES[kind]
    fuzz(read, samples, strategy=mutated(samples).map(with_checksums) if kind == "tar" else None)


@pytest.mark.parametrize("kind", ["tar", "compressed tar"])
def test_samples_of_a_feed_are_read_from_a_tar_or_it_is_refused(kind: str) -> None:
    def read(data: bytes) -> None:
        file = source_of(data)
        try:
            for _ in _samples(file, None):
                pass
        finally:
            file.finish()

    samples = ARCHIVES[kind]
    strategy = mutated(samples).map(with_checksums) if kind == "tar" else None
    fuzz(read, samples, errors=(FeedError,), strategy=strategy)


def check_inside(top: Path) -> None:
    """Check that there are but files, directories and links that stay inside, with no mode that gives rights away."""
    for path in top.rglob("*"):
        assert path.is_symlink() or path.is_file() or path.is_dir(), path
        if path.is_symlink():
            assert path.resolve().is_relative_to(top.resolve()), path
        else:
            assert not path.stat().st_mode & 0o7000, path


def workspace(tmp_path: Path) -> bytes:
    """A workspace as the launcher packs it, with a sparse file and a long name."""
    source = tmp_path / "workspace"
    (source / "sub").mkdir(parents=True)
    (source / "start.sh").write_text("echo hello\n")
    (source / "sub" / ("n" * 120)).write_text("x")
    (source / "sub" / "soft").symlink_to("../start.sh")
    with (source / "sparse").open("wb") as file:
        for place in range(8):
            file.seek(place << 20)
            file.write(b"x" * 4096)
    packed = pack(scan_workspace(str(source)), str(tmp_path / "cache"), limit_bytes=1 << 30)
    return Path(packed.archive).read_bytes()


@pytest.mark.proves("archive-paths")
@pytest.mark.parametrize("layer", ["compressed", "plain"])
def test_a_workspace_is_unpacked_inside_or_refused(tmp_path: Path, layer: str) -> None:
    archive, into, beside = tmp_path / "a", tmp_path / "outer" / "into", tmp_path / "outer"
    sample = workspace(tmp_path)

    def read(data: bytes) -> None:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        archive.write_bytes(data if layer == "compressed" else gzip.compress(data, 1))
        try:
            unpack(str(archive), str(into), digest=None)
        finally:
            assert {path.name for path in beside.iterdir()} <= {"into"}
            check_inside(into)

    if layer == "compressed":
        fuzz(read, [sample])
    else:
        plain = [gzip.decompress(sample)]
        fuzz(read, plain, strategy=mutated(plain).map(with_checksums))


@pytest.mark.parametrize("compression", ["none", "gz"])
def test_a_collected_log_is_read_or_refused(compression: str) -> None:
    def read(data: bytes) -> None:
        def read_at(offset: int, count: int) -> bytes:
            assert offset >= 0
            assert count >= 0
            return data[offset : offset + count]

        found = tfile.log_of(read_at, len(data), SECOND, "stdout")
        for piece in found or ():
            assert len(piece) <= 1 << 20

    fuzz(read, [written(LOGS, chunk=200, compression=compression, blocks=2)])


@pytest.mark.slow
def test_a_bomb_in_a_collected_log_is_read_in_pieces() -> None:
    data = written({SECOND: {"stdout": bytes(80 << 20)}}, compression="gz")
    with limits(len(data)):
        found = tfile.log_of(lambda offset, count: data[offset : offset + count], len(data), SECOND, "stderr")
        assert found is None
