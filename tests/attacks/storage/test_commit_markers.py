"""Another user writes beside the victim's target, as they may in a sticky directory: whatever kind, and whenever."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import DlappError
from dlapp.storage import commit, local, tree
from dlapp.storage.commit import local as local_commit
from dlapp.storage.commit.marker import ForeignMarker, parse_marker
from dlapp.storage.local import LocalFiles
from dlapp.storage.tree import make_own_directory
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId, ContainerId
from tests.attacks import sysctls
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import ATTACKER, VICTIM, Identities, User
from tests.attacks.snapshots import changes, snapshot, unchanged

APP = ApplicationId(1700000000000, 42)
CONTAINER = ContainerId(APP, 1, 2)
Hostile = Callable[..., None]


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: who hangs is found by a deadline, which the disk of a busy machine may exceed."""
    monkeypatch.setattr(local_commit, "_make_durable", lambda names: None)


def sibling(place: Path, what: str) -> Path:
    return place / f"run.{APP}.{what}"


def target_of(place: Path) -> str:
    return f"file://{place}/run"


def part_of(place: Path) -> str:
    return commit.part_location(target_of(place), APP, CONTAINER)


def marker_of_version_1(parts: list[tuple[str, str]], inode: int = 1) -> bytes:
    return json.dumps({"version": 1, "inode": inode, "overwrite": True, "parts": parts}).encode()


def store_and_commit(place: Path) -> str:
    """Store and commit as the victim's task and ApplicationMaster do. Return the error, empty if there is none."""
    output = Path.home() / "output"
    output.mkdir(exist_ok=True)
    (output / "model").write_text("weights")
    try:
        LocalFiles().store(str(output), part_of(place))
        commit.commit(target_of(place), APP, [("", part_of(place))], overwrite=True)
    except DlappError as error:
        return str(error)
    return ""


def settle_by_force(place: Path) -> list[str]:
    """All other calls that look beside the target; the errors of them."""
    messages = []
    for call in (
        lambda: commit.finish_interrupted(target_of(place)),
        lambda: commit.output_commit(target_of(place), APP).keep_partial([("", part_of(place))]),
        lambda: commit.output_commit(target_of(place), APP).drop(),
    ):
        try:
            call()
        except DlappError as error:
            messages.append(str(error))
    return messages


@contextlib.contextmanager
def contents_unchanged(bait: Bait) -> Iterator[None]:
    """Compare as `unchanged`, but for the number of names that a file has."""
    before = snapshot(bait.top)
    yield
    assert [line for line in changes(before, snapshot(bait.top)) if ": links " not in line] == []


def assert_one_line(message: str) -> None:
    assert "\n" not in message
    assert 0 < len(message) < 600


@pytest.mark.proves("commit-marker")
def test_a_forged_marker_moves_no_file_of_the_victim(
    identities: Identities, place: Path, victim: User, attacker: User
) -> None:
    models = identities.home(victim) / "models"
    models.mkdir()
    (models / "best.ckpt").write_text("weights")
    for path in (models, models / "best.ckpt"):
        os.chown(path, victim.uid, victim.gid)

    def plant() -> None:
        ready = sibling(place, "ready")
        ready.mkdir()
        ready.chmod(0o777)
        marker = sibling(place, "commit")
        marker.write_bytes(marker_of_version_1([("loot", str(models))], ready.stat().st_ino))
        marker.chmod(0o666)

    def victims_call() -> str:
        try:
            commit.finish_interrupted(target_of(place))
        except ForeignMarker as error:
            return str(error)
        return ""

    identities.call(attacker, plant)
    with unchanged(models, sibling(place, "ready"), sibling(place, "commit")):
        answer = identities.call(victim, victims_call)
        assert f"by attacker was cut off there; attacker finishes it by dlapp-status {APP}" in answer
        identities.call(victim, settle_by_force, place)
        assert "attacker" in identities.call(victim, store_and_commit, place)


def test_the_launcher_refuses_the_target_with_the_owner_and_the_command(
    identities: Identities, place: Path, victim: User, attacker: User
) -> None:
    def plant() -> None:
        sibling(place, "commit").write_bytes(marker_of_version_1([("", f"{place}/home-victim")]))
        sibling(place, "commit").chmod(0o666)

    def write() -> None:
        workspace = Path.home() / "w"
        workspace.mkdir()
        (workspace / "run.sh").write_text("#!/bin/sh\nmkdir -p out; echo 1 > out/x\n")
        (Path.home() / "app.properties").write_text(
            "[application]\nusername=victim\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=run.sh\n"
            f"[resources]\nmemory=100m\n[to_hdfs]\noutput_path=out\nhdfs={place}/run\n"
        )

    identities.call(attacker, plant)
    identities.call(victim, write)
    with unchanged(sibling(place, "commit")):
        done = identities.run(victim, "dlapp-launcher", "app.properties", deadline_s=20)
    assert done.code == 2, done
    assert f"dlapp-status {APP}" in done.err + done.out
    assert "attacker" in done.err + done.out


@pytest.mark.proves("commit-marker")
@pytest.mark.sampled(3)
@sysctls.BOTH
def test_hostile_files_in_place_of_the_marker_are_ignored(
    identities: Identities, place: Path, hostile: Hostile, bait: Bait, victim: User
) -> None:
    content = marker_of_version_1([("", str(bait.directory))])
    hostile(sibling(place, "commit"), owner=victim, content=content)
    kind = hostile.kind  # type: ignore[attr-defined]

    def call() -> str:
        try:
            commit.finish_interrupted(target_of(place))
        except DlappError as error:
            return str(error)
        return ""

    with unchanged(bait.top, sibling(place, "commit")):
        assert_one_line(identities.call(victim, call))
        for message in identities.call(victim, settle_by_force, place):
            assert_one_line(message)
        assert_one_line(identities.call(victim, store_and_commit, place))
    assert not (place / "run").exists(), kind


@pytest.mark.proves("commit-parts")
@pytest.mark.sampled(7)
@pytest.mark.parametrize("what", ["tmp", "ready", "partial", "replaced"])
@sysctls.BOTH
def test_hostile_files_beside_the_target_fail_at_most_this_commit(
    identities: Identities, place: Path, hostile: Hostile, bait: Bait, victim: User, what: str
) -> None:
    hostile(sibling(place, what), owner=victim, content=b"x")
    own = sibling(place, what).lstat().st_uid == victim.uid
    with contents_unchanged(bait):
        answer = identities.call(victim, store_and_commit, place)
        if answer:
            assert_one_line(answer)
            assert not (place / "run").exists()
        else:
            assert (place / "run" / "model").read_text() == "weights"
        kept = identities.call(victim, settle_by_force, place)
        assert all("\n" not in item for item in kept)
    if what == "tmp":
        assert answer
    if what in ("partial", "replaced") or own:
        assert not answer or what == "tmp"
    found = sibling(place, what)
    if os.path.lexists(found) and stat.S_ISDIR(found.lstat().st_mode):
        assert list(found.iterdir()) == []


@pytest.mark.proves("commit-names")
@pytest.mark.parametrize("what", ["tmp", "ready"])
def test_a_victims_directory_renamed_to_a_commit_name_is_not_removed(
    identities: Identities, place: Path, victim: User, attacker: User, what: str
) -> None:
    """Users who may write a directory that is not sticky may rename what is there, and cannot look into it, let
    alone empty it. The victim's dlapp does not do that for them."""
    top = place / "project"
    top.mkdir()
    top.chmod(0o777)

    def make() -> None:
        (top / "dataset/images").mkdir(parents=True)
        (top / "dataset/images/1.png").write_text("pixels")
        (top / "dataset").chmod(0o755)

    for call in (settle_by_force, store_and_commit):
        identities.call(victim, make)
        identities.call(attacker, lambda: os.rename(top / "dataset", sibling(top, what)))
        identities.call(victim, call, top)
        found = [path for path in top.iterdir() if (path / "images/1.png").exists()]
        assert len(found) == 1, call
        assert (found[0] / "images/1.png").read_text() == "pixels"
        identities.call(victim, shutil.rmtree, found[0])


@pytest.mark.proves("commit-names")
def test_a_directory_moved_to_a_name_of_an_interrupted_commit_is_kept(
    identities: Identities, place: Path, victim: User, attacker: User
) -> None:
    top = place / "project"
    top.mkdir()
    top.chmod(0o777)

    def abort_calls() -> None:
        for name in ("dataset", "run"):
            (top / name).mkdir()
            (top / name / "data").write_text(name)
        interrupted(top, "swapped")

    def attack() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(sibling(top, "ready"), top / "aside")
        os.rename(top / "dataset", sibling(top, "ready"))

    identities.call(victim, abort_calls)
    identities.call(attacker, attack)
    assert identities.call(victim, commit.finish_interrupted, target_of(top)) == [str(APP)]
    assert (top / "run/model").exists()
    assert sorted(path.read_text() for path in top.glob("*/data")) == ["dataset", "run"]


def test_a_directory_exchanged_for_the_parts_is_not_removed_by_a_store(
    identities: Identities, place: Path, victim: User, attacker: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = place / "project"
    top.mkdir()
    top.chmod(0o777)

    def make() -> None:
        (top / "dataset").mkdir()
        (top / "dataset/data").write_text("pixels")
        (top / "dataset").chmod(0o777)

    def plant() -> None:
        (top / "fake").mkdir()
        os.rename(top / "dataset", top / "fake" / str(CONTAINER))
        (top / "fake").chmod(0o777)

    def exchange(path: str) -> None:
        make_own_directory(path)
        os.rename(path, top / "aside")
        os.rename(top / "fake", path)

    identities.call(victim, make)
    identities.call(attacker, plant)
    monkeypatch.setattr(local, "make_own_directory", exchange)
    assert f"belongs to uid {attacker.uid}" in identities.call(victim, store_and_commit, top)
    assert (sibling(top, "tmp") / str(CONTAINER) / "data").read_text() == "pixels"


@pytest.mark.proves("commit-names")
def test_a_parts_directory_exchanged_during_a_store_does_not_redirect_it(
    identities: Identities, place: Path, victim: User, attacker: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, copy_file = place / "project", tree.copy_file
    top.mkdir()
    top.chmod(0o777)

    def prepare() -> None:
        (Path.home() / "private").mkdir(mode=0o700)
        (Path.home() / "output").mkdir()
        (Path.home() / "output/model").write_text("weights")

    def plant() -> None:
        (top / "fake").mkdir()
        (top / "fake" / str(CONTAINER)).symlink_to(identities.home(victim) / "private")

    def exchange_and_copy(*arguments: Any, **options: Any) -> None:
        os.rename(sibling(top, "tmp"), top / "aside")
        os.rename(top / "fake", sibling(top, "tmp"))
        copy_file(*arguments, **options)

    identities.call(victim, prepare)
    identities.call(attacker, plant)
    monkeypatch.setattr(tree, "copy_file", exchange_and_copy)
    with unchanged(identities.home(victim) / "private"):
        identities.call(victim, lambda: LocalFiles().store(str(Path.home() / "output"), part_of(top)))
    assert (top / "aside" / str(CONTAINER) / "model").read_text() == "weights"


def test_a_directory_exchanged_for_the_replaced_target_is_kept(
    identities: Identities, place: Path, victim: User, attacker: User
) -> None:
    top = place / "project"
    top.mkdir()
    top.chmod(0o777)

    def commit_while_names_change(step: str) -> None:
        def attack(done: str) -> None:
            if done == step:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(sibling(top, "ready"), top / "aside")
                os.rename(top / "dataset", sibling(top, "ready"))

        (top / "dataset").mkdir()
        (top / "dataset/data").write_text("pixels")
        (Path.home() / "output").mkdir(exist_ok=True)
        (Path.home() / "output/model").write_text("weights")
        LocalFiles().store(str(Path.home() / "output"), part_of(top))
        commit.commit(target_of(top), APP, [("", part_of(top))], overwrite=True, step=attack)

    # First there is no target to be replaced, then there is one.
    for step in ("swapped", "swapped"):
        identities.call(victim, commit_while_names_change, step)
        assert (top / "run/model").exists()
        found = [path for path in top.iterdir() if (path / "data").exists()]
        assert len(found) == 1
        identities.call(victim, shutil.rmtree, found[0])


@pytest.mark.proves("commit-names")
@pytest.mark.parametrize("step", ["durable", "marker", "part 1", "ready"])
@pytest.mark.parametrize("what", ["ready", "partial"])
def test_a_private_directory_with_a_commit_name_is_neither_opened_nor_written(
    identities: Identities, place: Path, victim: User, attacker: User, what: str, step: str
) -> None:
    """Users who may write a directory that is not sticky may rename the victim's other directories in it."""
    top = place / "project"
    top.mkdir()
    top.chmod(0o777)

    def commit_while_names_change() -> tuple[int, str, list[str]]:
        def attack(done: str) -> None:
            if done == step:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(sibling(top, what), top / "aside")
                os.rename(top / "private", sibling(top, what))
                if what == "partial":
                    raise DlappError("the application is killed")

        (top / "private").mkdir(mode=0o700)
        (top / "private/0").write_text("precious")
        kept = os.open(top / "private", os.O_RDONLY)
        parts = []
        for number, name in enumerate(("0", "1")):
            output = Path.home() / f"output{number}"
            output.mkdir()
            (output / "model").write_text("weights")
            source = str(output / "model") if name == "0" else str(output)
            parts.append((name, commit.part_location(target_of(top), APP, ContainerId(APP, 1, 2 + number))))
            LocalFiles().store(source, parts[-1][1])
        with contextlib.suppress(DlappError):
            commit.commit(target_of(top), APP, parts, overwrite=True, step=attack)
        with contextlib.suppress(DlappError):
            commit.finish_interrupted(target_of(top))
        with contextlib.suppress(DlappError):
            commit.output_commit(target_of(top), APP).keep_partial(parts)
        with open("0", opener=lambda name, flags: os.open(name, flags, dir_fd=kept)) as file:
            return stat.S_IMODE(os.fstat(kept).st_mode), file.read(), sorted(os.listdir(kept))

    assert identities.call(victim, commit_while_names_change) == (0o700, "precious", ["0"])


@pytest.mark.parametrize("names", [[""], ["0", "1"]], ids=["whole", "parts"])
@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_a_commit_is_not_done_because_something_else_has_the_name_ready(
    tmp_path: Path, kind: str, names: list[str]
) -> None:
    ready, parts = sibling(tmp_path, "ready"), []
    for number, name in enumerate(names):
        output = tmp_path / f"output{number}"
        output.mkdir()
        (output / "model").write_text("weights")
        parts.append((name, commit.part_location(target_of(tmp_path), APP, ContainerId(APP, 1, 2 + number))))
        LocalFiles().store(str(output), parts[-1][1])

    def take_the_name(step: str) -> None:
        if step != "marker":
            return
        if ready.exists():
            ready.rename(tmp_path / "aside")
        match kind:
            case "file":
                ready.write_text("not a directory")
            case "link":
                ready.symlink_to(tmp_path)
            case "directory":
                ready.mkdir()
                (ready / "0").write_text("something is in it")

    with pytest.raises(DlappError):
        commit.commit(target_of(tmp_path), APP, parts, overwrite=True, step=take_the_name)
    assert not (tmp_path / "run").exists()
    for _, part in parts:
        assert Path(part.removeprefix("file://"), "model").read_text() == "weights"
    ready.rename(tmp_path / "not ours")
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "aside").rename(ready)
    assert commit.finish_interrupted(target_of(tmp_path)) == [str(APP)]
    assert [(tmp_path / "run" / name / "model").read_text() for name in names] == ["weights"] * len(names)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_no_parts_are_stored_in_a_directory_that_others_may_write(
    identities: Identities, place: Path, victim: User, mode: int
) -> None:
    def make() -> None:
        sibling(place, "tmp").mkdir()
        sibling(place, "tmp").chmod(mode)

    identities.call(victim, make)
    answer = identities.call(victim, store_and_commit, place)
    assert "others may write there" in answer
    assert not (place / "run").exists()


@pytest.mark.proves("commit-parts")
def test_parts_that_the_attacker_stored_for_the_victim_are_not_committed(
    identities: Identities, place: Path, victim: User, attacker: User
) -> None:
    def plant() -> None:
        part = sibling(place, "tmp") / str(CONTAINER)
        part.mkdir(parents=True)
        (part / "model").write_text("backdoor")
        part.parent.chmod(0o777)

    def commit_them() -> None:
        commit.commit(target_of(place), APP, [("", part_of(place))], overwrite=True)

    identities.call(attacker, plant)
    with unchanged(sibling(place, "tmp")), pytest.raises(UntrustedFile, match=f"belongs to uid {attacker.uid}"):
        identities.call(victim, commit_them)
    assert not (place / "run").exists()


@pytest.mark.proves("commit-marker")
def test_an_attacker_who_renames_continuously_reads_and_plants_no_file(
    identities: Identities, place: Path, victim: User, bait: Bait
) -> None:
    stop = os.open(place / "stop", os.O_RDWR | os.O_CREAT)
    attacker = os.fork()
    if attacker == 0:
        try:
            os.setresgid(ATTACKER.gid, ATTACKER.gid, ATTACKER.gid)
            os.setgroups([])
            os.setresuid(ATTACKER.uid, ATTACKER.uid, ATTACKER.uid)
            change_names(place, bait, stop)
        finally:
            os._exit(0)

    def attempts() -> list[str]:
        messages = []
        for _ in range(60):
            messages.append(store_and_commit(place))
            settle_by_force(place)
            if not messages[-1]:
                assert (place / "run" / "model").read_text() == "weights"
        return messages

    try:
        with unchanged(bait.top):
            answer = identities.call(victim, attempts, deadline_s=60)
    finally:
        os.pwrite(stop, b"x", 0)
        os.close(stop)
        os.waitpid(attacker, 0)
    for item in filter(None, answer):
        assert_one_line(item)
    for found in place.rglob("*"):
        if found.lstat().st_uid == VICTIM.uid and "home-" not in str(found) and "bait" not in str(found):
            assert found.parent.lstat().st_uid != ATTACKER.uid


def change_names(place: Path, bait: Bait, stop: int) -> None:
    """Make and remove everything that a commit uses, in turn, until somebody writes to ``stop``."""
    turn = 0
    while not os.pread(stop, 1, 0):
        turn += 1
        for number, what in enumerate(("tmp", "ready", "commit", "partial", "replaced")):
            path = sibling(place, what)
            try:
                if path.is_symlink() or path.is_file():
                    path.unlink()
                elif path.is_dir():
                    shutil.rmtree(path)
                match (turn + number) % 4:
                    case 0:
                        path.symlink_to(bait.directory)
                    case 1:
                        path.mkdir()
                        path.chmod(0o777)
                    case 2:
                        path.write_bytes(marker_of_version_1([("", str(bait.directory))]))
                        path.chmod(0o666)
            except OSError:
                continue  # the victim has the name


@pytest.mark.proves("commit-parts")
def test_an_output_being_assembled_is_private_until_it_is_the_target(
    identities: Identities, place: Path, victim: User
) -> None:
    modes: dict[str, int] = {}

    def parts() -> dict[str, int]:
        os.umask(0o002)
        output = Path.home() / "output"
        output.mkdir()
        (output / "model").write_text("weights")
        other = commit.part_location(target_of(place), APP, ContainerId(APP, 1, 3))
        LocalFiles().store(str(output), part_of(place))
        LocalFiles().store(str(output), other)

        def step(name: str) -> None:
            for what in ("tmp", "ready"):
                if name != "ready" and sibling(place, what).exists():
                    modes[what] = modes.get(what, 0) | stat.S_IMODE(sibling(place, what).stat().st_mode)

        commit.commit(target_of(place), APP, [("0", part_of(place)), ("1", other)], overwrite=False, step=step)
        return modes

    assert identities.call(victim, parts) == {"tmp": 0o700, "ready": 0o700}
    assert stat.S_IMODE((place / "run").stat().st_mode) == 0o775
    assert sorted(path.name for path in (place / "run").iterdir()) == ["0", "1"]


def interrupted(place: Path, last_step: str) -> None:
    """Leave a commit that was cut off after a step."""

    class CutOff(BaseException):
        pass

    def step(name: str) -> None:
        if name == last_step:
            raise CutOff

    output = Path.home() / "output"
    output.mkdir(exist_ok=True)
    (output / "model").write_text("weights")
    LocalFiles().store(str(output), part_of(place))
    try:
        commit.commit(target_of(place), APP, [("", part_of(place))], overwrite=True, step=step)
    except CutOff:
        return
    raise AssertionError(last_step)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_own_marker_of_the_previous_version_is_finished_if_its_parts_are_valid(
    identities: Identities, place: Path, victim: User, elsewhere: bool
) -> None:
    def call() -> list[str]:
        interrupted(place, "marker")
        marker = sibling(place, "commit")
        inode = json.loads(marker.read_text())["inode"]
        path = f"{Path.home()}/models" if elsewhere else part_of(place).removeprefix("file://")
        marker.write_bytes(marker_of_version_1([("", path)], inode))
        return commit.finish_interrupted(target_of(place))

    if elsewhere:
        with pytest.raises(DlappError, match=r"was written by an older dlapp and names .*/models, which is not in"):
            identities.call(victim, call)
        assert not (place / "run").exists()
    else:
        assert identities.call(victim, call) == [str(APP)]
        assert (place / "run" / "model").read_text() == "weights"


@pytest.mark.parametrize("how", ["second name", "writable by the group", "writable by all"])
def test_an_own_marker_that_others_could_have_written_is_not_obeyed(
    identities: Identities, place: Path, victim: User, how: str
) -> None:
    def call() -> None:
        interrupted(place, "ready")
        if how == "second name":
            os.link(sibling(place, "commit"), place / "elsewhere")
        else:
            sibling(place, "commit").chmod(0o660 if "group" in how else 0o606)
        commit.finish_interrupted(target_of(place))

    with pytest.raises(UntrustedFile, match="second name" if how == "second name" else "others may write it"):
        identities.call(victim, call)
    assert not (place / "run").exists()


def test_root_does_not_finish_another_users_commit(identities: Identities, place: Path, victim: User) -> None:
    identities.call(victim, interrupted, place, "ready")
    with pytest.raises(ForeignMarker, match=f"uid {VICTIM.uid}"):
        commit.finish_interrupted(target_of(place))
    assert not (place / "run").exists()
    assert identities.call(victim, commit.finish_interrupted, target_of(place)) == [str(APP)]
    assert (place / "run" / "model").read_text() == "weights"


@pytest.mark.proves("part-path")
@pytest.mark.parametrize(
    "location",
    [
        "file://{bait}",
        "file://{bait}/file",
        "{parts}/../{container}",
        "{parts}/{container}/x",
        "{parts}/.",
        "{parts}/..",
        "{parts}/container_1700000000000_0043_01_000002",
        "{parts}/{container}/",
        "{parts}//{container}",
        "{parts}",
    ],
)
def test_a_part_outside_the_parts_directory_is_refused(tmp_path: Path, location: str) -> None:
    target = f"file://{tmp_path}/run"
    # Never a path of the machine's: where this fails, a test that runs as root would move it.
    bait = tmp_path / "bait"
    bait.mkdir()
    (bait / "file").write_text("kept")
    part = location.format(parts=commit.parts_location(target, APP), container=CONTAINER, bait=bait)
    calls: list[Callable[[], object]] = [
        lambda: commit.commit(target, APP, [("", part)], overwrite=True),
        lambda: commit.output_commit(target, APP).keep_partial([("", part)]),
    ]
    for call in calls:
        with pytest.raises(DlappError, match="is not where a container of"):
            call()
    assert list(tmp_path.iterdir()) == [bait]
    assert (bait / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/absolute", "a\0", "\n", "", "x" * 300])
def test_a_part_of_several_is_named_as_one_entry_of_a_directory(tmp_path: Path, name: str) -> None:
    target = f"file://{tmp_path}/run"
    parts = [(name, commit.part_location(target, APP, CONTAINER)), ("1", commit.part_location(target, APP, CONTAINER))]
    with pytest.raises(DlappError, match="not the name of a part"):
        commit.commit(target, APP, parts, overwrite=True)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 100_000,
        b'{"version": 2' + b" " * 100_000,
        b'{"version": 1e400, "inode": 1, "overwrite": true, "parts": []}',
        b'{"version": 2, "inode": 1, "overwrite": true, "parts": [["", "/etc"]]}',
        b'{"version": 2, "inode": 1, "overwrite": true, "parts": [["", ".."]]}',
        b'{"version": 2, "inode": 1, "overwrite": true, "parts": [["../x", "%s"], ["1", "%s"]]}',
        b'{"version": 2, "inode": 1, "overwrite": true, "parts": {"a": 1}}',
        b'{"version": 2, "inode": "1", "overwrite": true, "parts": [["", "%s"]]}',
        b'{"version": 2, "inode": 1, "overwrite": 1, "parts": [["", "%s"]]}',
        b'{"version": 2, "inode": 1, "overwrite": true, "mode": "rwx", "parts": [["", "%s"]]}',
        b'{"version": 1, "inode": 1, "overwrite": true, "parts": [["", "/scratch/run.tmp/../../etc"]]}',
    ],
)
def test_an_invalid_marker_is_a_one_line_error(text: bytes) -> None:
    with pytest.raises(DlappError) as refused:
        parse_marker(text.replace(b"%s", str(CONTAINER).encode()), "/s/m", "/scratch/run.tmp", str(APP), "inode")
    assert_one_line(str(refused.value))
