from __future__ import annotations

import ctypes
import errno
import fcntl  # noqa: F401  loaded now, so that its loading is not counted among the changes below
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.storage.commit import (
    CommitBusy,
    CommitRefused,
    ForeignMarker,
    commit,
    finish_interrupted,
    is_previous,
    output_commit,
    part_location,
)
from dlapp.storage.commit import local as commit_module
from dlapp.storage.commit.written import ATTRIBUTE, mark_written
from dlapp.storage.open import open_output
from dlapp.values.ids import ApplicationId, ContainerId
from tests.tiers import FULL

APP = ApplicationId(1700000000000, 42)
OTHER = ApplicationId(1700000000000, 43)
MOMENTS = range(0, 200, 1 if FULL else 3)
"""Changes of a file system before which a commit is killed: each one, or every third."""


def location(path: Path) -> str:
    return f"file://{path}"


def tree(path: Path) -> dict[str, str] | str | None:
    """Return what a reader finds: names and contents, or the content of a file, or None for nothing."""
    if path.is_file():
        return path.read_text()
    if not path.exists():
        return None
    return {
        str(item.relative_to(path)) + ("/" if item.is_dir() else ""): item.read_text() if item.is_file() else ""
        for item in sorted(path.rglob("*"))
    }


def store_parts(target: Path, names: list[str], app: ApplicationId = APP) -> list[tuple[str, str]]:
    """Parts as tasks leave them: a tree of files and an empty directory each."""
    parts = []
    for number, name in enumerate(names, start=2):
        part = part_location(location(target), app, ContainerId(app, 1, number))
        path = Path(part.removeprefix("file://"))
        (path / "deep").mkdir(parents=True)
        (path / "empty").mkdir()
        (path / "deep" / "model").write_text(f"model {name}")
        (path / "log").write_text(f"log {name}")
        parts.append((name, part))
    return parts


def new_tree(names: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name in names:
        prefix = f"{name}/" if name else ""
        out |= {
            f"{prefix}deep/": "",
            f"{prefix}deep/model": f"model {name}",
            f"{prefix}empty/": "",
            f"{prefix}log": f"log {name}",
        }
        out |= {prefix: ""} if prefix else {}
    return out


def sibling_names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path != target)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run 1 100%"


def marked(path: Path, *, of: Path | None = None) -> None:
    """Mark a file or directory as output that dlapp wrote to a target, here if no other is given."""
    fd = os.open(path, os.O_RDONLY)
    mark_written(fd, str(OTHER), str(of or path))
    os.close(fd)


def old_target(target: Path) -> dict[str, str]:
    """An output that dlapp wrote earlier."""
    target.mkdir(parents=True)
    marked(target)
    (target / "of before").mkdir()
    (target / "of before" / "weights").write_text("old")
    found = tree(target)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("names", [[""], ["0", "1", "2"], ["worker_0", "ps_0"]])
def test_parts_become_the_target_without_other_files(target: Path, names: list[str]) -> None:
    commit(location(target), APP, store_parts(target, names), overwrite=False)
    assert tree(target) == new_tree(names)
    assert sibling_names(target) == []


def test_a_replaced_target_has_no_files_of_the_old_one(target: Path) -> None:
    old_target(target)
    commit(location(target), APP, store_parts(target, ["0", "1"]), overwrite=True)
    assert tree(target) == new_tree(["0", "1"])
    assert sibling_names(target) == []


def replaced_path(target: Path) -> Path:
    return Path(f"{target}.replaced.{APP}")


def test_a_foreign_target_is_kept_beside_its_replacement(target: Path) -> None:
    (target / "thesis").mkdir(parents=True)
    for _ in range(2):
        left = commit(location(target), APP, store_parts(target, ["0"]), overwrite=True)
        assert left == location(replaced_path(target))
        assert tree(replaced_path(target)) == {"thesis/": ""}
        assert tree(target) == new_tree(["0"])
        assert sibling_names(target) == [replaced_path(target).name]
        commit(location(target), OTHER, store_parts(target, ["1"], OTHER), overwrite=True)  # removes what dlapp wrote
        assert tree(target) == new_tree(["1"])
        shutil.rmtree(replaced_path(target))
        shutil.rmtree(target)
        (target / "thesis").mkdir(parents=True)


def write(target: Path, number: int, *, keep: int, names: tuple[str, ...] = ("0",)) -> str | None:
    """Commit the output of an application; its parts have its number in their names."""
    app = ApplicationId(1700000000000, number)
    parts = store_parts(target, [f"{name}-{number}" for name in names], app)
    return commit(location(target), app, parts, overwrite=True, keep_previous=keep)


def previous(target: Path, number: int) -> Path:
    return Path(f"{target}.previous.{ApplicationId(1700000000000, number)}")


def test_previous_outputs_are_kept_and_older_ones_removed(target: Path) -> None:
    assert write(target, 1, keep=2) is None
    for number in range(2, 6):
        assert write(target, number, keep=2) == location(previous(target, number))
        assert is_previous(location(previous(target, number)), location(target))
        assert tree(target) == new_tree([f"0-{number}"])
        kept_output = [item for item in (number - 1, number) if item > 1]
        assert sibling_names(target) == [previous(target, item).name for item in kept_output]
        for item in kept_output:
            assert tree(previous(target, item)) == new_tree([f"0-{item - 1}"])
    # An application that was submitted earlier commits later: what it replaces is the latest all the same.
    assert write(target, 1, keep=1) == location(previous(target, 1))
    assert sibling_names(target) == [previous(target, 1).name]
    assert tree(previous(target, 1)) == new_tree(["0-5"])
    # Without the key nothing is kept, and what was kept stays.
    assert write(target, 9, keep=0) is None
    assert sibling_names(target) == [previous(target, 1).name]


def test_a_file_that_is_the_output_is_kept_too(target: Path) -> None:
    for number in (1, 2, 3):
        app = ApplicationId(1700000000000, number)
        ((_, part),) = store_parts(target, [""], app)
        path = Path(part.removeprefix("file://"))
        shutil.rmtree(path)
        path.write_text(f"{number}")
        commit(location(target), app, [("", part)], overwrite=True, keep_previous=1)
    assert (tree(target), sibling_names(target)) == ("3", [previous(target, 3).name])
    assert tree(previous(target, 3)) == "2"


@pytest.mark.parametrize("what", ["of the user's", "copied", "a link", "another's", "with another name"])
def test_foreign_directories_are_never_removed_as_previous_outputs(target: Path, what: str) -> None:
    write(target, 5, keep=1)
    path = previous(target, 1 if what != "with another name" else 2)
    if what == "a link":
        path.symlink_to(target)
    elif what == "with another name":
        path = path.with_name(path.name + ".mine")
        path.mkdir()
        marked(path, of=target)
    else:
        path.mkdir()
        (path / "thesis").write_text("1")
        if what == "copied":
            marked(path)
        if what == "another's":
            marked(path, of=target)
            os.chown(path, 12345, -1)
    for number in (6, 7, 8):
        write(target, number, keep=1)
        assert sibling_names(target) == sorted([path.name, previous(target, number).name])


def test_previous_outputs_that_others_may_rename_are_not_removed(target: Path) -> None:
    write(target, 1, keep=1)
    target.parent.chmod(0o777)
    for number in (2, 3):
        write(target, number, keep=1)
    assert sibling_names(target) == [previous(target, number).name for number in (2, 3)]
    target.parent.chmod(0o1777)
    write(target, 4, keep=1)
    assert sibling_names(target) == [previous(target, 4).name]


def test_a_foreign_target_is_not_a_previous_output(target: Path) -> None:
    target.mkdir(parents=True)
    kept_output = write(target, 1, keep=1)
    assert kept_output == location(Path(f"{target}.replaced.{ApplicationId(1700000000000, 1)}"))
    assert not is_previous(kept_output, location(target))


def test_a_previous_output_known_from_the_history_is_recognized_later(target: Path) -> None:
    target.mkdir(parents=True)
    now_ms = target.stat().st_ctime_ns // 1_000_000 + 1
    parts = store_parts(target, ["0"])
    left = commit(location(target), APP, parts, overwrite=True, keep_previous=1, commit_times=lambda: [now_ms])
    assert left == location(previous(target, 42))
    write(target, 43, keep=1)
    assert sibling_names(target) == [previous(target, 43).name]


@pytest.mark.usefixtures("no_power_cut")
@pytest.mark.parametrize("then", ["finish_interrupted", "commit again"])
def test_a_commit_killed_at_any_point_keeps_the_previous_output(tmp_path: Path, then: str) -> None:
    new = new_tree(["0"])
    for count in MOMENTS:
        target = tmp_path / f"{count}" / "run"
        old = old_target(target)
        previous(target, 7).mkdir()
        marked(previous(target, 7), of=target)
        parts = store_parts(target, ["0"])
        again = partial(commit, location(target), APP, parts, overwrite=True, keep_previous=1)
        ended = die_at(count, again)
        assert tree(target) in (old, new)
        assert old in (tree(target), tree(previous(target, 42)), *map(tree, target.parent.glob("*.tmp/*.replaced")))
        if then == "finish_interrupted":
            finish_interrupted(location(target))
        if tree(target) == old or then == "commit again":
            assert again(is_retry=True) == location(previous(target, 42))
        assert tree(target) == new
        assert tree(previous(target, 42)) == old
        assert sibling_names(target) == [previous(target, 42).name]
        if ended is None:
            assert count > 10
            break


@pytest.mark.parametrize("what", ["another's", "copied", "writable by all", "a link", "a file"])
def test_a_mark_that_another_user_could_have_set_does_not_count(target: Path, what: str) -> None:
    target.parent.mkdir()
    if what == "a link":
        (target.parent / "real").mkdir()
        marked(target.parent / "real", of=target)
        target.symlink_to("real")
    elif what == "a file":
        target.write_text("mine")
        marked(target)
        target.chmod(0o666)
    else:
        target.mkdir()
        marked(target, of=target.parent / "other" if what == "copied" else None)
        if what == "another's":
            os.chown(target, 4711, -1)
        elif what == "writable by all":
            target.chmod(0o777)
    left = commit(location(target), APP, store_parts(target, ["0"]), overwrite=True)
    assert left == location(replaced_path(target))
    assert os.path.lexists(replaced_path(target))
    assert tree(target) == new_tree(["0"])


def test_without_a_mark_the_users_history_identifies_outputs_of_dlapp(target: Path) -> None:
    target.mkdir(parents=True)
    changed_ms = target.stat().st_ctime_ns // 1_000_000
    parts = store_parts(target, ["0"])
    assert commit(location(target), APP, parts, overwrite=True, commit_times=lambda: [1, changed_ms]) is None
    assert sibling_names(target) == []
    shutil.rmtree(target)
    target.mkdir()  # it may get the same inode number
    parts = store_parts(target, ["0"])
    left = commit(location(target), APP, parts, overwrite=True, commit_times=lambda: [changed_ms])
    assert left == location(replaced_path(target))


def test_a_single_file_output_becomes_a_file(target: Path) -> None:
    part = part_location(location(target), APP, ContainerId(APP, 1, 2))
    path = Path(part.removeprefix("file://"))
    path.parent.mkdir(parents=True)
    path.write_text("0.98")
    old_target(target)
    commit(location(target), APP, [("", part)], overwrite=True)
    assert tree(target) == "0.98"
    assert sibling_names(target) == []


def test_a_concurrently_created_target_is_untouched_and_the_output_kept_aside(target: Path) -> None:
    parts = store_parts(target, ["0", "1"])
    old = old_target(target)
    with pytest.raises(CommitRefused, match="overwrite is false") as refused:
        commit(location(target), APP, parts, overwrite=False)
    assert tree(target) == old
    assert refused.value.partial == f"{location(target)}.{APP}.partial"
    assert tree(Path(refused.value.partial.removeprefix("file://"))) == new_tree(["0", "1"])
    assert sibling_names(target) == [f"{target.name}.{APP}.partial"]
    with pytest.raises(CommitRefused):
        commit(location(target), APP, parts, overwrite=False, is_retry=True)


def test_a_missing_part_fails_the_commit_without_changes(target: Path) -> None:
    parts = store_parts(target, ["0", "1"])
    old = old_target(target)
    shutil.rmtree(parts[1][1].removeprefix("file://"))
    with pytest.raises(NotFound, match="is gone"):
        commit(location(target), APP, parts, overwrite=True)
    assert tree(target) == old
    assert Path(parts[0][1].removeprefix("file://")).exists()


def test_a_finished_commit_may_be_repeated_explicitly(target: Path) -> None:
    parts = store_parts(target, ["0"])
    commit(location(target), APP, parts, overwrite=False)
    commit(location(target), APP, parts, overwrite=False, is_retry=True)
    with pytest.raises(NotFound):
        commit(location(target), APP, parts, overwrite=False)
    assert tree(target) == new_tree(["0"])


def test_missing_parts_are_not_taken_for_another_applications_output(target: Path) -> None:
    commit(location(target), OTHER, store_parts(target, ["0"], OTHER), overwrite=False)
    parts = store_parts(target, ["0"])
    shutil.rmtree(f"{target}.{APP}.tmp")
    with pytest.raises(NotFound, match="is gone"):
        commit(location(target), APP, parts, overwrite=True, is_retry=True)
    assert tree(target) == new_tree(["0"])
    os.removexattr(target, ATTRIBUTE)
    commit(location(target), APP, parts, overwrite=True, is_retry=True)  # nothing says whose it is


def test_a_failed_run_is_kept_aside_with_the_parts_that_there_are(target: Path) -> None:
    parts = store_parts(target, ["0", "1"])
    shutil.rmtree(parts[0][1].removeprefix("file://"))
    for _ in range(2):
        assert output_commit(location(target), APP).keep_partial(parts) == f"{location(target)}.{APP}.partial"
        assert tree(Path(f"{target}.{APP}.partial")) == new_tree(["1"])
        assert sibling_names(target) == [f"{target.name}.{APP}.partial"]
    assert not target.exists()


def test_output_of_failed_containers_is_kept_beside_that_of_the_others(target: Path) -> None:
    parts = store_parts(target, ["0", "1", "2"])
    for _ in range(2):
        assert output_commit(location(target), APP).keep_failed(parts[1:2]) == f"{location(target)}.{APP}.failed"
    commit(location(target), APP, [parts[0], parts[2]], overwrite=False)
    assert tree(target) == new_tree(["0", "2"])
    assert tree(Path(f"{target}.{APP}.failed")) == new_tree(["1"])
    assert sibling_names(target) == [f"{target.name}.{APP}.failed"]
    assert output_commit(location(target), OTHER).keep_failed([]) is None


def test_output_of_a_single_failed_container_is_kept_beside_the_target(target: Path) -> None:
    parts = store_parts(target, [""])
    for _ in range(2):
        assert output_commit(location(target), APP).keep_failed(parts) == f"{location(target)}.{APP}.failed"
    assert tree(Path(f"{target}.{APP}.failed")) == new_tree([""])


def test_a_failed_run_without_output_keeps_no_files_aside(target: Path) -> None:
    target.parent.mkdir()
    parts = [("", part_location(location(target), APP, ContainerId(APP, 1, 2)))]
    assert output_commit(location(target), APP).keep_partial(parts) is None
    assert sibling_names(target) == []


def test_drop_leaves_the_target_and_other_applications_alone(target: Path) -> None:
    old = old_target(target)
    store_parts(target, ["0"])
    others = store_parts(target, ["0"], OTHER)
    output_commit(location(target), APP).drop()
    output_commit(location(target), APP).drop()
    assert tree(target) == old
    assert sibling_names(target) == [f"{target.name}.{OTHER}.tmp"]
    commit(location(target), OTHER, others, overwrite=True)
    assert tree(target) == new_tree(["0"])


@pytest.fixture
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, not machines: without syncfs, hundreds of commits need not wait for a busy disk."""
    monkeypatch.setattr(commit_module, "_make_durable", lambda names: None)


def die_at(count: int, action: Callable[[], object]) -> int | None:
    """Run ``action`` in a child that kills itself before its ``count``-th change of a file system.

    Each change is announced by an audit event of Python's, the calls through ctypes by the loading of the library.
    Returns the signal that ended the child, or None when it came to its end.
    """
    child = os.fork()
    if child == 0:
        left = count

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "ctypes.dlopen", "open"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(hook)
            action()
            code = 0
        except CommitRefused:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    assert os.WEXITSTATUS(status) == 0
    return None


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("no_power_cut")
@pytest.mark.parametrize("names", [[""], ["0", "1"]], ids=["one part", "two parts"])
@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "is new"])
@pytest.mark.parametrize("then", ["finish_interrupted", "commit again", "keep_partial", "drop"])
def test_a_commit_that_is_killed_anywhere_leaves_old_or_new_and_can_be_ended(
    tmp_path: Path, names: list[str], replaces: bool, then: str
) -> None:
    new = new_tree(names)
    seen = set()
    for count in MOMENTS:
        target = tmp_path / f"{count}" / "run"
        old = old_target(target) if replaces else None
        parts = store_parts(target, names)
        ended = die_at(count, lambda: commit(location(target), APP, parts, overwrite=True))  # noqa: B023
        found = tree(target)
        assert found in (old, new)
        begun = found == new or Path(f"{target}.{APP}.commit").exists()
        seen.add((begun, found == new))
        if then == "finish_interrupted":
            finish_interrupted(location(target))
            if begun:
                assert tree(target) == new
                assert sibling_names(target) == []
            else:
                assert tree(target) == old
                commit(location(target), APP, parts, overwrite=True)
        elif then == "commit again":
            commit(location(target), APP, parts, overwrite=True, is_retry=True)
        elif then == "keep_partial":
            kept_output = output_commit(location(target), APP).keep_partial(parts)
            if found == new:
                assert kept_output is None
            else:
                assert kept_output is not None
                assert tree(target) == old
                assert tree(Path(kept_output.removeprefix("file://"))) == new
                shutil.rmtree(kept_output.removeprefix("file://"))
        else:
            output_commit(location(target), APP).drop()
            assert tree(target) == found
        if then in ("finish_interrupted", "commit again"):
            assert tree(target) == new
        assert sibling_names(target) == []
        if ended is None:
            assert count > 10
            break
        assert ended == signal.SIGKILL
    else:
        pytest.fail("the commit never came to its end")
    assert seen == {(False, False), (True, False), (True, True)}


class Killed(BaseException):
    """Stands for the SIGKILL of a process."""


@pytest.mark.parametrize("replaces", [True, False])
def test_a_new_target_that_vanished_before_the_swap_is_not_committed(target: Path, replaces: bool) -> None:
    def dies(step: str) -> None:
        if step == "ready":
            raise Killed

    target.parent.mkdir(exist_ok=True)
    old = old_target(target) if replaces else None
    parts = store_parts(target, ["0", "1"])
    with pytest.raises(Killed):
        commit(location(target), APP, parts, overwrite=True, step=dies)
    shutil.rmtree(f"{target}.{APP}.ready")
    with pytest.raises(NotFound, match=r"ready was taken away, so .* nothing of the output is left"):
        commit(location(target), APP, parts, overwrite=True, is_retry=True)
    assert output_commit(location(target), APP).keep_partial(parts) is None
    assert (tree(target) if target.exists() else None) == old
    assert sibling_names(target) == []


@pytest.mark.usefixtures("no_power_cut")
@pytest.mark.parametrize("then", [finish_interrupted, None], ids=["finish_interrupted", "commit again"])
def test_a_refusal_killed_at_any_point_loses_no_file(tmp_path: Path, then: Callable[[str], object] | None) -> None:
    for count in MOMENTS:
        target = tmp_path / f"{count}" / "run"
        old = old_target(target)
        parts = store_parts(target, ["0", "1"])
        ended = die_at(count, lambda: commit(location(target), APP, parts, overwrite=False))  # noqa: B023
        if then:
            then(location(target))
        if not Path(f"{target}.{APP}.partial").exists():
            with pytest.raises(CommitRefused):
                commit(location(target), APP, parts, overwrite=False, is_retry=True)
        assert tree(target) == old
        assert tree(Path(f"{target}.{APP}.partial")) == new_tree(["0", "1"])
        if ended is None:
            break
    assert count > 10


@pytest.mark.usefixtures("no_power_cut")
@pytest.mark.parametrize("ending", ["keep_partial", "drop"])
def test_setting_aside_that_is_killed_anywhere_can_be_repeated(tmp_path: Path, ending: str) -> None:
    for count in MOMENTS:
        target = tmp_path / f"{count}" / "run"
        old = old_target(target)
        parts = store_parts(target, ["0", "1"])
        arguments = () if ending == "drop" else (parts,)
        end = getattr(output_commit(location(target), APP), ending)
        ended = die_at(count, lambda: end(*arguments))  # noqa: B023
        end(*arguments)
        assert tree(target) == old
        partial = Path(f"{target}.{APP}.partial")
        if ending == "drop":
            assert sibling_names(target) == []
        else:
            assert tree(partial) == new_tree(["0", "1"])
            assert sibling_names(target) == [partial.name]
        if ended is None:
            break
    assert count > 3


def test_a_running_commit_is_not_finished_by_others(target: Path) -> None:
    old = old_target(target)
    parts = store_parts(target, ["0", "1"])
    stands, go_on = threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "ready":
            stands.set()
            assert go_on.wait(120)

    owner = threading.Thread(
        target=commit, args=(location(target), APP, parts), kwargs={"overwrite": True, "step": step}, name="owner"
    )
    owner.start()
    try:
        assert stands.wait(120)
        assert finish_interrupted(location(target)) == []
        attempts: list[Callable[[], object]] = [
            lambda: commit(location(target), APP, parts, overwrite=True),
            lambda: output_commit(location(target), APP).keep_partial(parts),
            lambda: output_commit(location(target), APP).drop(),
        ]
        for again in attempts:
            with pytest.raises(CommitBusy):
                again()
        assert tree(target) == old
    finally:
        go_on.set()
        owner.join()
    assert tree(target) == new_tree(["0", "1"])
    assert sibling_names(target) == []


def test_two_applications_that_commit_to_one_target_leave_one_of_them_whole(target: Path) -> None:
    for _ in range(10):
        first, second = store_parts(target, ["0", "1"]), store_parts(target, ["5"], OTHER)
        both = [
            threading.Thread(target=commit, args=(location(target), app, parts), kwargs={"overwrite": True})
            for app, parts in ((APP, first), (OTHER, second))
        ]
        for item in both:
            item.start()
        for item in both:
            item.join()
        assert tree(target) in (new_tree(["0", "1"]), new_tree(["5"]))
        assert sibling_names(target) == []


def test_an_output_that_another_commit_replaces_in_the_last_moment_is_removed_by_it(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_target(target)
    first, second = store_parts(target, ["0", "1"]), store_parts(target, ["5"], OTHER)
    exchange, waiting = commit_module._renameat2, [True]

    def after_the_other(*arguments: Any) -> bool:
        if arguments[4] == commit_module._EXCHANGE and waiting.pop():
            waiting.append(False)
            commit(location(target), OTHER, second, overwrite=True)
            assert tree(target) == new_tree(["5"])
        return exchange(*arguments)

    monkeypatch.setattr(commit_module, "_renameat2", after_the_other)
    assert commit(location(target), APP, first, overwrite=True) is None
    assert tree(target) == new_tree(["0", "1"])
    assert sibling_names(target) == []


def test_a_target_removed_at_the_last_moment_is_no_error(target: Path) -> None:
    old_target(target)
    parts = store_parts(target, ["0", "1"])

    def step(name: str) -> None:
        if name == "ready in tmp":
            shutil.rmtree(target)

    assert commit(location(target), APP, parts, overwrite=True, step=step) is None
    assert tree(target) == new_tree(["0", "1"])
    assert sibling_names(target) == []


@pytest.mark.root
def test_an_old_target_that_its_owner_protected_is_replaced(target: Path) -> None:
    old_target(target)
    marked(target, of=Path("/") / target.name)  # as it is in the chroot below
    parts = store_parts(target, ["0"])
    target.chmod(0o555)
    for path in (target, *target.parent.rglob("*"), target.parent):
        os.chown(path, 65534, 65534)

    def as_nobody() -> None:
        os.chdir(target.parent)
        os.chroot(".")
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        here = [(name, part.replace(str(target.parent), "")) for name, part in parts]
        assert commit(f"file:///{target.name}", APP, here, overwrite=True) is None

    assert die_at(10_000, as_nobody) is None
    assert tree(target) == new_tree(["0"])
    assert sibling_names(target) == []


def test_the_next_application_first_finishes_the_commit_of_a_dead_one(target: Path) -> None:
    old_target(target)
    parts = store_parts(target, ["0", "1"])

    def dies_when_swapped(name: str) -> None:
        if name == "swapped":
            os.kill(os.getpid(), signal.SIGKILL)

    assert die_at(10_000, lambda: commit(location(target), APP, parts, overwrite=True, step=dies_when_swapped))
    commit(location(target), OTHER, store_parts(target, ["7"], OTHER), overwrite=True)
    assert tree(target) == new_tree(["7"])
    assert sibling_names(target) == []


def test_directories_ambiguous_after_a_death_are_kept(target: Path) -> None:
    old = old_target(target)
    parts = store_parts(target, ["0"])

    def dies_when_swapped(name: str) -> None:
        if name == "swapped":
            os.kill(os.getpid(), signal.SIGKILL)

    assert die_at(10_000, lambda: commit(location(target), APP, parts, overwrite=True, step=dies_when_swapped))
    target.rename(f"{target} moved by hand")
    assert finish_interrupted(location(target)) == [str(APP)]
    assert tree(Path(f"{target}.{APP}.partial")) == old
    assert sibling_names(target) == sorted([f"{target.name} moved by hand", f"{target.name}.{APP}.partial"])


class LibraryWithoutExchange:
    """The C library on a file system such as NFS: a rename with flags is refused (rename(2), EINVAL)."""

    def __init__(self, real: ctypes.CDLL) -> None:
        self.syncfs = real.syncfs

    def renameat2(self, *_arguments: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1


def test_a_file_system_that_cannot_exchange_names_is_refused_and_the_output_kept(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = old_target(target)
    parts = store_parts(target, ["0", "1"])
    real = ctypes.CDLL(None, use_errno=True)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: LibraryWithoutExchange(real))
    with pytest.raises(UsageError, match="its file system cannot exchange two names"):
        open_output(location(target)).check_writable(location(target))
    with pytest.raises(DlappError, match="its file system cannot exchange two names"):
        commit(location(target), APP, parts, overwrite=True)
    kept_output = output_commit(location(target), APP).keep_partial(parts)
    assert tree(target) == old
    assert tree(Path(f"{target}.{APP}.partial")) == new_tree(["0", "1"])
    assert kept_output == f"{location(target)}.{APP}.partial"
    assert sibling_names(target) == [f"{target.name}.{APP}.partial"]


@pytest.mark.root
def test_another_users_interrupted_commit_is_left_to_them_and_the_target_is_refused(target: Path) -> None:
    old_target(target)
    parts = store_parts(target, ["0"])

    def dies_when_ready(name: str) -> None:
        if name == "ready":
            os.kill(os.getpid(), signal.SIGKILL)

    assert die_at(10_000, lambda: commit(location(target), APP, parts, overwrite=True, step=dies_when_ready))
    before = sibling_names(target)

    def as_nobody() -> None:
        os.chdir(target.parent)
        os.chroot(".")
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(ForeignMarker, match=f"{APP} by .* was cut off there; .* finishes it by dlapp-status {APP}"):
            finish_interrupted(f"file:///{target.name}")

    assert die_at(10_000, as_nobody) is None
    assert sibling_names(target) == before
    assert finish_interrupted(location(target)) == [str(APP)]
    assert tree(target) == new_tree(["0"])


@pytest.mark.root
def test_an_old_target_that_cannot_be_removed_does_not_stop_the_new_one(target: Path) -> None:
    old = old_target(target)
    parts = store_parts(target, ["0"])
    os.chown(target.parent, 65534, 65534)
    for path in target.parent.glob(f"*.{APP}.tmp/**/*"):
        os.chown(path, 65534, 65534)
    os.chown(f"{target}.{APP}.tmp", 65534, 65534)

    def as_nobody() -> None:
        os.chdir(target.parent)
        os.chroot(".")
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        here = [(name, part.replace(str(target.parent), "")) for name, part in parts]
        left = commit(f"file:///{target.name}", APP, here, overwrite=True)
        assert left == f"file:///{target.name}.replaced.{APP}"

    assert die_at(10_000, as_nobody) is None
    assert tree(target) == new_tree(["0"])
    assert tree(Path(f"{target}.replaced.{APP}")) == old
    assert sibling_names(target) == [f"{target.name}.replaced.{APP}"]


def test_a_damaged_marker_is_reported_and_does_not_stop_others(target: Path) -> None:
    target.parent.mkdir()
    marker = Path(f"{target}.{OTHER}.commit")
    for text in ("", "{}", "[1]", '{"version": 9, "inode": 1, "overwrite": true, "parts": []}'):
        marker.write_text(text)
        with pytest.raises(DlappError, match=r"is damaged|written by a newer dlapp"):
            finish_interrupted(location(target))
        commit(location(target), APP, store_parts(target, [""]), overwrite=True)
        assert tree(target) == new_tree([""])
        assert sibling_names(target) == [marker.name]
