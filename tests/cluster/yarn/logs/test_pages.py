"""Following one log file by the pages of a server that only ever gives its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from dlapp.client.logs import Logs, read_logs
from dlapp.cluster.engine import LogFiles
from dlapp.cluster.yarn.logs.pages import GrowingPage
from dlapp.errors import NotFound, Unreachable
from dlapp.hadoop.web import Web
from dlapp.login import Login
from dlapp.values.ids import ApplicationId, ContainerId
from tests.services.http.http_server import Answer, Request, http_server


class Node:
    """A node's or log server's REST, with one log; ``status`` in place of an answer."""

    def __init__(self) -> None:
        self.log, self.grows_by, self.status, self.location = b"", b"", 200, ""
        self.asked: list[str] = []

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        size = int(parse_qs(urlsplit(path).query).get("size", ["0" if "size=0" in path else str(1 << 40)])[0])
        log = self.log
        shown = log[size:] if size < 0 and -size < len(log) else log[:size] if size >= 0 else log
        self.log, self.grows_by = self.log + self.grows_by, b""
        head = f"Container: c1\nLogType:stdout\nLogLength:{len(log)}\nLogContents:\n".encode()
        return self.status, head + shown + b"\nEnd of LogType:stdout\n*****\n"


@contextlib.contextmanager
def serving(node: Node) -> Iterator[str]:
    def answer(request: Request) -> Answer:
        status, data = node.answer(request.target)
        return Answer(status, data, (("Location", node.location),) if status == 307 else ())

    with http_server(answer) as url:
        yield f"{url}/node/containerlogs/c1/tony/stdout/?start=-4096"


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def page(node: Node) -> Iterator[Callable[..., GrowingPage]]:
    with serving(node) as url, Web(120) as web:
        yield lambda **options: GrowingPage(options.pop("url", url), Login("tony"), web, **options)


def read(page: GrowingPage, **options: bool) -> bytes:
    return b"".join(page.pieces(**options))


def test_each_byte_of_a_growing_log_is_read_once(node: Node, page: Callable[..., GrowingPage]) -> None:
    one = page()
    node.log = b"a" * 100_000
    assert read(one) == b"a" * 100_000
    assert read(one) == b""
    node.log += b"b" * 200_000
    # It grows between the question how long it is and the answer; what came meanwhile is not what was asked for.
    node.grows_by = b"c" * 300_000
    assert read(one) == b"b" * 200_000 + b"c" * 300_000
    assert read(one) == b""


def test_a_log_with_the_servers_own_marker_lines_is_read_unchanged(
    node: Node, page: Callable[..., GrowingPage]
) -> None:
    node.log = b"\nLogContents:\nmine\nEnd of LogType:stdout\n"
    assert read(page()) == node.log


@pytest.mark.parametrize("lines", [0, 1, 2, 5000, 30_000])
def test_only_the_last_lines_are_requested(node: Node, page: Callable[..., GrowingPage], lines: int) -> None:
    node.log = b"".join(b"line %d\n" % number for number in range(20_000))
    one = page(last_lines=lines)
    assert read(one) == b"".join(node.log.splitlines(keepends=True)[-lines:] if lines else [])
    node.log += b"more\n"
    assert read(one) == b"more\n"


def test_a_carriage_return_ends_no_line(node: Node, page: Callable[..., GrowingPage]) -> None:
    node.log = b"first\n10%\r50%\r99%\nlast"
    assert read(page(last_lines=2)) == b"10%\r50%\r99%\nlast"
    assert read(page(last_lines=9)) == node.log


def test_the_last_lines_are_read_from_the_last_bytes_only(node: Node, page: Callable[..., GrowingPage]) -> None:
    node.log = b"x" * 500_000 + b"\nlast\n"
    assert read(page(last_lines=2, last_bytes=100)) == node.log[-100:]
    assert node.asked[-1].endswith("size=-100")
    node.status = 404
    aggregated = page(last_lines=2, last_bytes=100, aggregated=lambda: iter([node.log[:7], node.log[7:]]))
    assert read(aggregated, ended=True) == node.log[-100:]


@pytest.mark.proves("am-page-logs")
def test_without_a_user_a_node_is_asked_without_a_name(node: Node) -> None:
    node.log = b"first\nlast\n"
    with serving(node) as url, Web(120) as web:
        assert GrowingPage(url, None, web).tail(5) == b"last\n"
        node.status = 403
        with pytest.raises(Unreachable, match="status 403"):
            GrowingPage(url, None, web).tail(5)
    assert node.asked == ["/ws/v1/node/containers/c1/logs/stdout?size=-5"] * 2


def test_a_log_that_is_not_there_yet_is_waited_for(node: Node, page: Callable[..., GrowingPage]) -> None:
    one = page()
    node.status = 404
    assert read(one) == b""
    node.status, node.log = 200, b"now"
    assert read(one) == b"now"


def test_following_continues_when_a_node_is_back(node: Node) -> None:
    states = [
        (200, b"one\n"),
        (401, b"one\n"),
        (401, b"one\n"),
        (200, b"one\ntwo\n"),
        (401, b""),
        (200, b"one\ntwo\n3"),
    ]
    messages: list[str] = []
    with serving(node) as url, contextlib.closing(Logs(login=lambda: Login("tony"))) as opened:
        container_id = ContainerId(ApplicationId(1700000000000, 1), 1, 2)
        log = LogFiles(container_id=container_id, role="w", role_index=0, index=0, files={"stdout": url})

        def look() -> tuple[bool, list[LogFiles]]:
            node.status, node.log = states.pop(0)
            return not states, [log]

        found = read_logs(look, streams=("stdout",), opened=opened, follow=True, missing=messages.append)
        assert b"".join(item.data for item in found) == b"one\ntwo\n3"
        assert [text.partition(": status")[2] for text in messages] == [" 401; it is tried again"] * 2
        node.status = 401
        with pytest.raises(Unreachable, match="status 401"):
            list(read_logs(lambda: (False, [log]), streams=("stdout",), opened=Logs(login=lambda: Login("tony"))))


def test_a_log_is_read_from_the_address_a_node_redirects_to(node: Node, page: Callable[..., GrowingPage]) -> None:
    other = Node()
    other.log = b"collected"
    with serving(other) as url:
        node.status, node.location = 307, url.replace("/node/containerlogs/", "/ws/v1/node/containers/")
        assert read(page(), ended=True) == b"collected"


def test_an_aggregated_log_continues_after_the_bytes_already_read(node: Node, page: Callable[..., GrowingPage]) -> None:
    one = page(aggregated=lambda: iter([b"0123", b"4567", b"89"]))
    node.log = b"01234"
    assert read(one) == b"01234"
    node.status = 404
    assert read(one) == b""
    assert read(one, ended=True) == b"56789"
    assert read(one, ended=True) == b""
    last = page(last_lines=2, aggregated=lambda: iter([b"a\nb", b"\nc\n", b"d\n"]))
    assert read(last, ended=True) == b"c\nd\n"


def test_a_missing_log_is_not_found_once_it_cannot_appear(node: Node, page: Callable[..., GrowingPage]) -> None:
    node.status = 404
    left = [1.0, 0.5, 0.0]
    one = page(patience_s=lambda: left.pop(0), sleep=lambda _: None)
    with pytest.raises(NotFound, match="not there, nor among the aggregated logs"):
        read(one, ended=True)
    assert left == []


def test_an_unreachable_log_server_is_an_error_unless_hdfs_has_the_log(page: Callable[..., GrowingPage]) -> None:
    gone = "http://127.0.0.1:1/node/containerlogs/c1/tony/stdout/"
    with pytest.raises(Unreachable, match="connection refused"):
        read(page(url=gone))
    with pytest.raises(Unreachable, match="connection refused"):
        read(page(url=gone), ended=True)
    assert read(page(url=gone, aggregated=lambda: iter([b"x"])), ended=True) == b"x"


def test_the_end_of_a_log_is_read_apart_from_the_rest(node: Node, page: Callable[..., GrowingPage]) -> None:
    one = page(aggregated=lambda: iter([b"0123", b"4567", b"89"]))
    node.log = b"01234"
    assert one.tail(3) == b"234"
    assert one.tail(30) == b"01234"
    assert read(one) == b"01234"
    node.status = 404
    assert one.tail(3) is None
    assert one.tail(5, ended=True) == b"56789"
    assert page().tail(3, ended=True) is None
    gone = page(url="http://127.0.0.1:1/node/containerlogs/c1/tony/stdout/", aggregated=lambda: iter([b"x"]))
    with pytest.raises(Unreachable, match="connection refused"):
        gone.tail(3)
    assert gone.tail(3, ended=True) == b"x"


def test_a_piece_ends_at_the_offset_from_every_source(node: Node, page: Callable[..., GrowingPage]) -> None:
    node.log = b"a\nb\nc\n"
    for one, ended in ((page(), False), (page(last_lines=1), False)):
        assert read(one, ended=ended)
        assert one.offset == len(node.log)
    node.status = 404
    for one in (page(aggregated=lambda: iter([node.log])), page(last_lines=1, aggregated=lambda: iter([node.log]))):
        assert read(one, ended=True)
        assert one.offset == len(node.log)
