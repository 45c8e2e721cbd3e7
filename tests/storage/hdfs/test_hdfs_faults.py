"""HDFS and what happens to it: DataNodes die, connections break, blocks rot, quotas end. Nothing arrives half."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from dlapp.errors import Denied, DlappError
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpClient, HttpResponse, IncompleteResponse
from dlapp.storage.hdfs.file_system import PARALLEL_READS, HdfsFiles
from dlapp.storage.hdfs.webhdfs import WebHdfs
from dlapp.storage.open import plan_fetch
from dlapp.storage.values import DiskFull
from dlapp.system.files import UntrustedFile
from tests.seeds import each_seed, seeds
from tests.services.hadoop import DATANODES, IS_HADOOP_2, Hadoop
from tests.services.http.proxy import Plan, Proxy
from tests.services.polling import wait_until
from tests.storage.fetching import fetch_entries
from tests.tiers import FULL

TIMES = 10 if FULL else 1
ROUNDS = 50
SEED = seeds("trees on HDFS", 1)[0]


def grown(top: Path, seed: object, count: int = 5) -> Path:
    """A small tree that ``seed`` decides: names of all sorts, sizes around what matters, permissions, times."""
    chance = random.Random(f"{SEED} {seed}")
    sizes = (0, 1, 511, 512, 513, 4096, 65_536, 100_000, (1 << 20) + 1)
    top.mkdir(parents=True)
    directories = [top]
    for _ in range(count):
        name = "".join(chance.choice("abcé #%+&?=가[]{}*~'\"\\") for _ in range(chance.randint(1, 8))).strip(".") or "x"
        path = chance.choice(directories) / name
        if path.exists():
            continue
        if chance.random() < 0.3:
            path.mkdir()
            directories.append(path)
        else:
            path.write_bytes(chance.randbytes(chance.choice(sizes)))
            path.chmod(chance.choice((0o644, 0o600, 0o755, 0o664)))
    for number, path in enumerate([*sorted(top.rglob("*"), reverse=True), top]):
        os.utime(path, ns=(0, (1_500_000_000_000 + number) * 1_000_000))
    return top


def described(top: Path) -> dict[str, tuple[int, int, str]]:
    """Name -> permissions, modification time [ms], digest of the content."""
    return {
        str(path.relative_to(top)): (
            path.stat().st_mode & 0o777,
            path.stat().st_mtime_ns // 1_000_000,
            "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in [top, *top.rglob("*")]
    }


def fetch_again(files: HdfsFiles, location: str, into: Path) -> Path:
    """Fetch what is there into a new directory; where it landed."""
    fetch_entries(files, files.matches(location), str(into))
    return into / location.rpartition("/")[2]


def replicate(files: HdfsFiles, location: str, count: int) -> None:
    """Have each file there kept ``count`` times, and wait until it is."""
    for node in files._nodes(files.place.path(location)):
        if not node.is_file or not node.size_bytes:
            continue
        path = files.place.path(node.source)
        files.web._call("SETREPLICATION", path, {"replication": str(count)}, method="PUT")
        wait_for_holders(files, path, count)


def wait_for_holders(files: HdfsFiles, path: str, count: int) -> None:
    """Wait until so many DataNodes have a file's first block."""
    wait_until(lambda: len(holders(files, path)) == count, what=f"{path} on {count} DataNodes")


def holders(files: HdfsFiles, path: str) -> list[int]:
    """The transfer ports of the DataNodes that have a file's first block."""
    content = files.web._json("GETFILEBLOCKLOCATIONS", path)["BlockLocations"]["BlockLocation"]
    return [int(name.rpartition(":")[2]) for name in content[0]["names"]] if content else []


def fsck(hadoop: Hadoop, path: str, **options: str) -> str:
    """Return what ``hdfs fsck`` says, which is a page of the NameNode."""
    query = urllib.parse.urlencode({"ugi": "root", "path": path, **options})
    with urllib.request.urlopen(f"{hadoop.hdfs_url}/fsck?{query}", timeout=60) as page:
        return str(page.read().decode())


@pytest.fixture
def restored_datanodes(hadoop: Hadoop) -> Iterator[None]:
    """After the test every DataNode runs again and the NameNode knows it."""
    yield
    dead = [part for part in DATANODES if hadoop.status()[part]["exit"] is not None]
    for part in dead:
        hadoop.start_part(part)
    for part in dead:
        hadoop.wait_for_datanode(part)


# ---- rounds ----


@pytest.mark.parametrize("time_", range(TIMES))
def test_trees_are_fetched_byte_for_byte_in_many_rounds(
    hadoop: Hadoop, place: HdfsPlace, base: str, tmp_path: Path, time_: int
) -> None:
    def one(number: int) -> None:
        files = HdfsFiles(place)
        top = grown(tmp_path / f"{number}/tree", number)
        before = described(top)
        files.store(str(top), f"{base}/{number}/tree")
        assert described(fetch_again(files, f"{base}/{number}/tree", tmp_path / f"{number}/in")) == before, (
            f"seed {number}"
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(time_ * ROUNDS, (time_ + 1) * ROUNDS)))
    assert "is HEALTHY" in fsck(hadoop, place.path(base))


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\0/:"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
trees = st.recursive(
    st.binary(max_size=40), lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=5
).filter(lambda tree: isinstance(tree, dict))


def plant(top: Path, tree: Any) -> Path:
    if isinstance(tree, bytes):
        top.write_bytes(tree)
        return top
    top.mkdir()
    for name, inner in tree.items():
        plant(top / name, inner)
    return top


@pytest.mark.parametrize("time_", range(TIMES))
@hypothesis.settings(max_examples=40 if FULL else 15, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(tree=trees, name=names)
def test_any_tree_of_any_names_survives_both_ways(
    files: HdfsFiles, base: str, tmp_path_factory: pytest.TempPathFactory, time_: int, tree: Any, name: str
) -> None:
    here = tmp_path_factory.mktemp("any")
    top = plant(here / "out", tree)
    before = described(top)
    location = f"{base}/{name}"
    files.store(str(top), location)
    provided = here / "in" / name
    from dlapp.storage.values import MatchedEntry

    fetch_entries(files, [MatchedEntry(location, True, 0)], str(here / "in"))
    assert described(provided) == before


# ---- connections that break ----


class Rough(HttpClient):
    """Leads every connection through a proxy that may cut it, at a byte that chance names.

    Args:
        share: how many of them are cut.
    """

    def __init__(self, servers: dict[str, Proxy], chance: random.Random, share: float) -> None:
        super().__init__(2, 20)
        self._servers, self._chance, self._share = servers, chance, share
        self._choosing = threading.Lock()
        self.cuts = 0

    def request(self, method: str, server: str, *arguments: Any, **options: Any) -> HttpResponse:
        proxy = self._servers[server]
        with self._choosing:
            byte = self._chance.choice((0, 50, 150, 300, 1_000, 40_000, 200_000)) + self._chance.randrange(50)
            cut = self._chance.random() < self._share
            harm: dict[str, Any] = {self._chance.choice(("cut_up", "cut_down")): byte}
            proxy.plan = Plan(**harm) if cut else Plan()
        try:
            return super().request(method, f"http://127.0.0.1:{proxy.address[1]}", *arguments, **options)
        except IncompleteResponse:
            self.cuts += 1
            raise


@pytest.fixture
def rough(hadoop: Hadoop, place: HdfsPlace) -> Iterator[Callable[[object, float], HdfsFiles]]:
    """HDFS behind proxies that cut."""
    with ExitStack() as stack:
        servers = {}
        for name in ("nn", *DATANODES):
            port = hadoop.ports[f"{name}_http"]
            servers[f"http://127.0.0.1:{port}"] = stack.enter_context(Proxy(("127.0.0.1", port)))

        def made(seed: object, share: float) -> HdfsFiles:
            web = WebHdfs(place, patience_s=60, timeout_s=(2, 20))
            web._connections = Rough(servers, random.Random(f"{SEED} {seed}"), share)
            return HdfsFiles(place, web)

        yield made


@each_seed("cut connections", 20 if FULL else 3)
def test_trees_arrive_whole_through_connections_that_are_cut_anywhere(
    rough: Callable[[object, float], HdfsFiles], base: str, tmp_path: Path, seed: int
) -> None:
    """Store 20 files and fetch them until over 5 connections were cut, 50 times at most."""
    files = rough(seed, 0.4)
    top = grown(tmp_path / "tree", f"cut {seed}", 20)
    before = described(top)
    files.store(str(top), f"{base}/tree")
    for time_ in range(50):
        assert described(fetch_again(files, f"{base}/tree", tmp_path / f"in{time_}")) == before
        if files.web._connections.cuts > 5:  # type: ignore[attr-defined]
            break
    else:
        pytest.fail("nothing was cut")


class Late(HttpClient):
    """The first try of a write is given up, and its request comes to the DataNode later: at the next one, or after all.

    Args:
        comes: what of it comes: "whole", "half" of its content and then the end, or half and nothing more for now.
    """

    def __init__(self, files: HdfsFiles, comes: str, at_next: bool) -> None:
        super().__init__(60, 120)  # its tries are counted
        self._files, self._comes, self._at_next = files, comes, at_next
        self.held: tuple[str, str, bytes] | None = None
        self.open: socket.socket | None = None
        self.tries = 0

    def request(self, method: str, server: str, target: str, body: Any = None, **options: Any) -> HttpResponse:
        if method == "PUT" and "namenoderpcaddress=" in target:
            self.tries += 1
            if self.tries == 1:
                content = os.pread(body.fd, body.size, 0)
                length = f"Content-Type: application/octet-stream\r\nContent-Length: {len(content)}"
                head = f"PUT {target} HTTP/1.1\r\nHost: {server.partition('://')[2]}\r\n{length}\r\n\r\n"
                part = content if self._comes == "whole" else content[: len(content) // 2]
                path = urllib.parse.unquote(target.removeprefix("/webhdfs/v1").partition("?")[0])
                self.held = server, path, head.encode() + part
                raise IncompleteResponse("said nothing", sent=True)
            if self._at_next:
                self.arrive()
        return super().request(method, server, target, body, **options)

    def arrive(self) -> None:
        """Deliver what was held back, and wait until the DataNode is done with it, or has begun."""
        if self.held is None:
            return
        (server, path, request), self.held = self.held, None
        host, _, port = server.partition("://")[2].rpartition(":")
        self.open = socket.create_connection((host, int(port)), timeout=120)
        self.open.sendall(request)
        if self._comes == "begun":
            wait_until(lambda: self._files.web.status(path))
            return
        self.end()

    def end(self) -> None:
        """End the stream."""
        if self.open is not None:
            one, self.open = self.open, None
            with one, contextlib.suppress(OSError):  # the DataNode may have ended it
                one.shutdown(socket.SHUT_WR)
                while one.recv(1 << 16):
                    pass


@pytest.mark.parametrize(
    ("comes", "at_next", "tries"),
    [("whole", True, 3), ("half", True, 3), ("begun", True, 3), ("whole", False, 2), ("half", False, 2)],
)
def test_a_late_request_does_not_disturb_its_retry(
    place: HdfsPlace, base: str, tmp_path: Path, comes: str, at_next: bool, tries: int
) -> None:
    content = os.urandom(300_000)
    (tmp_path / "model").write_bytes(content)
    web = WebHdfs(place, patience_s=60)
    web._connections = late = Late(HdfsFiles(place), comes, at_next)
    files = HdfsFiles(place, web)
    files.store(str(tmp_path / "model"), f"{base}/out/model")
    late.arrive()
    late.end()
    assert late.tries == tries  # where it comes at the next one, that one finds its file
    assert files.read_bytes(f"{base}/out/model", 1 << 28) == content


@pytest.mark.parametrize("comes", ["whole", "half"])
def test_a_late_request_does_not_recreate_a_renamed_directory(
    place: HdfsPlace, base: str, tmp_path: Path, comes: str
) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    web = WebHdfs(place, patience_s=60)
    web._connections = late = Late(HdfsFiles(place), comes, at_next=False)
    files = HdfsFiles(place, web)
    files.store(str(tmp_path / "model"), f"{base}/aside/model")
    assert web.rename(place.path(f"{base}/aside"), place.path(f"{base}/named"))
    late.arrive()
    assert files.names(base) == ["named"]
    assert files.read_bytes(f"{base}/named/model", 1 << 28) == b"weights"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_late_delete_keeps_a_newer_file_of_the_same_name(
    place: HdfsPlace, base: str, tmp_path: Path, kind: str
) -> None:
    held: list[str] = []

    class Held(HttpClient):
        """The first delete is not sent."""

        def request(self, method: str, server: str, target: str, *arguments: Any, **options: Any) -> HttpResponse:
            if method == "DELETE" and not held:
                held.append(f"{server}{target}")
                raise IncompleteResponse("said nothing", sent=True)
            return super().request(method, server, target, *arguments, **options)

    web = WebHdfs(place)
    files = HdfsFiles(place, web)
    inner = "" if kind == "file" else "/inner"
    if inner:
        (tmp_path / "name").mkdir()
    (tmp_path / f"name{inner}").write_bytes(b"new")
    files.write_atomic(f"{base}/name{inner}", b"old")
    web._connections = Held(2, 20)
    files.store(str(tmp_path / "name"), f"{base}/name")
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(held[0], method="DELETE"), timeout=60).close()
    assert held
    assert files.read_bytes(f"{base}/name{inner}", 1 << 28) == b"new"


def test_an_irreplaceable_target_is_refused_by_name(
    place: HdfsPlace, files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(b"new")
    somebody = HdfsFiles(place._replace(login=Login("somebody")))
    with pytest.raises(UntrustedFile, match=rf"{base}: belongs to root"):
        somebody.store(str(tmp_path / "model"), f"{base}/model")
    # In a directory of theirs, what another user owns and has something in.
    files.make_directory(base)
    files.web.set_mode(place.path(base), 0o777)
    somebody.make_directory(f"{base}/own")
    somebody.web.set_mode(place.path(f"{base}/own"), 0o777)
    files.write_atomic(f"{base}/own/model/weights", b"weights")
    files.web.set_mode(place.path(f"{base}/own/model"), 0o700)
    somebody.web.set_mode(place.path(f"{base}/own"), 0o755)
    with pytest.raises(Denied, match=rf"{base}/own/model: Permission denied. user=somebody"):
        somebody.store(str(tmp_path / "model"), f"{base}/own/model")
    assert files.read_bytes(f"{base}/own/model/weights", 1 << 10) == b"weights"


@pytest.mark.parametrize("silent", ["datanodes", "everything"])
def test_a_stopped_transfer_ends_at_once(
    place: HdfsPlace, base: str, hadoop: Hadoop, tmp_path: Path, silent: str
) -> None:
    files = HdfsFiles(place)
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / f"tree/{number}").write_bytes(os.urandom(1_000))
    files.store(str(tmp_path / "tree"), f"{base}/tree")

    class Stopped(Exception):
        pass

    # As from machines that are gone without a word: nobody may wait for them.
    mute = socket.create_server(("127.0.0.1", 0), backlog=64)
    mute.settimeout(120)

    class Led(HttpClient):
        """Leads to nobody."""

        def request(self, method: str, server: str, *arguments: Any, **options: Any) -> HttpResponse:
            if silent == "everything" or server != place.web[0]:
                server = f"http://127.0.0.1:{mute.getsockname()[1]}"
            return super().request(method, server, *arguments, **options)

    found = files.matches(f"{base}/tree")
    plan = plan_fetch([item.location for item in found], str(tmp_path / "in"), hdfs=place)
    web = WebHdfs(place)
    web._connections = Led(5, 60)
    with mute, ExitStack() as links:
        who = threading.get_ident()

        def stop(_number: int, _frame: object) -> None:
            raise Stopped

        def stop_when_all_wait() -> None:
            for _ in range(PARALLEL_READS):
                links.enter_context(mute.accept()[0])
            signal.pthread_kill(who, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, stop)
        stopper = threading.Thread(target=stop_when_all_wait)
        stopper.start()
        try:
            began = time.monotonic()
            with pytest.raises(Stopped):
                HdfsFiles(place, web).fetch([one for _, one in plan.targets], lambda count: None)
            assert time.monotonic() - began < 45  # a server's silence is borne for 60 s
        finally:
            stopper.join()
            signal.signal(signal.SIGUSR1, before)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("file-")]


# ---- DataNodes that die ----


@pytest.mark.slow
def test_a_fetch_continues_when_a_datanode_dies(
    restored_datanodes: None, hadoop: Hadoop, place: HdfsPlace, base: str, tmp_path: Path
) -> None:
    files = HdfsFiles(place)
    top = tmp_path / "tree"
    top.mkdir()
    for number in range(4):
        (top / f"{number}").write_bytes(os.urandom(3_000_000))
    before = described(top)
    files.store(str(top), f"{base}/tree")
    replicate(files, f"{base}/tree", 3)
    dead: list[str] = []

    def kill(done: int, _total: int) -> None:
        if not dead and done > 1_000_000:
            dead.append("dn2")
            hadoop.kill_part("dn2")

    fresh = HdfsFiles(place)
    fetch_entries(fresh, fresh.matches(f"{base}/tree"), str(tmp_path / "in"), progress=kill)
    assert dead
    assert described(tmp_path / "in/tree") == before
    # And one that begins while the NameNode still believes in the dead one.
    again = HdfsFiles(place)
    assert described(fetch_again(again, f"{base}/tree", tmp_path / "again")) == before


@pytest.mark.slow
def test_a_store_continues_without_loss_when_a_datanode_dies(
    restored_datanodes: None, hadoop: Hadoop, place: HdfsPlace, base: str, tmp_path: Path
) -> None:
    top = tmp_path / "tree"
    top.mkdir()
    for number in range(60):
        (top / f"{number}").write_bytes(os.urandom(50_000))
    before = described(top)
    files, numbers = HdfsFiles(place), itertools.count()
    real = files.web.write

    def write(*arguments: Any, **options: Any) -> None:
        if next(numbers) == 20:
            hadoop.kill_part("dn3")
        real(*arguments, **options)

    files.web.write = write  # type: ignore[method-assign]
    files.store(str(top), f"{base}/tree")
    hadoop.start_part("dn3")  # what it had taken is on its disk
    hadoop.wait_for_datanode("dn3")
    assert described(fetch_again(HdfsFiles(place), f"{base}/tree", tmp_path / "in")) == before


# ---- blocks that rot ----


def replicas(hadoop: Hadoop, content: bytes, path: str) -> list[Path]:
    """The files on DataNodes' disks that hold this content of the block of a file.

    A try to write it that failed leaves its block there until the DataNode removes it.
    """
    (name,) = re.findall(r"blk_-?[0-9]+(?=_[0-9]+ len=)", fsck(hadoop, path, files="1", blocks="1"))
    return [item for item in with_content(hadoop, content) if item.name == name]


def with_content(hadoop: Hadoop, content: bytes) -> list[Path]:
    """The files on DataNodes' disks that hold this content."""
    found = []
    for directory in hadoop.directory.glob("data*"):
        for path in directory.rglob("blk_*"):
            with contextlib.suppress(FileNotFoundError):  # a DataNode removes an earlier test's when it comes to it
                if path.suffix != ".meta" and path.stat().st_size == len(content) and path.read_bytes() == content:
                    found.append(path)
    return found


def spoil(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"rotten")


def test_a_file_whose_only_block_is_corrupt_is_named_and_never_delivered(
    hadoop: Hadoop, place: HdfsPlace, base: str, tmp_path: Path
) -> None:
    files, content = HdfsFiles(place), os.urandom(300_000)
    files.write_atomic(f"{base}/good", b"good")
    files.write_atomic(f"{base}/bad", content)
    (block,) = replicas(hadoop, content, place.path(f"{base}/bad"))
    spoil(block)
    with pytest.raises(DlappError, match=r"/bad cannot be read from byte \d+ on: .*\(hdfs fsck says which blocks"):
        fetch_entries(files, files.matches(f"{base}/*"), str(tmp_path / "in"))


@pytest.mark.slow
def test_a_corrupt_block_that_has_other_replicas_is_not_noticed(
    hadoop: Hadoop, place: HdfsPlace, base: str, tmp_path: Path
) -> None:
    files, content = HdfsFiles(place), os.urandom(300_000)
    files.write_atomic(f"{base}/file", content)
    replicate(files, f"{base}/file", 3)
    blocks = replicas(hadoop, content, place.path(f"{base}/file"))
    assert len(blocks) == 3
    for block in blocks[:2]:
        spoil(block)
    for number in range(4):
        provided = fetch_again(HdfsFiles(place), f"{base}/file", tmp_path / str(number))
        assert provided.read_bytes() == content


# ---- what is refused ----


@pytest.mark.skipif(IS_HADOOP_2, reason="WebHDFS of Hadoop 2 sets no quotas")
def test_an_exhausted_space_quota_is_reported_and_not_retried(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    files.web._call("SETQUOTA", files.place.path(base), {"storagespacequota": "1000"}, method="PUT")
    (tmp_path / "model").write_bytes(os.urandom(5000))
    began = time.monotonic()
    with pytest.raises(DiskFull, match="quota"):
        files.store(str(tmp_path / "model"), f"{base}/model")
    assert time.monotonic() - began < 45


def test_a_read_only_directory_is_reported_with_its_path(
    place: HdfsPlace, files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(b"x")
    files.web.set_mode(place.path(base), 0o555)
    somebody = HdfsFiles(place._replace(login=Login("somebody")))
    with pytest.raises(Denied, match=rf"{place.path(base)}.*Permission denied: user=somebody"):
        somebody.store(str(tmp_path / "model"), f"{base}/out/model")


def test_a_file_that_may_not_be_read_is_named_before_anything_is_fetched(
    place: HdfsPlace, files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    files.make_directory(f"{base}/set")
    files.write_atomic(f"{base}/set/open", b"1")
    files.write_atomic(f"{base}/set/secret", b"2", 0o600)
    somebody = HdfsFiles(place._replace(login=Login("somebody")))
    with pytest.raises(Denied, match="/set/secret"):
        fetch_entries(somebody, somebody.matches(f"{base}/set"), str(tmp_path / "in"))
    assert not (tmp_path / "in").exists()
    files.web.set_mode(place.path(f"{base}/set/secret"), 0o644)
    fetch_entries(somebody, somebody.matches(f"{base}/set"), str(tmp_path / "in"))
    assert (tmp_path / "in/set/secret").read_bytes() == b"2"


def test_a_large_file_is_fetched_in_parallel_ranges(
    files: HdfsFiles, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.storage.hdfs.file_system.RANGE_BYTES", 300_000)
    content = os.urandom(1_000_001)
    (tmp_path / "big").write_bytes(content)
    (tmp_path / "big").chmod(0o640)
    os.utime(tmp_path / "big", ns=(0, 1_500_000_000_000_000_000))
    files.store(str(tmp_path / "big"), f"{base}/big")
    provided = fetch_again(files, f"{base}/big", tmp_path / "in")
    assert provided.read_bytes() == content
    assert (provided.stat().st_mode & 0o777, provided.stat().st_mtime) == (0o640, 1_500_000_000)
