"""A gateway in the place of a NameNode: HttpFS, or a proxy in front of an HDFS whose renames know no options."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from dlapp.errors import DlappError
from dlapp.locations import AUTO, HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpResponse, RequestBody, ResponseSink
from dlapp.net.http_framing import Headers
from dlapp.storage import commit
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.webhdfs import HdfsRefused
from dlapp.values.ids import ContainerId
from tests.storage.commit.test_hdfs import APP, new_tree, old_target, plant, sibling_names, tree

TARGET = "hdfs://nn/out/run"
PART = commit.part_location(TARGET, APP, ContainerId(APP, 1, 2))


class Gateway:
    """File system in memory behind a gateway, in the place of `HttpClient`. It has no ``/jmx``, ignores
    ``renameoptions``, and so moves into a directory of the new name.

    Args:
        numbers: its answers have a ``fileId``; those of HttpFS have none.
    """

    def __init__(self, *, numbers: bool) -> None:
        self.numbers, self.next, self.refuses = numbers, 1, False
        self.files: dict[str, dict[str, Any]] = {}  # path -> content (None: a directory), number, attributes
        self._make("/")

    def request(
        self, method: str, server: str, target: str, body: bytes | RequestBody | None = None, **options: Any
    ) -> HttpResponse:
        assert not isinstance(body, RequestBody)
        quoted, _, query = target.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        path = unquote(quoted.removeprefix("/webhdfs/v1")).rstrip("/") or "/"
        if "/jmx" in target:
            return self._answer(404, b"")
        if asked["op"] in ("CREATE", "OPEN") and "data" not in asked:
            where = b"\r\nLocation: http://gateway:14000" + target.encode() + b"&data=true\r\n"
            return HttpResponse(307, Headers(where), b"", 0)
        try:
            answer = getattr(self, f"_{asked['op'].lower()}")(path, asked, body)
        except KeyError:
            gone = {"RemoteException": {"exception": "FileNotFoundException", "message": f"{path} is not there"}}
            return self._answer(404, json.dumps(gone).encode())
        if isinstance(answer, bytes):
            sink: ResponseSink = options["sink"]
            os.pwrite(sink.fd, answer, sink.offset)
            return HttpResponse(200, Headers(b""), b"", len(answer))
        return self._answer(200, json.dumps(answer).encode())

    def close(self) -> None: ...

    def _answer(self, status: int, body: bytes) -> HttpResponse:
        return HttpResponse(status, Headers(b""), body, len(body))

    def _make(self, path: str, content: bytes | None = None, mode: str = "755") -> None:
        self.files[path] = {"content": content, "number": self.next, "mode": mode, "attributes": {}}
        self.next += 1

    def _status(self, path: str, name: str = "") -> dict[str, Any]:
        one = self.files[path]
        kind, size = ("DIRECTORY", 0) if one["content"] is None else ("FILE", len(one["content"]))
        found = {"pathSuffix": name, "type": kind, "length": size, "permission": one["mode"], "owner": "tony"}
        return found | {"modificationTime": 7} | ({"fileId": one["number"]} if self.numbers else {})

    def _inside(self, path: str) -> list[str]:
        return [file for file in self.files if file.startswith(f"{path.rstrip('/')}/") and file != "/"]

    def _getfilestatus(self, path: str, *_: Any) -> Any:
        return {"FileStatus": self._status(path)}

    def _liststatus(self, path: str, *_: Any) -> Any:
        names = {item: item[len(path.rstrip("/")) + 1 :] for item in self._inside(path)}
        assert self.files[path]["content"] is None
        return {
            "FileStatuses": {"FileStatus": [self._status(one, name) for one, name in names.items() if "/" not in name]}
        }

    def _mkdirs(self, path: str, asked: dict[str, str], *_: Any) -> Any:
        parts = path.split("/")
        for count in range(2, len(parts) + 1):
            if (above := "/".join(parts[:count])) not in self.files:
                self._make(above, mode=asked["permission"])
        return {"boolean": True}

    def _create(self, path: str, asked: dict[str, str], body: bytes) -> Any:
        self._mkdirs(path.rpartition("/")[0], {"permission": "755"})
        self._make(path, body, asked["permission"])
        return {}

    def _open(self, path: str, asked: dict[str, str], *_: Any) -> Any:
        begin = int(asked["offset"])
        return bytes(self.files[path]["content"][begin : begin + int(asked["length"])])

    def _delete(self, path: str, *_: Any) -> Any:
        for item in [path, *self._inside(path)]:
            self.files.pop(item, None)
        return {"boolean": True}

    def _rename(self, path: str, asked: dict[str, str], *_: Any) -> Any:
        to = asked["destination"]
        if to in self.files:
            if self.files[to]["content"] is not None:
                return {"boolean": False}
            to = f"{to}/{path.rpartition('/')[2]}"
        if self.refuses or path not in self.files or to.rpartition("/")[0] not in self.files:
            return {"boolean": False}
        for item in [path, *self._inside(path)]:
            self.files[to + item[len(path) :]] = self.files.pop(item)
        return {"boolean": True}

    def _setpermission(self, path: str, asked: dict[str, str], *_: Any) -> Any:
        self.files[path]["mode"] = asked["permission"]
        return {}

    def _setxattr(self, path: str, asked: dict[str, str], *_: Any) -> Any:
        self.files[path]["attributes"][asked["xattr.name"]] = asked["xattr.value"]
        return {}

    def _getxattrs(self, path: str, *_: Any) -> Any:
        values = self.files[path]["attributes"].items()
        return {"XAttrs": [{"name": name, "value": value} for name, value in values]}


def behind(gateway: Gateway) -> HdfsFiles:
    place = HdfsPlace("hdfs://nn", ("http://gateway:14000",), Login("tony"), protocol=AUTO)
    web = NativeHdfs(place, patience_s=0.1, sleep=lambda _: None)
    web._connections = gateway  # type: ignore[assignment]
    return HdfsFiles(place, web)


@pytest.mark.parametrize("names", [[""], ["0", "1"]], ids=["one container", "two containers"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_commit_uses_names_and_enters_no_directory_of_that_name(names: list[str], overwrite: bool) -> None:
    files = behind(Gateway(numbers=True))
    files.make_directory("hdfs://nn/out")
    if overwrite:
        old_target(files, TARGET)
    assert commit.commit(TARGET, APP, plant(files, TARGET, names), overwrite=overwrite, files=files) is None
    assert (tree(files, TARGET), sibling_names(files, TARGET)) == (new_tree(names), [])


def test_without_replacement_the_target_stays_and_the_output_is_put_aside() -> None:
    files = behind(Gateway(numbers=True))
    old = old_target(files, TARGET)
    with pytest.raises(commit.CommitRefused):
        commit.commit(TARGET, APP, plant(files, TARGET, ["0"]), overwrite=False, files=files)
    assert (tree(files, TARGET), tree(files, f"{TARGET}.{APP}.partial")) == (old, new_tree(["0"]))


def test_parts_silently_not_renamed_by_a_gateway_are_not_committed() -> None:
    gateway = Gateway(numbers=True)
    files = behind(gateway)
    parts = plant(files, TARGET, ["0"])
    gateway.refuses = True
    with pytest.raises(HdfsRefused, match=r"was not renamed to"):
        commit.commit(TARGET, APP, parts, overwrite=True, files=files)
    assert tree(files, parts[0][1]) == {"model": "model 0", "empty/": ""}


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.matches(TARGET),
        lambda files: files.exists(TARGET),
        lambda files: files.check_writable(TARGET),
        lambda files: files.names("hdfs://nn/out"),
        lambda files: files.store(__file__, f"{TARGET}/x"),
        lambda files: files.remove(TARGET) or files.output_commit(TARGET, str(APP)).drop(),
        lambda files: commit.commit(TARGET, APP, [("", PART)], overwrite=True, files=files),
    ],
    ids=["matches", "exists", "check", "names", "store", "drop", "commit"],
)
def test_httpfs_is_refused_by_name_in_one_line(call: Any) -> None:
    gateway = Gateway(numbers=False)
    for path in ("/out", "/out/run", f"/out/run.{APP}.tmp"):
        gateway._make(path)
    gateway._make(PART.removeprefix("hdfs://nn"))
    before = dict(gateway.files)
    with contextlib.ExitStack() as stack:
        refusal = stack.enter_context(pytest.raises(DlappError))
        call(behind(gateway))
    assert "has no fileId, as that of HttpFS; dlapp needs WebHDFS of the NameNodes" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert {path: one for path, one in before.items() if path != "/out/run"}.items() <= gateway.files.items()
