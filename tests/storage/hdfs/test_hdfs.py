from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.errors import Unreachable as AnyUnreachable
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.webhdfs import WebHdfs
from dlapp.storage.live_copies import LiveCopies, live_name, remove_live
from dlapp.storage.open import SourceFiles, open_location
from dlapp.storage.values import DiskFull, Workspace
from dlapp.values.ids import ApplicationId
from tests.services.hadoop import IS_HADOOP_2, Hadoop
from tests.services.http.proxy import Plan, Proxy
from tests.storage.fetching import fetch_entries, fetch_sources

APPLICATION = ApplicationId(1700000000000, 1)
NAMES = [
    "a b", "50% off", "%41", "#1", "#LATEST", "a+b", "é ü 한국", "q?x=1&y", "semi;x=1", "back\\slash",
    "a=b", "x'\"<>|", "~", "[a]{b}*", ".hidden", " lead", "trail ", "..dots", "\u1100\u1161 \u2329",
]  # fmt: skip


def tree(top: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Name -> permissions, modification time [ms], content; None for a directory."""
    return {
        str(path.relative_to(top)): (
            path.stat().st_mode & 0o777,
            path.stat().st_mtime_ns // 1_000_000,
            None if path.is_dir() else path.read_bytes(),
        )
        for path in [top, *sorted(top.rglob("*"))]
    }


def plant(top: Path, contents: dict[str, bytes | None]) -> Path:
    """A tree with the times of long ago, so that a kept time differs from a new one."""
    for name, content in contents.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
    for number, path in enumerate(sorted(top.rglob("*"), reverse=True)):
        os.utime(path, ns=(0, (1_500_000_000_000 + number) * 1_000_000))
    os.utime(top, ns=(0, 1_400_000_000_123_000_000))
    return top


def there_and_back(files: HdfsFiles, base: str, top: Path, into: Path) -> Path:
    files.store(str(top), f"{base}/{top.name}")
    fetch_entries(files, files.matches(f"{base}/{top.name}"), str(into))
    return into / top.name


def test_a_store_probe_reaches_the_datanodes_and_leaves_no_file(files: HdfsFiles, base: str) -> None:
    files.probe_store(f"{base}/out.tmp/container")
    assert files.names(base) == ["out.tmp"]
    assert files.names(f"{base}/out.tmp") == []


def test_a_tree_is_fetched_unchanged(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    top = plant(tmp_path / "out", {"deep/er/model": b"m" * 100_000, "log": b"", "empty/inner": None, "run.sh": b"#!"})
    (top / "run.sh").chmod(0o775)
    (top / "log").chmod(0o600)
    (top / "empty").chmod(0o750)
    before = tree(top)
    assert tree(there_and_back(files, base, top, tmp_path / "in")) == before


def test_a_feed_has_parts_of_files_at_their_own_place_and_the_list_of_all(
    place: HdfsPlace, files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    content = os.urandom((3 << 20) + 5)
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/large").write_bytes(content)
    (tmp_path / "in/small").write_bytes(b"small")
    files.store(str(tmp_path / "in"), f"{base}/in")
    sources = SourceFiles((f"{base}/in/*", f"{base}/in/small"), place)
    found = sources.find()
    assert [node.source for _, node in found] == [f"{base}/in/deep/large", f"{base}/in/small"]
    assert [node for _, node in sources.find()] == [node for _, node in found]
    (system, large), (_, small) = found
    for node, start, end, expected in ((large, 1 << 20, (3 << 20) + 5, content[1 << 20 :]), (small, 0, 5, b"small")):
        fd = os.memfd_create("test")
        system.read_range(node, fd, start, end)
        assert os.pread(fd, 1 << 23, start) == expected
        os.close(fd)
    files.remove(f"{base}/in/small")
    with pytest.raises(NotFound):
        system.read_range(small, 0, 0, 5)


def test_live_copies_are_whole_and_the_users_alone(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/log").write_bytes(b"1")
    (tmp_path / "empty").touch()
    copies = LiveCopies(files, f"{base}/out", live_name(APPLICATION), lambda _: None)
    assert copies.copy(str(tmp_path), lambda: False) == 2
    (tmp_path / "deep/log").write_bytes(b"12")
    assert copies.copy(str(tmp_path), lambda: False) == 1
    assert files.read_bytes(f"{base}/out.live/{APPLICATION}.live/deep/log", 9) == b"12"
    assert files.names(f"{base}/out.live/{APPLICATION}.live/deep") == ["log"]
    remove_live(files, f"{base}/out", APPLICATION)
    assert files.names(base) == []


def test_a_tree_that_may_not_be_written_can_be_stored_over_and_removed(place: HdfsPlace, base: str) -> None:
    files = HdfsFiles(place)
    files.web.set_mode(place.path(base), 0o777)
    other = HdfsFiles(place._replace(login=Login("somebody")))
    other.make_directory(f"{base}/kept/inner")
    other.write_atomic(f"{base}/kept/inner/file", b"x")
    for name in ("kept/inner", "kept"):
        other.web.set_mode(place.path(f"{base}/{name}"), 0o555)
    other.remove(f"{base}/kept")
    assert files.names(base) == []


def test_names_survive_both_ways(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    contents: dict[str, bytes | None] = {f"{name}/{name}": name.encode() for name in NAMES}
    top = plant(tmp_path / "o %u+t#", contents)
    before = tree(top)
    assert tree(there_and_back(files, base, top, tmp_path / "in")) == before
    for name in NAMES:
        escaped = "".join(f"\\{char}" if char in "*?[]{}\\" else char for char in name)
        (found,) = files.matches(f"{base}/{top.name}/{escaped}/{escaped}")
        assert found.location == f"{base}/{top.name}/{name}/{name}"
        assert files.exists(found.location)


names = strategies.text(
    strategies.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\0/:"), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@hypothesis.settings(max_examples=15, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(contents=strategies.dictionaries(names, strategies.binary(max_size=50), max_size=6))
def test_any_names_survive_both_ways(
    files: HdfsFiles, base: str, tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]
) -> None:
    here = tmp_path_factory.mktemp("any")
    top = here / "tree"
    top.mkdir()
    for name, content in contents.items():
        (top / name).write_bytes(content)
    before = tree(top)
    assert tree(there_and_back(files, base, top, here / "in")) == before


def test_invalid_hdfs_names_are_refused_before_any_request(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    for name, problem in (
        (b"12:30", "names with a colon"),
        (b"\xff", "names on HDFS are UTF-8"),
        (b"new\nline", "no control characters"),
    ):
        top = tmp_path / name.hex()
        top.mkdir()
        (top / os.fsdecode(name)).write_bytes(b"x")
        with pytest.raises(UsageError, match=problem):
            files.store(str(top), f"{base}/out")
        assert not files.exists(f"{base}/out")


def test_links_are_stored_as_their_targets_and_others_are_named(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    workspace = plant(tmp_path / "workspace", {"out/step_100/model": b"weights", "runs/3/log": b"losses"})
    top = workspace / "out"
    for name, text in {
        "latest": "step_100",
        "best": "step_100/model",
        "run": "../runs/3",
        "all": "/dlapp/workspace/runs",
        "gone": "nowhere",
        "up": "..",
        "far": "/etc",
    }.items():
        (top / name).symlink_to(text)
    left_out: list[tuple[str, str]] = []
    around = Workspace(str(workspace), ("/dlapp/workspace",))
    stored = files.store(str(top), f"{base}/out", workspace=around, left_out=left_out.append)
    assert stored == (5, 3 * len(b"weights") + 2 * len(b"losses"))
    assert files.names(f"{base}/out") == ["all", "best", "latest", "run", "step_100"]
    for path, content in {"best": b"weights", "latest/model": b"weights", "all/3/log": b"losses"}.items():
        assert files.read_bytes(f"{base}/out/{path}", 1 << 28) == content
    assert left_out == [
        ("far", "a link out of the workspace, to /etc"),
        ("gone", "a link to nothing, nowhere"),
        ("up", "a link to a directory above it, .."),
    ]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a1", "a2", "b1", "dir"]),
        ("a?", ["a1", "a2"]),
        ("[ab]1", ["a1", "b1"]),
        ("[^a]*", ["b1", "dir"]),
        ("{a2,dir/c}", ["a2", "dir/c"]),
        ("*/c", ["dir/c"]),
        ("dir", ["dir"]),
        ("dir/", ["dir"]),
        ("a1/x", []),
        ("none*", []),
        ("none/*", []),
    ],
)
def test_patterns_match_like_in_hadoop(files: HdfsFiles, base: str, pattern: str, found: list[str]) -> None:
    for name in ("a1", "a2", "b1", "dir/c"):
        files.make_directory(f"{base}/{name.rpartition('/')[0]}")
        files.write_atomic(f"{base}/{name}", b"123")
    entries = files.matches(f"{base}/{pattern}")
    assert [entry.location.removeprefix(base + "/") for entry in entries] == found
    assert all(entry.size_bytes == (0 if entry.is_dir else 3) for entry in entries)


def test_sources_land_as_hdfs_dfs_get_lands_them(place: HdfsPlace, files: HdfsFiles, base: str, tmp_path: Path) -> None:
    for name in ("data/x", "data/sub/y", "one"):
        files.make_directory(f"{base}/{name}".rpartition("/")[0])
        files.write_atomic(f"{base}/{name}", name.encode())
    fetch_sources([f"{base}/data"], str(tmp_path / "whole"), hdfs=place)
    assert (tmp_path / "whole/data/sub/y").read_bytes() == b"data/sub/y"
    seen: list[tuple[int, int]] = []
    moved = fetch_sources(
        [f"{base}/data/*", f"{base}/one"], str(tmp_path / "in"), hdfs=place, progress=lambda *both: seen.append(both)
    )
    assert sorted(str(path.relative_to(tmp_path / "in")) for path in (tmp_path / "in").rglob("*")) == [
        "one", "sub", "sub/y", "x",
    ]  # fmt: skip
    assert moved == (3, 6 + 10 + 3)
    assert seen[-1] == (19, 19)
    with pytest.raises(NotFound, match="nothing is there"):
        fetch_sources([f"{base}/none*"], str(tmp_path / "in"), hdfs=place)


def test_fetched_files_do_not_overwrite_existing_ones(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    files.write_atomic(f"{base}/one", b"new")
    files.write_atomic(f"{base}/two", b"new")
    (tmp_path / "two").write_text("mine")
    with pytest.raises(DlappError, match="two already exists"):
        fetch_entries(files, files.matches(f"{base}/*"), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    assert (tmp_path / "two").read_text() == "mine"


def test_a_file_that_changes_while_it_is_fetched_is_named(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    files.write_atomic(f"{base}/log", b"1" * 3_000_000)

    def grow(done: int, _total: int) -> None:
        if done > 2_000_000:
            files.write_atomic(f"{base}/log", b"2" * 3_000_001)

    with pytest.raises(DlappError, match=r"/log changed while it was"):
        fetch_entries(files, files.matches(f"{base}/log"), str(tmp_path / "in"), progress=grow)


def test_another_hdfs_or_none_is_refused(place: HdfsPlace) -> None:
    with pytest.raises(UsageError, match=r"the HDFS that is configured is hdfs://127\.0\.0\.1"):
        open_location("hdfs://elsewhere/x", place)
    with pytest.raises(UsageError, match="no HDFS is configured"):
        open_location("hdfs://elsewhere/x")


def test_paths_without_a_scheme_are_resolved_like_in_hdfs() -> None:
    place = HdfsPlace("hdfs://nn:8020", ("http://nn:9870",), Login("tony"))
    assert place.resolve("/data/x y") == "hdfs://nn:8020/data/x y"
    assert place.resolve("data/*") == "hdfs://nn:8020/user/tony/data/*"
    assert place.resolve("hdfs:///data") == place.resolve("hdfs:/data") == "hdfs://nn:8020/data"
    with pytest.raises(UsageError, match=r"hdfs://other/data: .* dfs\.nameservices, dfs\.ha\.namenodes\.other and "):
        place.resolve("hdfs://other/data")
    assert place.path("hdfs://nn/a/./b/../c//d/") == "/a/c/d"


def test_a_target_that_could_not_be_written_is_refused_at_once(place: HdfsPlace, files: HdfsFiles, base: str) -> None:
    files.check_writable(f"{base}/new/run")
    assert files.names(base) == []
    somebody = HdfsFiles(place._replace(login=Login("somebody")))
    with pytest.raises(Denied, match="Permission denied: user=somebody"):
        somebody.check_writable(f"{base}/run")
    files.write_atomic(f"{base}/file", b"")
    with pytest.raises(UsageError, match="is not a directory"):
        files.check_writable(f"{base}/file/run")
    with pytest.raises(UsageError, match="is the root"):
        files.check_writable(f"{place.location}/")
    with pytest.raises(UsageError, match="names with a colon"):
        files.check_writable(f"{base}/12:30")


@pytest.mark.skipif(IS_HADOOP_2, reason="WebHDFS of Hadoop 2 sets no quotas")
def test_a_directory_that_must_keep_its_inode_is_not_replaced(files: HdfsFiles, base: str) -> None:
    for name in ("plain", "snapshots", "above/snapshots", "quota", "disks", "protected"):
        files.make_directory(f"{base}/{name}")
    path = files.place.path
    snapshots = [path(f"{base}/{name}") for name in ("snapshots", "above/snapshots")]
    for snapshot in snapshots:
        files.web._call("ALLOWSNAPSHOT", snapshot, method="PUT")
    files.check_writable(f"{base}/snapshots")
    files.check_writable(f"{base}/above")
    for snapshot in snapshots:
        files.web._call("CREATESNAPSHOT", snapshot, {"snapshotname": "monday"}, method="PUT")
    files.web._call("SETQUOTA", path(f"{base}/quota"), {"namespacequota": "100"}, method="PUT")
    of_disks = {"storagetype": "DISK", "storagespacequota": str(1 << 40)}
    files.web._call("SETQUOTABYSTORAGETYPE", path(f"{base}/disks"), of_disks, method="PUT")
    guarded = HdfsFiles(files.place._replace(protected=(path(f"{base}/protected"),)))
    guarded.check_writable(f"{base}/plain")
    for name, problem in (
        ("snapshots", "has snapshots"),
        ("above", f"holds {snapshots[1]}, which has snapshots"),
        ("quota", "has a quota of its own"),
        ("disks", "has a quota of its own"),
        ("protected", r"is one of fs\.protected\.directories"),
    ):
        with pytest.raises(UsageError, match=f"{name} {problem}, so it cannot be replaced; name a directory in it"):
            guarded.check_writable(f"{base}/{name}")
        guarded.check_writable(f"{base}/{name}/run")
    for snapshot in snapshots:
        files.web._call("DELETESNAPSHOT", snapshot, {"snapshotname": "monday"}, method="DELETE")
        files.web._call("DISALLOWSNAPSHOT", snapshot, method="PUT")


@pytest.mark.skipif(IS_HADOOP_2, reason="WebHDFS of Hadoop 2 sets no quotas")
def test_a_reached_quota_is_reported(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    files.web._call("SETQUOTA", files.place.path(base), {"namespacequota": "4"}, method="PUT")
    (tmp_path / "out").mkdir()
    for number in range(5):
        (tmp_path / "out" / str(number)).write_bytes(b"x")
    with pytest.raises(DiskFull, match="quota"):
        files.store(str(tmp_path / "out"), f"{base}/out")


# ---- small files ----


def test_one_of_many_concurrent_creations_wins_with_a_complete_file(place: HdfsPlace, base: str) -> None:
    won: list[bytes] = []

    def create(number: int) -> None:
        text = json.dumps({"attempt": number, "filler": "x" * 1000}).encode()
        if HdfsFiles(place).create_exclusive(f"{base}/commit.json", text):
            won.append(text)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = HdfsFiles(place)
    assert [files.read_bytes(f"{base}/commit.json", 1 << 28)] == won
    assert files.names(base) == ["commit.json"]


def test_a_reader_sees_the_old_or_the_new_of_a_file_that_is_written_over(place: HdfsPlace, base: str) -> None:
    files, other, seen, refusals = HdfsFiles(place), HdfsFiles(place), set(), set()
    files.write_atomic(f"{base}/view.json", b"0" * 50_000)
    going = True

    def look() -> None:
        while going:
            try:
                seen.add(other.read_bytes(f"{base}/view.json", 1 << 28))
            except DlappError as error:
                refusals.add(repr(error))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(1, 9):
            files.write_atomic(f"{base}/view.json", b"%d" % number * 50_000)
    finally:
        going = False
        reader.join()
    assert [item[:300] for item in seen if len(item) != 50_000 or len(set(item)) != 1] == []
    # Between its two calls, what is where and what is in it, a reader may meet the change; it gets an error.
    assert [refusal for refusal in refusals if "is not there" not in refusal] == []


# ---- faults ----


@pytest.fixture
def proxied(hadoop: Hadoop, place: HdfsPlace) -> Iterator[tuple[Proxy, HdfsFiles]]:
    """HDFS with a proxy before the NameNode."""
    with Proxy(("127.0.0.1", hadoop.ports["nn_http"])) as proxy:
        through = place._replace(web=(f"http://127.0.0.1:{proxy.address[1]}",))
        yield proxy, HdfsFiles(through, WebHdfs(through, patience_s=120))


def call_later(seconds: float, call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


def heal(proxy: Proxy) -> None:
    proxy.plan = Plan()


@pytest.mark.parametrize(
    "plan", [Plan(refuse=True), Plan(cut_up=10), Plan(cut_call=0), Plan(cut_down=0), Plan(cut_down=100)], ids=repr
)
def test_a_cut_connection_costs_only_time(proxied: tuple[Proxy, HdfsFiles], base: str, plan: Plan) -> None:
    proxy, files = proxied
    calls: list[Callable[[str], object]] = [
        lambda path: files.write_atomic(path, b"x"),
        lambda path: files.create_exclusive(path, b"x"),
        files.make_directory,
    ]
    for number, call in enumerate(calls):
        proxy.plan = plan
        proxy.cut_all()
        timer = call_later(0.3, lambda: heal(proxy))
        call(f"{base}/{number}")
        timer.join()
        assert files.exists(f"{base}/{number}")
    assert files.names(base) == ["0", "1", "2"]


def test_a_rename_with_a_lost_answer_is_recognized_as_done(proxied: tuple[Proxy, HdfsFiles], base: str) -> None:
    proxy, files = proxied
    path = files.place.path(base)
    for number in range(3):
        files.make_directory(f"{base}/old{number}")
        proxy.plan = Plan(cut_call=0)
        proxy.cut_all()
        timer = call_later(0.2, lambda: heal(proxy))
        assert files.web.rename(f"{path}/old{number}", f"{path}/new{number}")
        timer.join()
    assert files.names(base) == ["new0", "new1", "new2"]


def test_a_read_continues_after_a_broken_connection(
    hadoop: Hadoop, place: HdfsPlace, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(1 << 20) * 3
    HdfsFiles(place).write_atomic(f"{base}/big", content)
    files = HdfsFiles(place, WebHdfs(place))  # which knows of no DataNode yet
    with Proxy(("127.0.0.1", hadoop.ports["dn_http"])) as proxy:
        # The NameNode names the DataNode; its name is led through the proxy.
        real, cut = files.web._call, iter([100_000, 1_000_001, 700_000, None, None])

        def led(operation: str, *arguments: Any, **options: Any) -> Any:
            found = real(operation, *arguments, **options)
            if operation != "OPEN":
                return found
            proxy.plan = Plan(cut_down=next(cut))
            return found._replace(server=f"http://127.0.0.1:{proxy.address[1]}")

        monkeypatch.setattr(files.web, "_call", led)
        assert files.read_bytes(f"{base}/big", 1 << 28) == content
        assert proxy.connections == 4


def test_a_small_file_that_is_replaced_while_it_is_read_is_read_whole(
    files: HdfsFiles, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_atomic(f"{base}/x", b"short")
    real, others = files.web.status, iter([b"much longer", b"tiny"])

    def status(path: str) -> Any:
        found = real(path)
        if (other := next(others, None)) is not None:
            HdfsFiles(files.place).write_atomic(f"{base}/x", other)
        return found

    monkeypatch.setattr(files.web, "status", status)
    assert files.read_bytes(f"{base}/x", 1 << 28) == b"tiny"


def test_a_file_of_a_snapshot_keeps_its_content(files: HdfsFiles, base: str) -> None:
    files.make_directory(f"{base}/d")
    path = files.place.path(f"{base}/d")
    files.web._call("ALLOWSNAPSHOT", path, method="PUT")
    files.write_atomic(f"{base}/d/x", b"of before")
    files.web._call("CREATESNAPSHOT", path, {"snapshotname": "s"}, method="PUT")
    files.write_atomic(f"{base}/d/x", b"of today!")
    try:
        assert files.read_bytes(f"{base}/d/.snapshot/s/x", 1 << 28) == b"of before"
        assert files.read_bytes(f"{base}/d/x", 1 << 28) == b"of today!"
    finally:
        files.web._call("DELETESNAPSHOT", path, {"snapshotname": "s"}, method="DELETE")


def test_a_namenode_that_is_down_or_no_namenode_is_passed_over(hadoop: Hadoop, place: HdfsPlace, base: str) -> None:
    dead = "http://127.0.0.1:9"
    files = HdfsFiles(place._replace(web=(dead, *place.web)), WebHdfs(place._replace(web=(dead, *place.web))))
    began = time.monotonic()
    assert files.create_exclusive(f"{base}/x", b"x")
    assert files.read_bytes(f"{base}/x", 1 << 28) == b"x"
    assert time.monotonic() - began < 45  # it would be asked again for a minute
    # The RPC port answers, but not in WebHDFS.
    wrong = f"http://127.0.0.1:{hadoop.ports['nn']}"
    other = place._replace(web=(dead, wrong))
    with pytest.raises(AnyUnreachable, match=r"127\.0\.0\.1:9 connection refused; .*\(tried \d+ times in \d+ s\)"):
        WebHdfs(other, patience_s=1).status("/")


@pytest.mark.slow
def test_safe_mode_is_reported(admin: Callable[..., None], files: HdfsFiles, base: str) -> None:
    admin("-safemode", "enter")
    try:
        with pytest.raises(AnyUnreachable, match="HDFS is in safe mode"):
            files.create_exclusive(f"{base}/x", b"x")
        assert files.exists(base)
    finally:
        admin("-safemode", "leave")


def test_no_library_for_http_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom dlapp.storage.open import open_location\nimport dlapp.storage.commit\n"
        f"open_location('file://{tmp_path}').matches('file://{tmp_path}/*')\n"
        "assert 'dlapp.storage.hdfs.file_system' not in sys.modules\n"
        "import dlapp.storage.commit.hdfs, dlapp.storage.hdfs.staging\n"
        "print(*sorted({'requests', 'http.client', 'email', 'ssl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
