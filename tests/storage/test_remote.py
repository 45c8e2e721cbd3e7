"""Test what fsspec has: its memory file system stands for object stores, a real server for the web."""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import Denied, DlappError, NotFound, Unreachable, UsageError
from dlapp.locations import last_name
from dlapp.storage import remote
from dlapp.storage.open import open_location, open_output
from dlapp.storage.remote import RemoteFiles
from dlapp.system import waits
from tests.services.http.http_server import Answer, Request, http_server
from tests.storage.fetching import fetch_sources

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install '.[fsspec]'")


@pytest.fixture
def bucket() -> Iterator[str]:
    """A bucket of this test alone, as fsspec names it."""
    name = f"/bucket-{os.urandom(6).hex()}"
    yield name
    fsspec.filesystem("memory").rm(name, recursive=True)


def fill(bucket: str, contents: dict[str, bytes]) -> str:
    """Put objects there; the bucket's location."""
    for name, content in contents.items():
        fsspec.filesystem("memory").pipe(f"{bucket}/{name}", content)
    return f"memory:/{bucket}"


def names(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def test_a_remote_tree_is_fetched_like_any_other(bucket: str, tmp_path: Path) -> None:
    contents = {"set/a b%": b"1", "set/deep/#+?é": b"22", "set/deep/er/x": b"", "one": b"333", "two": b"4"}
    here = fill(bucket, contents)
    seen: list[tuple[int, int]] = []
    moved = fetch_sources([f"{here}/set", f"{here}/o*"], str(tmp_path), progress=lambda *both: seen.append(both))
    assert names(tmp_path) == ["one", "set", "set/a b%", "set/deep", "set/deep/#+?é", "set/deep/er", "set/deep/er/x"]
    assert all((tmp_path / name).read_bytes() == contents[name] for name in contents if name != "two")
    assert moved == (4, 6)
    assert seen[-1] == (6, 6)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a1", "a2", "b1", "dir"]),
        ("a?", ["a1", "a2"]),
        ("[^a]*", ["b1", "dir"]),
        ("{a2,dir/c}", ["a2", "dir/c"]),
        ("*/c", ["dir/c"]),
        ("dir/", ["dir"]),
        ("a1/x", []),
        ("none*", []),
        ("a\\?", ["a?"]),
    ],
)
def test_patterns_match_like_in_hadoop(bucket: str, pattern: str, found: list[str]) -> None:
    here = fill(bucket, dict.fromkeys(("a1", "a2", "b1", "dir/c"), b"123"))
    if "?" in "".join(found):
        fill(bucket, {"a?": b"123"})
    entries = open_location(here).matches(f"{here}/{pattern}")
    assert [entry.location.removeprefix(f"{here}/") for entry in entries] == found


def test_a_missing_source_is_reported(bucket: str, tmp_path: Path) -> None:
    here = fill(bucket, {"x": b"1"})
    for source in (f"{here}/none", f"{here}/none*"):
        with pytest.raises(NotFound, match="nothing is there"):
            fetch_sources([source], str(tmp_path))


def test_output_to_a_remote_store_is_refused() -> None:
    with pytest.raises(UsageError, match="output goes to hdfs:// and file:// only, as memory:// cannot replace"):
        open_output("memory://b/out")


def test_schemes_without_a_library_or_unknown_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"there is no storage for nonsense://$"):
        open_location("nonsense://x/y")
    fsspec.register_implementation("odd", "not_installed.Fs", clobber=True, errtxt="Install odd")
    with pytest.raises(UsageError, match=r"odd:// needs a library that is not here: Install odd"):
        open_location("odd://x/y")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"pip install '/path/to/the/clone\[fsspec\]'"):
        open_location("s3://x/y")


def test_names_that_would_leave_the_directory_are_refused(bucket: str, tmp_path: Path) -> None:
    here = fill(bucket, {"set/x": b"1"})
    store = fsspec.filesystem("memory").store
    store[f"{bucket}/set/.."] = store[f"{bucket}/set/x"]
    with pytest.raises(DlappError, match=r"has something that is named \.\.; that is not a file name"):
        fetch_sources([f"{here}/set"], str(tmp_path / "in"))


@pytest.fixture
def faulty(bucket: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what becomes of reads: ``fail`` more of them fail with ``error``, and ``after`` is called after one."""
    plan: dict[str, Any] = {"fail": 0, "error": OSError("connection reset"), "after": lambda: None}
    memory = type(fsspec.filesystem("memory"))
    real = memory.cat_file

    def cat_file(self: Any, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        if plan["fail"] > 0:
            plan["fail"] -= 1
            raise plan["error"]
        piece = real(self, path, start=start, end=end, **options)
        plan["after"]()
        return piece

    monkeypatch.setattr(memory, "cat_file", cat_file)
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(remote, "RANGE_BYTES", 1000)
    return plan


def test_a_failed_read_is_retried_from_its_position(bucket: str, faulty: dict[str, Any], tmp_path: Path) -> None:
    content = os.urandom(4500)
    here = fill(bucket, {"x": content})
    faulty["fail"] = remote.TRIES - 1
    fetch_sources([f"{here}/x"], str(tmp_path))
    assert (tmp_path / "x").read_bytes() == content
    faulty["fail"] = remote.TRIES
    with pytest.raises(Unreachable, match=r"/x cannot be read: connection reset \(tried 5 times\)"):
        fetch_sources([f"{here}/x"], str(tmp_path / "again"))
    faulty["error"], faulty["fail"] = PermissionError("403"), 1
    with pytest.raises(Denied, match="/x may not be read: 403"):
        fetch_sources([f"{here}/x"], str(tmp_path / "third"))


def test_only_a_failed_request_is_shown_as_a_wait(
    bucket: str, faulty: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    here, shown = fill(bucket, {"x": bytes(500)}), list[str]()
    faulty["after"] = lambda: shown.append(waits.longest_text())
    fetch_sources([f"{here}/x"], str(tmp_path))
    assert shown == [""]
    faulty["fail"] = 1
    fetch_sources([f"{here}/x"], str(tmp_path / "again"))
    assert re.fullmatch(r"waits for memory://\S+ since \S{10} \S{8}: connection reset", shown[1])
    assert waits.longest_text() == ""


def test_an_object_that_changes_while_it_is_fetched_is_named(
    bucket: str, faulty: dict[str, Any], tmp_path: Path
) -> None:
    here = fill(bucket, {"x": bytes(4500)})

    def change() -> None:
        time.sleep(0.002)
        fill(bucket, {"x": b"1" * 4500})

    faulty["after"] = change
    with pytest.raises(DlappError, match="/x changed while it was fetched"):
        fetch_sources([f"{here}/x"], str(tmp_path))


# ---- the web ----


CONTENT = os.urandom(5000)


def page(request: Request) -> Answer:
    """Serve ranges of one file; its query says whether to leave them out: ``range``."""
    if not request.target.startswith("/data%20%231.bin"):
        return Answer(404)
    asked = request.headers.get("Range")
    if not asked or "range" in request.target:
        return Answer(body=CONTENT)
    first, _, last = asked.removeprefix("bytes=").partition("-")
    return Answer(206, CONTENT[int(first) : int(last) + 1])


@pytest.fixture
def web() -> Iterator[str]:
    with http_server(page) as url:
        yield url


@pytest.mark.parametrize("query", ["", "?v=1*&x=[a]", "?no=range"])
def test_a_web_address_is_one_file_named_by_its_path(
    web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")
    monkeypatch.setattr(remote, "RANGE_BYTES", 2000)
    fetch_sources([f"{web}/data%20%231.bin{query}"], str(tmp_path))
    assert (tmp_path / "data #1.bin").read_bytes() == CONTENT
    with pytest.raises(NotFound, match="nothing is there"):
        fetch_sources([f"{web}/none"], str(tmp_path))


# ---- a server that a location names ----


class Shelf:
    """A real FTP server of one directory, for the user tony."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # asyncore, until Python 3.12
            authorizers = pytest.importorskip("pyftpdlib.authorizers", reason="pyftpdlib is not installed")
            from pyftpdlib.handlers import FTPHandler
            from pyftpdlib.ioloop import IOLoop
            from pyftpdlib.servers import FTPServer

        shelf = self

        class Handler(FTPHandler):  # type: ignore[misc]
            def on_connect(self) -> None:
                shelf.connections += 1

            def ftp_RETR(self, file: str) -> object:
                if shelf.breaks:
                    shelf.breaks -= 1
                    return self.close()
                return super().ftp_RETR(file)

        Handler.authorizer = authorizers.DummyAuthorizer()
        Handler.authorizer.add_user("tony", "secret", str(directory))
        self.connections, self.breaks = 0, 0
        self._loop = IOLoop()
        self._server = FTPServer(("127.0.0.1", 0), Handler, ioloop=self._loop)
        self.location = f"ftp://tony:secret@127.0.0.1:{self._server.address[1]}"
        self._ends = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ends:
            self._loop.loop(timeout=0.02, blocking=False)
        self._server.close_all()

    def close(self) -> None:
        self._ends = True
        self._thread.join()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    (tmp_path / "shelf" / "set" / "deep").mkdir(parents=True)
    one = Shelf(tmp_path / "shelf")
    yield one
    one.close()


def test_a_tree_is_fetched_from_the_server_of_its_location(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", 50_000)
    contents = {f"set/{number}.jpg": os.urandom(100) for number in range(20)}
    contents |= {"set/deep/a b+é": os.urandom(120_000), "set/empty": b"", "other": b"1"}
    for name, content in contents.items():
        (tmp_path / "shelf" / name).write_bytes(content)
    fetch_sources([f"{shelf.location}/s*", f"{shelf.location}/set/deep/*"], str(tmp_path / "in"))
    found = {str(p.relative_to(tmp_path / "in")): p.read_bytes() for p in (tmp_path / "in").rglob("*") if p.is_file()}
    contents.pop("other")
    assert found == contents | {"a b+é": contents["set/deep/a b+é"]}
    with pytest.raises(NotFound, match="nothing is there"):
        fetch_sources([f"{shelf.location}/none"], str(tmp_path / "in"))


def test_a_server_that_breaks_off_is_connected_to_again(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    (tmp_path / "shelf" / "x").write_bytes(content := os.urandom(1000))
    shelf.breaks = 2
    fetch_sources([f"{shelf.location}/x"], str(tmp_path / "in"))
    assert (tmp_path / "in" / "x").read_bytes() == content
    assert (shelf.breaks, shelf.connections) == (0, 4)  # one looks, one fetches, one more after each break


def test_a_scheme_that_needs_more_than_a_location_is_refused() -> None:
    files = open_location("github://inner/x")
    with pytest.raises(UsageError, match=r"^github:// cannot be used: it needs more than a location \("):
        files.matches("github://inner/x")


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("abfs", "adlfs")])
def test_a_missing_object_store_library_is_named(scheme: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UsageError) as refusal:
        open_location(f"{scheme}://bucket/x")
    assert str(refusal.value).startswith(f"{scheme}:// needs a library that is not here: ")
    assert package in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_name_that_things_land_under() -> None:
    assert last_name("file:///a/b c/") == "b c"
    assert last_name("s3://bucket/a%20b?c") == "a%20b?c"
    assert last_name("https://h/a%20b.tar?x=/y#z/") == "a b.tar"
    assert last_name("https://h/") == last_name("hdfs://nn:8020/") == ""


def test_fsspec_is_not_loaded_for_local_files() -> None:
    assert RemoteFiles.__module__ == "dlapp.storage.remote"
    import subprocess
    import sys

    program = (
        "import sys\nfrom dlapp.storage.open import open_location\nopen_location('file:///x')\n"
        "import dlapp.storage.hdfs.file_system\nprint(*sorted({'fsspec', 'dlapp.storage.remote'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
