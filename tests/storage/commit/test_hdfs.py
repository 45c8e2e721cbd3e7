from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage import commit
from dlapp.storage.commit import CommitRefused, ForeignMarker, finish_interrupted, output_commit, part_location
from dlapp.storage.commit.written import ATTRIBUTE, attribute_value
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.storage.hdfs.webhdfs import FileStatus
from dlapp.storage.settlement import ApplicationOutputs
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import Cause, CommitClaim, FinalStatus, OutputClaim, OutputView
from dlapp.values.spec import OnFailure, OutputSpec
from tests.services.hadoop import IS_HADOOP_2
from tests.storage.mortal import Killed, mortal

APP = ApplicationId(1700000000000, 42)
OTHER = ApplicationId(1700000000000, 43)


@pytest.fixture
def target(base: str) -> str:
    return f"{base}/run 1 100%"


def tree(files: HdfsFiles, location: str) -> dict[str, str] | None:
    path = files.place.path(location)
    if files.web.status(path) is None:
        return None
    return {
        node.name + ("/" if node.is_dir else ""): "" if node.is_dir else files.read_bytes(node.source, 1 << 28).decode()
        for node in files._nodes(path)
        if node.name
    }


def plant(files: HdfsFiles, target: str, names: list[str], app: ApplicationId = APP) -> list[tuple[str, str]]:
    parts = []
    for number, name in enumerate(names, start=2):
        part = part_location(target, app, ContainerId(app, 1, number))
        files.make_directory(f"{part}/empty")
        files.web.write(files.place.path(f"{part}/model"), f"model {name}".encode())
        parts.append((name, part))
    return parts


def new_tree(names: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name in names:
        prefix = f"{name}/" if name else ""
        out |= {f"{prefix}model": f"model {name}", f"{prefix}empty/": ""} | ({prefix: ""} if prefix else {})
    return out


def old_target(files: HdfsFiles, target: str) -> dict[str, str]:
    """An output that dlapp wrote earlier."""
    files.make_directory(target)
    path = files.place.path(target)
    files.web.set_attribute(path, ATTRIBUTE, attribute_value(str(OTHER), path))
    files.web.write(files.place.path(f"{target}/weights"), b"old")
    return {"weights": "old"}


def sibling_names(files: HdfsFiles, target: str) -> list[str]:
    parent, _, name = target.rpartition("/")
    return [item for item in files.names(parent) if item != name]


def killed_at(
    monkeypatch: pytest.MonkeyPatch, place: HdfsPlace, count: int, done: bool, action: Callable[[], object]
) -> bool:
    """Run ``action`` until its ``count``-th change; whether it died."""
    one = HdfsFiles(place, mortal(place, count, done=done))
    with monkeypatch.context() as patch:
        patch.setattr(commit, "open_output", lambda target, hdfs: one)
        try:
            action()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("names", [[""], ["0", "1", "2"]])
@pytest.mark.parametrize("replaces", [True, False])
def test_parts_become_the_target_without_other_files(
    place: HdfsPlace, files: HdfsFiles, target: str, names: list[str], replaces: bool
) -> None:
    if replaces:
        old_target(files, target)
    parts = plant(files, target, names)
    commit.commit(target, APP, parts, overwrite=replaces, hdfs=place)
    assert tree(files, target) == new_tree(names)
    assert sibling_names(files, target) == []
    commit.commit(target, APP, parts, overwrite=replaces, is_retry=True, hdfs=place)
    with pytest.raises(NotFound, match="is gone"):
        commit.commit(target, APP, parts, overwrite=replaces, hdfs=place)
    assert tree(files, target) == new_tree(names)


def test_leftovers_of_a_dead_tasks_probe_are_removed_with_the_parts(
    place: HdfsPlace, files: HdfsFiles, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = plant(files, target, ["0", "1"])
    parent = parts[0][1].rpartition("/")[0]
    files.web.set_mode(place.path(parent), 0o700)
    with monkeypatch.context() as patch:
        patch.setattr(files.web, "clear", lambda *_, **__: None)
        files.probe_store(parts[0][1])
    assert len(files.names(parent)) == 3
    commit.commit(target, APP, parts, overwrite=False, hdfs=place)
    assert (tree(files, target), sibling_names(files, target)) == (new_tree(["0", "1"]), [])


def test_previous_outputs_are_kept_and_older_ones_of_dlapp_removed(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    foreign = f"{target}.previous.{ApplicationId(1600000000000, 1)}"
    files.make_directory(foreign)
    for number in range(1, 5):
        app = ApplicationId(1700000000000, number)
        parts = plant(files, target, [f"{number}"], app)
        left = commit.commit(target, app, parts, overwrite=True, keep_previous=2, hdfs=place)
        assert left == (None if number == 1 else f"{target}.previous.{app}")
    names = [f"{target}.previous.{ApplicationId(1700000000000, number)}" for number in (3, 4)]
    assert sibling_names(files, target) == [name.rpartition("/")[2] for name in (foreign, *names)]
    assert [tree(files, name) for name in (*names, target)] == [new_tree([f"{number}"]) for number in (2, 3, 4)]
    # Where others may rename what is there, nothing is removed.
    files.web.set_mode(files.place.path(target.rpartition("/")[0]), 0o777)
    commit.commit(target, APP, plant(files, target, ["5"]), overwrite=True, keep_previous=1, hdfs=place)
    assert len(sibling_names(files, target)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("done", [False, True], ids=["before a change", "after a change"])
def test_a_commit_killed_at_any_point_keeps_the_previous_output(
    monkeypatch: pytest.MonkeyPatch, place: HdfsPlace, files: HdfsFiles, base: str, done: bool
) -> None:
    for count in range(100):
        target = f"{base}/{count}/run"
        old = old_target(files, target)
        older, kept_output = f"{target}.previous.{ApplicationId(1600000000000, 1)}", f"{target}.previous.{APP}"
        files.make_directory(older)
        path = files.place.path(target)
        files.web.set_attribute(files.place.path(older), ATTRIBUTE, attribute_value(str(OTHER), path))
        parts = plant(files, target, ["0"])
        died = killed_at(
            monkeypatch, place, count, done,
            lambda: commit.commit(target, APP, parts, overwrite=True, keep_previous=1)  # noqa: B023
        )  # fmt: skip
        left = commit.commit(target, APP, parts, overwrite=True, keep_previous=1, is_retry=True, hdfs=place)
        assert left == kept_output
        assert tree(files, target) == new_tree(["0"])
        assert tree(files, kept_output) == old
        assert sibling_names(files, target) == [kept_output.rpartition("/")[2]]
        if not died:
            assert count > 7
            break


@pytest.mark.slow
def test_a_commit_of_one_trial_that_is_killed_anywhere_leaves_it_whole_or_absent(
    place: HdfsPlace, files: HdfsFiles, base: str
) -> None:
    for count in range(100):
        target = f"{base}/{count}/trials"
        location = part_location(target, APP, "trial_3_1")
        files.make_directory(part_location(target, APP, ""), 0o700)
        files.web.write(files.place.path(f"{location}/model"), b"model 3")
        spec = OutputSpec(output_path="output", target=target, by_trial=True)
        dying = HdfsFiles(place, mortal(place, count, done=True))
        died = False
        try:
            ApplicationOutputs(APP, (spec,), lambda _: dying).commit_trial(spec, 3, location, is_retry=False)  # noqa: B023
        except Killed:
            died = True
        assert tree(files, f"{target}/3") in (None, {"model": "model 3"})
        outputs = ApplicationOutputs(APP, (spec,), lambda _: files)
        if count % 2:
            outputs.commit_trial(spec, 3, location, is_retry=True)
            outputs.keep_or_drop(None)
            assert tree(files, target) == {"3/": "", "3/model": "model 3"}
        else:  # nobody knows any more that it has ended
            view = outputs.keep_or_drop(lambda _: [("3", location)])[0]  # noqa: B023
            where = view.partial or target
            assert tree(files, where) == {"3/": "", "3/model": "model 3"}
            assert not view.partial or tree(files, target) in (None, {})
        assert sibling_names(files, target) in ([], [f"trials.{APP}.partial"])
        if not died:
            assert count > 5
            break


def test_directories_recreated_by_a_concurrent_commit_are_removed(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    parts = plant(files, target, ["0", "1"])
    commit.commit(target, APP, parts, overwrite=False, hdfs=place)
    files.make_directory(f"{target}.{APP}.ready")
    commit.commit(target, APP, parts, overwrite=False, is_retry=True, hdfs=place)
    assert tree(files, target) == new_tree(["0", "1"])
    assert sibling_names(files, target) == []


def test_a_concurrently_created_target_stays_and_the_output_is_kept_aside(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    parts = plant(files, target, ["0", "1"])
    old = old_target(files, target)
    for again in (False, True):
        with pytest.raises(CommitRefused, match="overwrite is false") as refused:
            commit.commit(target, APP, parts, overwrite=False, is_retry=again, hdfs=place)
        assert tree(files, target) == old
        assert tree(files, refused.value.partial) == new_tree(["0", "1"])
        assert sibling_names(files, target) == [f"run 1 100%.{APP}.partial"]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("done", [False, True], ids=["before a change", "after a change"])
@pytest.mark.parametrize("then", ["finish_interrupted", "commit again", "keep_partial", "drop"])
def test_a_commit_that_is_killed_anywhere_can_be_ended_with_the_old_or_the_new(
    monkeypatch: pytest.MonkeyPatch, place: HdfsPlace, files: HdfsFiles, base: str, then: str, done: bool
) -> None:
    names, seen = ["0", "1"] if done else [""], set()
    new = new_tree(names)
    for count in range(100):
        target = f"{base}/{count}/run"
        old = old_target(files, target)
        parts = plant(files, target, names)
        died = killed_at(
            monkeypatch, place, count, done, lambda: commit.commit(target, APP, parts, overwrite=True)  # noqa: B023
        )  # fmt: skip
        found = tree(files, target)
        assert found in (old, new, None)
        begun = found == new or files.exists(f"{target}.{APP}.commit")
        seen.add("nothing" if found is None else "new" if found == new else "old")
        if then == "finish_interrupted":
            assert finish_interrupted(target, hdfs=place) in ([], [str(APP)])
            if not begun:
                assert tree(files, target) == old
                commit.commit(target, APP, parts, overwrite=True, hdfs=place)
        elif then == "commit again":
            commit.commit(target, APP, parts, overwrite=True, is_retry=True, hdfs=place)
        elif then == "keep_partial":
            kept_output = output_commit(target, APP, hdfs=place).keep_partial(parts)
            if found == new:
                assert kept_output is None
            else:
                assert kept_output is not None
                assert tree(files, target) == old
                assert tree(files, kept_output) == new
                files.remove(kept_output)
        else:
            output_commit(target, APP, hdfs=place).drop()
            assert tree(files, target) == (new if found == new else old)
        if then in ("finish_interrupted", "commit again"):
            assert tree(files, target) == new
        assert sibling_names(files, target) == []
        if not died:
            assert count > 7
            break
    else:
        pytest.fail("the commit never came to its end")
    assert seen == {"old", "nothing", "new"}


def test_two_processes_that_finish_one_commit_at_once_do_no_harm(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    for _ in range(3):
        parts = plant(files, target, ["0", "1", "2"])

        def run(parts: list[tuple[str, str]] = parts) -> None:
            commit.commit(target, APP, parts, overwrite=True, is_retry=True, hdfs=place)

        both = [threading.Thread(target=run) for _ in range(3)]
        for item in both:
            item.start()
        for item in both:
            item.join()
        assert tree(files, target) == new_tree(["0", "1", "2"])
        assert sibling_names(files, target) == []


def test_a_late_commit_does_not_disturb_the_next_application(place: HdfsPlace, files: HdfsFiles, target: str) -> None:
    old_target(files, target)
    parts = plant(files, target, ["0", "1"])

    def overtaken(step: str) -> None:
        if step == "ready":
            assert finish_interrupted(target, hdfs=place) == [str(APP)]
            commit.commit(target, OTHER, plant(files, target, ["7"], OTHER), overwrite=True, hdfs=place)

    commit.commit(target, APP, parts, overwrite=True, hdfs=place, step=overtaken)
    assert tree(files, target) == new_tree(["7"])
    assert sibling_names(files, target) == []


def test_an_overtaken_commit_never_moves_the_new_target(
    monkeypatch: pytest.MonkeyPatch, place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    old_target(files, target)
    parts = plant(files, target, ["0", "1"])
    slow = HdfsFiles(place)
    real_status, real_rename = slow.web.status, slow.web.rename
    ready, renamed = False, list[tuple[str, str]]()

    def status(path: str) -> FileStatus | None:
        nonlocal ready
        if ready and path == place.path(target):
            ready = False
            assert finish_interrupted(target, hdfs=place) == [str(APP)]
        return real_status(path)

    def rename(old: str, new: str, *, overwrite: bool = False) -> bool:
        renamed.append((old, new))
        return real_rename(old, new, overwrite=overwrite)

    def prefix(step: str) -> None:
        nonlocal ready
        ready = step == "ready"
        if ready:
            monkeypatch.undo()  # the other one has a view of its own

    monkeypatch.setattr(commit, "open_output", lambda target, hdfs: slow)
    slow.web.rename = rename  # type: ignore[method-assign]
    slow.web.status = status  # type: ignore[method-assign]
    commit.commit(target, APP, parts, overwrite=True, hdfs=place, step=prefix)
    assert tree(files, target) == new_tree(["0", "1"])
    assert sibling_names(files, target) == []
    found = files.web.status(place.path(target))
    assert found is not None
    assert f"/.reserved/.inodes/{found.inode_id}" not in [old for old, _ in renamed]


def settled(
    staged: HdfsStagingFiles,
    target: str,
    parts: list[tuple[str, str]] | None = None,
    *,
    app: ApplicationId = APP,
    overwrite: bool = True,
    on_failure: OnFailure = OnFailure.KEEP,
) -> OutputView:
    """Settle one output without an ApplicationMaster; ``parts``: those of its commit claim."""
    claim = None
    if parts is not None:
        claim = CommitClaim(
            attempt=1,
            final_status=FinalStatus.SUCCEEDED,
            cause=Cause.SUCCEEDED,
            diagnostics="",
            outputs=(OutputClaim(target=target, overwrite=overwrite, parts=dict(parts)),),
        )
    spec = OutputSpec(output_path="out", target=target, on_failure=on_failure)
    (view,) = staged.settle_outputs(app, (spec,), claim)
    return view


@pytest.mark.parametrize("keep", [True, False])
def test_orphaned_output_is_kept_aside_or_removed(place: HdfsPlace, files: HdfsFiles, target: str, keep: bool) -> None:
    staged, old = HdfsStagingFiles(place), old_target(files, target)
    plant(files, target, ["0", "1"])
    how = OnFailure.KEEP if keep else OnFailure.DROP
    for _ in range(2):
        assert (settled(staged, target, on_failure=how).partial is not None) == keep
        assert tree(files, target) == old
        assert len(sibling_names(files, target)) == keep
    if keep:
        names = [str(ContainerId(APP, 1, number)) for number in (2, 3)]
        models = {f"{name}/model": f"model {number}" for number, name in enumerate(names)}
        kept_output = tree(files, f"{target}.{APP}.partial")
        assert kept_output is not None
        assert {name: text for name, text in kept_output.items() if text} == models
    staged.close()


@pytest.mark.parametrize("point", ["", "marker written", "marker", "part 0", "old aside", "swapped", "done"])
def test_a_decided_commit_is_finished_by_another_process(
    place: HdfsPlace, files: HdfsFiles, target: str, point: str
) -> None:
    def dies(step: str) -> None:
        if step == point:
            raise Killed

    staged = HdfsStagingFiles(place)
    old_target(files, target)
    parts = plant(files, target, ["0", "1"])
    if point:
        with contextlib.suppress(Killed):
            commit.commit(target, APP, parts, overwrite=True, hdfs=place, step=dies)
    for _ in range(2):
        assert settled(staged, target, parts).committed
        assert tree(files, target) == new_tree(["0", "1"])
        assert sibling_names(files, target) == []
    staged.close()


def test_a_decided_commit_that_is_impossible_is_kept_aside(place: HdfsPlace, files: HdfsFiles, target: str) -> None:
    staged = HdfsStagingFiles(place)
    old = old_target(files, target)
    refused = plant(files, target, ["0", "1"])
    assert not settled(staged, target, refused, overwrite=False).committed
    lacking = plant(files, target, ["0", "1"], OTHER)
    files.remove(lacking[0][1])
    assert not settled(staged, target, lacking, app=OTHER).committed
    assert tree(files, target) == old
    assert tree(files, f"{target}.{APP}.partial") == new_tree(["0", "1"])
    assert tree(files, f"{target}.{OTHER}.partial") == new_tree(["1"])
    assert len(sibling_names(files, target)) == 2
    staged.close()


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("point", ["part 0", "ready", "old aside"])
def test_a_new_target_that_vanished_before_the_swap_is_not_committed(
    place: HdfsPlace, files: HdfsFiles, target: str, point: str, replaces: bool
) -> None:
    def dies(step: str) -> None:
        if step == point:
            raise Killed

    if point == "old aside" and not replaces:
        return
    old = old_target(files, target) if replaces else None
    parts = plant(files, target, ["0", "1"])
    with pytest.raises(Killed):
        commit.commit(target, APP, parts, overwrite=True, hdfs=place, step=dies)
    files.remove(f"{target}.{APP}.ready")
    with pytest.raises(NotFound, match="ready was taken away"):
        commit.commit(target, APP, parts, overwrite=True, is_retry=True, hdfs=place)
    staged = HdfsStagingFiles(place)
    view = settled(staged, target, parts)
    staged.close()
    assert not view.committed
    assert tree(files, target) == old
    # What was still a part is kept.
    kept_output = f"{target}.{APP}.partial"
    assert tree(files, kept_output) == (new_tree(["1"]) if point == "part 0" else None)
    assert len(sibling_names(files, target)) == (point == "part 0")


@pytest.mark.parametrize("location", ["nothing", "of another application", "what stood there before"])
def test_missing_parts_count_as_committed_only_for_this_applications_target(
    place: HdfsPlace, files: HdfsFiles, target: str, location: str
) -> None:
    parts = plant(files, target, ["0", "1"])
    files.remove(parts[0][1].rpartition("/")[0])
    if location == "what stood there before":
        files.make_directory(target)
    elif location == "of another application":
        commit.commit(target, OTHER, plant(files, target, ["7"], OTHER), overwrite=False, hdfs=place)
    before = tree(files, target)
    with pytest.raises(NotFound, match=r"is gone, so .* cannot be committed"):
        commit.commit(target, APP, parts, overwrite=True, is_retry=True, hdfs=place)
    with contextlib.closing(HdfsStagingFiles(place)) as staged:
        assert not settled(staged, target, parts).committed
    assert (tree(files, target), sibling_names(files, target)) == (before, [])


def test_a_vanished_new_target_is_not_replaced_by_another_directory(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    parts = plant(files, target, ["0", "1"])

    def dies(step: str) -> None:
        if step == "ready":
            raise Killed

    with pytest.raises(Killed):
        commit.commit(target, APP, parts, overwrite=True, hdfs=place, step=dies)
    files.remove(f"{target}.{APP}.ready")
    files.web.write(place.path(f"{target}/own"), b"of the user")
    with pytest.raises(NotFound, match="ready was taken away"):
        commit.commit(target, APP, parts, overwrite=True, is_retry=True, hdfs=place)
    with contextlib.closing(HdfsStagingFiles(place)) as staged:
        assert not settled(staged, target, parts).committed
    assert (tree(files, target), sibling_names(files, target)) == ({"own": "of the user"}, [])


def test_a_directory_that_is_replaced_passes_on_its_permissions_group_and_access_list(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    path = place.path(target)
    old_target(files, target)
    files.web.set_mode(path, 0o750)
    files.web.set_group(path, "research")
    acl = {"aclspec": "user::rwx,group::r-x,mask::r-x,other::---,user:ada:r-x,default:user:ada:r-x"}
    files.web._call("SETACL", path, acl, method="PUT")
    before = files.web._json("GETACLSTATUS", path)
    commit.commit(target, APP, plant(files, target, ["0", "1"]), overwrite=True, hdfs=place)
    assert tree(files, target) == new_tree(["0", "1"])
    assert files.web._json("GETACLSTATUS", path) == before
    assert "user:ada:r-x" in str(before)
    assert "research" in str(before)


@pytest.mark.skipif(IS_HADOOP_2, reason="Hadoop 2 has no erasure coding")
@pytest.mark.parametrize("names", [[""], ["0", "1"]], ids=["one", "two"])
def test_a_replacement_keeps_erasure_coding_and_storage_policies(
    place: HdfsPlace, files: HdfsFiles, target: str, tmp_path: Path, names: list[str]
) -> None:
    path = place.path(target)
    old_target(files, target)
    files.web._call("ENABLEECPOLICY", "/", {"ecpolicy": "XOR-2-1-1024k"}, method="PUT")
    files.web.set_ec_policy(path, "XOR-2-1-1024k")
    files.web._call("SETSTORAGEPOLICY", path, {"storagepolicy": "ALL_SSD"}, method="PUT")
    before = files.web.status(path)
    assert before is not None
    assert files.check_writable(target) == []
    (tmp_path / "tree/d").mkdir(parents=True)
    (tmp_path / "tree/d/model").write_text("model")
    parts, notes = [], list[str]()
    for number, name in enumerate(names, start=2):
        part = part_location(target, APP, ContainerId(APP, 1, number))
        files.store(str(tmp_path / "tree"), part, replaces=target, note=notes.append)
        parts.append((name, part))
    commit.commit(target, APP, parts, overwrite=True, hdfs=place)
    after = files.web.status(path)
    model = files.web.status(f"{path}/{names[-1]}/d/model".replace("//", "/"))
    assert after is not None
    assert model is not None
    for item in (after, model):
        assert (item.ec_policy, item.storage_policy) == (before.ec_policy, before.storage_policy)
    assert (before.ec_policy, notes) == ("XOR-2-1-1024k", [])
    assert after.inode_id != before.inode_id
    # A directory of replicated files stays one where those around it are coded.
    inner = f"{target}/inner"
    files.make_directory(inner)
    files.web.set_ec_policy(place.path(inner), "REPLICATION")
    commit.commit(inner, APP, plant(files, inner, names), overwrite=True, hdfs=place)
    kept_output = files.web.status(place.path(inner))
    assert kept_output is not None
    assert (kept_output.ec_policy, kept_output.storage_policy) == ("", before.storage_policy)


@pytest.mark.parametrize("names", [[""], ["0", "1"]], ids=["one", "two"])
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o027, 0o750), (0o077, 0o700), (0o002, 0o755)])
def test_a_new_output_has_the_permissions_of_the_cluster(
    place: HdfsPlace, files: HdfsFiles, target: str, umask: int, mode: int, names: list[str]
) -> None:
    other = plant(files, target, names, OTHER)
    kept_output = output_commit(target, OTHER, hdfs=place._replace(umask=umask)).keep_partial(other)
    assert kept_output is not None
    aside = files.web.status(place.path(kept_output))
    assert aside is not None
    assert aside.mode == mode
    parts = plant(files, target, names)
    commit.commit(target, APP, parts, overwrite=False, hdfs=place._replace(umask=umask))
    status = files.web.status(place.path(target))
    assert status is not None
    assert status.mode == mode


def test_a_settlement_has_the_patience_of_its_caller() -> None:
    nowhere = HdfsPlace("hdfs://nn", ("http://127.0.0.1:1",), Login("tony"))
    staged, began = HdfsStagingFiles(nowhere, patience_s=0.1), time.monotonic()
    with pytest.raises(Unreachable):
        settled(staged, "hdfs://nn/run", [("", part_location("hdfs://nn/run", APP, ContainerId(APP, 1, 2)))])
    with pytest.raises(Unreachable):
        settled(staged, "hdfs://nn/run", on_failure=OnFailure.DROP)
    assert time.monotonic() - began < 30


def test_a_failed_run_is_kept_aside_with_the_parts_that_there_are(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    parts = plant(files, target, ["0", "1"])
    files.remove(parts[0][1])
    for _ in range(2):
        kept_output = output_commit(target, APP, hdfs=place).keep_partial(parts)
        assert kept_output == f"{target}.{APP}.partial"
        assert tree(files, kept_output) == new_tree(["1"])
        assert sibling_names(files, target) == [f"run 1 100%.{APP}.partial"]


def test_a_damaged_marker_is_reported_and_does_not_stop_others(place: HdfsPlace, files: HdfsFiles, target: str) -> None:
    marker = f"{target}.{OTHER}.commit"
    for text in (b"", b"{}", b"[1]", b'{"version": 9, "number": 1, "overwrite": true, "parts": []}'):
        files.write_atomic(marker, text)
        with pytest.raises(DlappError, match=r"is damaged|written by a newer dlapp"):
            finish_interrupted(target, hdfs=place)
        commit.commit(target, APP, plant(files, target, [""]), overwrite=True, hdfs=place)
        assert tree(files, target) == new_tree([""])
        assert sibling_names(files, target) == [f"run 1 100%.{OTHER}.commit"]


# ---- other users beside the target ----


@pytest.fixture
def other(place: HdfsPlace, base: str, files: HdfsFiles) -> HdfsFiles:
    """The files as another user, who may write in ``base`` as in a directory of mode 1777."""
    files.make_directory(base)
    files.web.set_mode(files.place.path(base), 0o1777)
    return HdfsFiles(place._replace(login=Login("mallory")))


def test_another_users_marker_moves_no_file_and_the_target_is_refused(
    place: HdfsPlace, files: HdfsFiles, other: HdfsFiles, target: str, base: str
) -> None:
    files.web.write(files.place.path(f"{base}/models/best.ckpt"), b"weights")
    other.make_directory(f"{target}.{APP}.ready", 0o777)
    ready = other.web.status(other.place.path(f"{target}.{APP}.ready"))
    assert ready is not None
    for version, part in ((1, other.place.path(f"{base}/models")), (2, str(ContainerId(APP, 1, 2)))):
        content = {"version": version, "number": ready.inode_id, "overwrite": True, "parts": [["loot", part]]}
        other.write_atomic(f"{target}.{APP}.commit", json.dumps(content).encode(), 0o666)
        with pytest.raises(
            ForeignMarker, match=f"by mallory was cut off there; mallory finishes it by .*-status {APP}"
        ):
            finish_interrupted(target, hdfs=place)
        parts = plant(files, target, [""])
        with pytest.raises(ForeignMarker):
            commit.commit(target, APP, parts, overwrite=True, hdfs=place)
        kept_output = output_commit(target, APP, hdfs=place).keep_partial(parts)
        assert kept_output is not None
        output_commit(target, APP, hdfs=place).drop()
        files.remove(kept_output)
        assert files.read_bytes(f"{base}/models/best.ckpt", 1 << 28) == b"weights"
        assert other.names(f"{target}.{APP}.ready") == []
        assert not files.exists(target)


def test_a_directory_renamed_to_the_old_targets_name_stays_without_a_replacement(
    place: HdfsPlace, files: HdfsFiles, target: str
) -> None:
    """Users who may write a directory that is not sticky may rename what is there, and delete nothing in it."""
    files.web.write(files.place.path(f"{target}.{APP}.old/data"), b"pixels")
    commit.commit(target, APP, plant(files, target, [""]), overwrite=False, hdfs=place)
    assert tree(files, target) == new_tree([""])
    assert files.read_bytes(f"{target}.{APP}.old/data", 1 << 28) == b"pixels"


def test_an_own_marker_that_others_may_write_is_not_obeyed(
    place: HdfsPlace, files: HdfsFiles, other: HdfsFiles, target: str
) -> None:
    files.write_atomic(f"{target}.{APP}.commit", b"{}", 0o666)
    with pytest.raises(UntrustedFile, match="others may write it"):
        finish_interrupted(target, hdfs=place)
    files.remove(f"{target}.{APP}.commit")
    files.make_directory(f"{target}.{APP}.commit")
    with pytest.raises(UntrustedFile, match="is not a file"):
        finish_interrupted(target, hdfs=place)


@pytest.mark.parametrize("what", ["tmp", "ready", "partial"])
def test_no_parts_are_stored_in_another_users_directory(
    place: HdfsPlace, files: HdfsFiles, other: HdfsFiles, target: str, what: str, tmp_path: Path
) -> None:
    other.make_directory(f"{target}.{APP}.{what}", 0o777)
    other.web.set_mode(other.place.path(f"{target}.{APP}.{what}"), 0o777)
    (tmp_path / "model").write_text("weights")
    locations = [part_location(target, APP, ContainerId(APP, 1, number)) for number in (2, 3)]
    if what == "tmp":
        with pytest.raises(UntrustedFile, match="belongs to mallory"):
            files.store(str(tmp_path), locations[0])
        other.make_directory(locations[0])
        with pytest.raises(UntrustedFile, match="belongs to mallory"):
            commit.commit(target, APP, [("", locations[0])], overwrite=True, hdfs=place)
    else:
        parts = [(str(number), location) for number, location in enumerate(locations)]
        for location in locations:
            files.store(str(tmp_path), location)
        call: Callable[..., object] = partial(commit.commit, target, APP, overwrite=True, hdfs=place)
        if what != "ready":
            call = output_commit(target, APP, hdfs=place).keep_partial
        with pytest.raises(UntrustedFile, match="belongs to mallory"):
            call(parts)
        assert other.names(f"{target}.{APP}.{what}") == []
        assert files.exists(locations[0])
    assert not files.exists(target)


def test_an_own_marker_of_the_previous_version_is_finished_if_its_parts_are_valid(
    place: HdfsPlace, files: HdfsFiles, target: str, base: str
) -> None:
    parts = plant(files, target, [""])
    files.make_directory(f"{base}/models")
    for where, right in ((f"{base}/models", False), (parts[0][1], True)):
        number = files.web.status(files.place.path(parts[0][1]))
        assert number is not None
        content = {"version": 1, "number": number.inode_id, "overwrite": True, "parts": [["", files.place.path(where)]]}
        files.write_atomic(f"{target}.{APP}.commit", json.dumps(content).encode())
        if right:
            assert finish_interrupted(target, hdfs=place) == [str(APP)]
            assert tree(files, target) == new_tree([""])
        else:
            with pytest.raises(DlappError, match="was written by an older dlapp and names"):
                finish_interrupted(target, hdfs=place)
            assert files.exists(f"{base}/models")
