"""Names, lengths and depths that a NameNode or an object store may send: nothing is written outside, nothing hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import DlappError
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.webhdfs import WebHdfs, WrongAnswer, parse_listing, parse_status
from dlapp.storage.open import open_location, plan_fetch
from tests.services.http.http_server import Answer, Request, as_json, http_server

BAD_NAMES = {
    "empty": "",
    "dot": ".",
    "dot dot": "..",
    "up": "../../evil",
    "slash": "a/b",
    "absolute": "/etc/passwd",
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "\x1b[2Ja",
    "delete": "a\x7f",
    "C1 control": "a\x9bm",
    "half of a surrogate pair": "\ud800",
    "too long": "n" * 256,
    "too long in UTF-8": "ü" * 128,
}


def status(name: str = "x", **changed: Any) -> dict[str, Any]:
    return {
        "pathSuffix": name,
        "type": "FILE",
        "length": 5,
        "fileId": 7,
        "permission": "644",
        "modificationTime": 1,
        "owner": "tony",
    } | changed


@contextmanager
def namenode(listings: dict[str, Any], content: bytes = b"hello") -> Iterator[HdfsPlace]:
    """A NameNode and DataNode that says what is written down; what is not listed is a file."""

    def answer(request: Request) -> Answer:
        path, _, query = request.target.removeprefix("/webhdfs/v1").partition("?")
        response: Any = listings.get(path, status(""))
        if "op=OPEN" in query and "data=1" not in query:
            data_url = f"http://{request.headers['Host']}/webhdfs/v1{path}?{query}&data=1"
            return Answer(307, headers=(("Location", data_url),))
        if "op=OPEN" in query:
            return Answer(body=content)
        if isinstance(response, bytes):
            return Answer(body=response)
        if "op=LISTSTATUS" in query:
            return as_json({"FileStatuses": {"FileStatus": response}})
        found = status("", type="DIRECTORY", length=0) if isinstance(response, list) else response
        return as_json({"FileStatus": found})

    with http_server(answer) as url:
        yield HdfsPlace("hdfs://nn:8020", (url,), Login("tony"))


def everything(top: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mode) for path in top.rglob("*"))


@pytest.mark.proves("remote-names")
@pytest.mark.parametrize("kind", ["FILE", "DIRECTORY"])
@pytest.mark.parametrize("case", BAD_NAMES)
def test_an_invalid_name_of_a_namenode_is_refused_before_any_write(case: str, kind: str, tmp_path: Path) -> None:
    into = tmp_path / "deep" / "er" / "in"
    into.mkdir(parents=True)
    before = everything(tmp_path)
    entry = status(BAD_NAMES[case], type=kind, permission="777")
    with namenode({"/in": [status("good"), entry]}) as place:
        for source in ("hdfs://nn:8020/in", "hdfs://nn:8020/in/*"):
            with pytest.raises(WrongAnswer) as refused:
                plan_fetch([source], str(into), hdfs=place).fetch()
            assert str(refused.value).isprintable()
            assert len(str(refused.value)) < 500
    assert everything(tmp_path) == before


def test_names_that_hdfs_can_have_are_taken(tmp_path: Path) -> None:
    names = ["..dots", ".hidden", "a b", "é", "n" * 255, "-rf", "~"]
    with namenode({"/in": [status(name) for name in names]}) as place:
        plan_fetch(["hdfs://nn:8020/in"], str(tmp_path), hdfs=place).fetch()
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "changed",
    [
        {"length": -1},
        {"length": 1 << 60},
        {"length": 1e400},
        {"length": "5"},
        {"length": None},
        {"length": True},
        {"fileId": -1},
        {"fileId": 1 << 80},
        {"fileId": float("nan")},
        {"modificationTime": -1},
        {"modificationTime": 1 << 60},
        {"permission": "0o777"},
        {"permission": "-1"},
        {"permission": "7_7"},
        {"permission": "77777"},
        {"permission": 644},
        {"type": "FIFO"},
        {"type": ["FILE"]},
        {"type": "SYMLINK", "symlink": 3},
        {"owner": {}},
        {"pathSuffix": 3},
    ],
    ids=str,
)
def test_a_status_that_hdfs_cannot_give_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(WrongAnswer):
        parse_status(status(**changed))
    listed = status(**changed) if "pathSuffix" in changed else status("a", **changed)
    with namenode({"/in": [listed]}) as place, pytest.raises(DlappError):
        plan_fetch(["hdfs://nn:8020/in"], str(tmp_path), hdfs=place).fetch()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"FileStatuses": []},
        {"FileStatuses": {"FileStatus": {}}},
        {"FileStatuses": {"FileStatus": [[]]}},
        {"FileStatuses": {"FileStatus": [None]}},
        {"FileStatuses": {"FileStatus": [status("a"), status("a")]}},
        {"FileStatuses": {"FileStatus": [status("", type="DIRECTORY")]}},
    ],
    ids=str,
)
def test_a_listing_that_is_none_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswer):
        parse_listing(entry)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"FileStatus":' + b"[" * 500_000, b"1" * 5000])
def test_deep_json_of_a_namenode_is_an_error_of_one_line(body: bytes) -> None:
    with namenode({"/in": body}) as place:
        web = WebHdfs(place, patience_s=0)
        for call in (web.status, web.children):
            with pytest.raises(DlappError, match="does not speak WebHDFS") as refused:
                call("/in")
            assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_tree_without_an_end_has_one(tmp_path: Path) -> None:
    class Endless(dict[str, Any]):
        def get(self, path: str, default: Any = None) -> Any:
            return [status("deeper" * 40, type="DIRECTORY")]

    with namenode(Endless()) as place, pytest.raises(DlappError, match="or a loop"):
        open_location("hdfs://nn:8020/in", place).tree(
            open_location("hdfs://nn:8020/in", place).matches("hdfs:///in")[0]
        )


@pytest.mark.parametrize(
    "location",
    [
        "",
        "file:///etc/passwd",
        "http://",
        "http://a b/x?y",
        "http://host:99999/x?y",
        "http://host:0x50/x?y",
        "http://user@host/x?y",
        "http://host\t/x?y",
        "http://host/x?y z",
        "http://h\xf6st/x?y",
        "//host/x",
    ],
)
def test_a_redirection_that_is_no_address_of_a_server_is_refused(location: str) -> None:
    from dlapp.net.http import HttpResponse
    from dlapp.net.http_framing import Headers
    from dlapp.storage.hdfs.webhdfs import HdfsUnreachable, _redirection

    with pytest.raises(HdfsUnreachable, match="does not speak WebHDFS"):
        _redirection(
            HttpResponse(307, Headers(f"\r\nLocation: {location}".encode("latin-1")), b"", 0), "http://nn:9870"
        )


def test_redirections_that_datanodes_have_are_followed() -> None:
    from dlapp.net.http import HttpResponse
    from dlapp.net.http_framing import Headers
    from dlapp.storage.hdfs.webhdfs import _redirection

    for server in ("http://dn-1.example:9864", "https://[::1]:9865", "http://host"):
        found = _redirection(
            HttpResponse(307, Headers(f"\r\nLocation: {server}/webhdfs/v1/a%20b?op=OPEN&offset=0".encode()), b"", 0),
            "x://y",
        )
        assert found == (server, "op=OPEN&offset=0")


def test_a_namenodes_refusal_is_shown_without_control_characters() -> None:
    refusal = json.dumps({"RemoteException": {"exception": "IO\x1b[2JException", "message": "a\x1b]0;b\x07c"}}).encode()
    with namenode({"/in": b""}) as place:
        web = WebHdfs(place, patience_s=0)
        from dlapp.net.http import HttpResponse
        from dlapp.net.http_framing import Headers

        error = web._refusal(HttpResponse(500, Headers(b""), refusal, len(refusal)), "/in", place.web[0])
    assert str(error).isprintable()


@pytest.mark.proves("remote-names")
@pytest.mark.parametrize("case", [name for name in BAD_NAMES if name not in ("slash", "up", "absolute", "empty")])
def test_a_name_of_an_object_store_that_is_no_name_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    from dlapp.storage.remote import RemoteFiles

    def ls(self: Any, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        return [{"name": f"{path.rstrip('/')}/{BAD_NAMES[case]}/", "size": 1, "type": "file"}]

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    monkeypatch.setattr(MemoryFileSystem, "info", lambda self, path, **_: {"name": path, "type": "directory"})
    files = RemoteFiles("memory")
    with pytest.raises(DlappError, match="not a file name"):
        files.matches("memory://bucket/*")


@pytest.mark.parametrize("size", [-1, 1 << 60, "many", float("nan"), float("inf")], ids=str)
def test_a_size_of_an_object_store_that_no_file_has_is_refused(size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    from dlapp.storage.remote import RemoteFiles

    monkeypatch.setattr(
        MemoryFileSystem, "info", lambda self, path, **_: {"name": path, "type": "file", "size": size, "mtime": 1e300}
    )
    with pytest.raises(DlappError, match="its server reports"):
        RemoteFiles("memory").matches("memory://bucket/x")
