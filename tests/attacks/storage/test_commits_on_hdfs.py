"""Another user of HDFS writes beside the victim's target, where the directory is not sticky.

They may rename what is there, whole trees of the victim's, and can delete none of it. The victim's dlapp does not do
that for them.
"""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import DlappError, NotFound
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.commit import commit, finish_interrupted, output_commit, part_location
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId, ContainerId
from tests.services.hadoop import Hadoop

APP = ApplicationId(1700000000000, 42)
CONTAINER = ContainerId(APP, 1, 2)
NAMES = ("tmp", "ready", "old", "commit")


class CutOff(BaseException):
    """The victim's process is dead."""


@pytest.fixture
def admin(hadoop: Hadoop) -> HdfsFiles:
    hadoop.start_datanodes()
    return HdfsFiles(HdfsPlace(f"hdfs://127.0.0.1:{hadoop.ports['nn']}", (hadoop.hdfs_url,), Login(getpass.getuser())))


@pytest.fixture
def top(admin: HdfsFiles) -> Iterator[str]:
    """A directory that all may write, and that is not sticky."""
    top = f"{admin.place.location}/shared"
    admin.make_directory(top)
    admin.web.set_mode("/shared", 0o777)
    yield top
    admin.remove(top)


@pytest.fixture
def victim(admin: HdfsFiles, top: str) -> HdfsFiles:
    """The victim's connections, with what they have in that directory besides their output."""
    files = HdfsFiles(admin.place._replace(login=Login("victim")))
    files.web.write("/shared/dataset/images/1.png", b"pixels")
    return files


@pytest.fixture
def plant(admin: HdfsFiles, victim: HdfsFiles) -> Callable[[str], None]:
    """Give the victim's data set a name of the commit, after what has that name was renamed."""
    attacker = HdfsFiles(admin.place._replace(login=Login("mallory")))

    def change_names(what: str) -> None:
        name = f"/shared/run.{APP}.{what}"
        with contextlib.suppress(DlappError):
            attacker.web.rename(name, f"{name} aside")
        with contextlib.suppress(DlappError):
            attacker.web.rename("/shared/dataset", name)

    return change_names


def parts_of(victim: HdfsFiles, top: str) -> list[tuple[str, str]]:
    parts = []
    for number in (2, 3):
        part = part_location(f"{top}/run", APP, ContainerId(APP, 1, number))
        victim.make_directory(part, 0o700)
        victim.web.write(victim.place.path(f"{part}/model"), b"weights")
        parts.append((str(number), part))
    victim.web.set_mode(victim.place.path(part_location(f"{top}/run", APP, CONTAINER)).rpartition("/")[0], 0o700)
    return parts


def assert_kept(admin: HdfsFiles, top: str) -> None:
    """Check that nothing of the data set is gone, whatever name it has."""
    names = admin.names(top)
    found = [name for name in names if admin.exists(f"{top}/{name}/images/1.png")]
    assert len(found) == 1, names
    assert admin.read_bytes(f"{top}/{found[0]}/images/1.png", 1 << 28) == b"pixels"


@pytest.mark.proves("commit-names")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("step", ["marker", "old aside", "swapped"])
@pytest.mark.parametrize("what", NAMES)
def test_a_directory_that_gets_a_name_of_a_commit_at_work_is_not_removed(
    admin: HdfsFiles, victim: HdfsFiles, top: str, plant: Callable[[str], None], what: str, step: str
) -> None:
    victim.web.write("/shared/run/weights", b"old")
    parts = parts_of(victim, top)
    with contextlib.suppress(DlappError):
        commit(
            f"{top}/run",
            APP,
            parts,
            overwrite=True,
            files=victim,
            step=lambda now: plant(what) if now == step else None,
        )
    assert_kept(admin, top)


@pytest.mark.proves("commit-names")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("call", ["drop", "keep_partial", "finish_interrupted"])
@pytest.mark.parametrize("step", ["", "marker", "ready", "swapped"])
@pytest.mark.parametrize("what", NAMES)
def test_a_directory_that_gets_a_name_of_a_commit_that_was_cut_off_is_not_removed(
    admin: HdfsFiles, victim: HdfsFiles, top: str, plant: Callable[[str], None], what: str, step: str, call: str
) -> None:
    victim.web.write("/shared/run/weights", b"old")
    parts, target = parts_of(victim, top), f"{top}/run"

    def abort_calls(now: str) -> None:
        if now == step:
            raise CutOff

    if step:
        with pytest.raises(CutOff):
            commit(target, APP, parts, overwrite=True, files=victim, step=abort_calls)
    plant(what)
    with contextlib.suppress(DlappError):
        if call == "drop":
            output_commit(target, APP, files=victim).drop()
        elif call == "keep_partial":
            output_commit(target, APP, files=victim).keep_partial(parts)
        else:
            finish_interrupted(target, files=victim)
    assert_kept(admin, top)


@pytest.fixture
def attacker(admin: HdfsFiles) -> HdfsFiles:
    return HdfsFiles(admin.place._replace(login=Login("mallory")))


def before_each(
    monkeypatch: pytest.MonkeyPatch, files: HdfsFiles, names: tuple[str, ...], attack: Callable[[str], object]
) -> None:
    """Call ``attack`` before each of these changes, with its name."""
    for name in names:
        real = getattr(files.web, name)

        def attacked(*arguments: Any, _real: Callable[..., Any] = real, _name: str = name, **options: Any) -> Any:
            attack(_name)
            return _real(*arguments, **options)

        monkeypatch.setattr(files.web, name, attacked)


@pytest.mark.proves("commit-names")
def test_a_directory_that_has_the_name_of_the_new_target_does_not_become_it(
    admin: HdfsFiles, victim: HdfsFiles, top: str, plant: Callable[[str], None]
) -> None:
    parts = parts_of(victim, top)
    victim.web.set_mode("/shared/dataset", 0o755)
    plant("ready")
    with pytest.raises(UntrustedFile, match=r"ready: was not created by this commit; move it"):
        commit(f"{top}/run", APP, parts, overwrite=True, files=victim)
    assert not admin.exists(f"{top}/run")
    assert_kept(admin, top)
    partial = output_commit(f"{top}/run", APP, files=victim).keep_partial(parts)
    assert partial is not None
    assert admin.names(partial) == ["2", "3"]


@pytest.mark.proves("commit-names")
@pytest.mark.parametrize("change", ["set_mode", "set_attribute", "rename"])
def test_changes_to_the_new_target_do_not_reach_a_renamed_directory(
    monkeypatch: pytest.MonkeyPatch, admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles, change: str
) -> None:
    victim.web.write("/shared/run/weights", b"old")
    victim.web.set_mode("/shared/run", 0o755)
    victim.web.set_mode("/shared/dataset", 0o700)
    parts, ready, done = parts_of(victim, top), f"/shared/run.{APP}.ready", list[str]()
    before = admin.web.status("/shared/dataset")

    def attack(name: str) -> None:
        if name == change and admin.web.status(f"/shared/run.{APP}.commit") and not done:
            done.append(name)
            attacker.web.rename(ready, f"{ready} aside")
            attacker.web.rename("/shared/dataset", ready)

    before_each(monkeypatch, victim, ("set_mode", "set_attribute", "rename"), attack)
    with contextlib.suppress(DlappError):
        commit(f"{top}/run", APP, parts, overwrite=True, files=victim)
    assert done == [change]
    (private,) = (child for child in admin.web.children("/shared") if before and child.inode_id == before.inode_id)
    assert (private.mode, admin.names(f"{top}/{private.name}")) == (0o700, ["images"])
    assert admin.web.attribute(f"/shared/{private.name}", "user.dlapp") is None
    assert_kept(admin, top)


def test_a_new_target_that_lost_its_name_for_a_moment_is_not_committed_without_its_parts(
    monkeypatch: pytest.MonkeyPatch, admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles
) -> None:
    parts, ready, done = parts_of(victim, top), f"/shared/run.{APP}.ready", list[str]()
    status = victim.web.status

    def attacked(path: str) -> Any:
        if path != ready or not admin.exists(f"{top}/run.{APP}.commit") or len(done) > 1:
            return status(path)
        done.append(path)
        if len(done) == 1:  # it is before the first part
            return status(path)
        attacker.web.rename(ready, f"{ready} aside")
        found = status(path)
        attacker.web.rename(f"{ready} aside", ready)
        return found

    monkeypatch.setattr(victim.web, "status", attacked)
    with pytest.raises(NotFound, match=r"the output is kept in /shared/run\..*\.tmp"):
        commit(f"{top}/run", APP, parts, overwrite=True, files=victim)
    assert len(done) == 2
    partial = output_commit(f"{top}/run", APP, files=victim).keep_partial(parts)
    assert partial is not None
    assert [victim.read_bytes(f"{partial}/{name}/model", 100) for name in ("2", "3")] == [b"weights"] * 2
    assert not admin.exists(f"{top}/run")


@pytest.mark.proves("commit-names")
def test_a_previous_output_moved_to_the_replaced_name_is_kept(
    monkeypatch: pytest.MonkeyPatch, admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles
) -> None:
    parts, tmp, name = parts_of(victim, top), f"/shared/run.{APP}.tmp", f"run.{APP}.old"
    for path in ("/shared/run", "/shared/former"):
        victim.web.write(f"{path}/weights", b"of before")
        victim.web.set_mode(path, 0o755)
        victim.web.set_attribute(path, "user.dlapp", b"application_1_1 /shared/run")
    attribute, done = victim.web.attribute, list[str]()

    def attacked(path: str, key: str) -> Any:
        if not done:
            done.append(path)
            attacker.web.rename(tmp, f"{tmp} aside")
            attacker.web.make_directory(tmp, 0o777)
            attacker.web.set_mode(tmp, 0o777)
            attacker.web.rename("/shared/former", f"{tmp}/{name}")
        return attribute(path, key)

    monkeypatch.setattr(victim.web, "attribute", attacked)
    commit(f"{top}/run", APP, parts, overwrite=True, files=victim)
    assert done != []
    assert admin.read_bytes(f"{top}/run.{APP}.tmp/{name}/weights", 100) == b"of before"
    assert admin.names(f"{top}/run") == ["2", "3"]


@pytest.mark.parametrize("call", ["keep_partial", "keep_failed"])
def test_an_output_of_one_container_is_not_removed_where_its_place_is_taken(
    admin: HdfsFiles, victim: HdfsFiles, top: str, plant: Callable[[str], None], call: str
) -> None:
    part = parts_of(victim, top)[0][1]
    plant("partial" if call == "keep_partial" else "failed")
    with pytest.raises(UntrustedFile, match="was not created by this commit; move it"):
        getattr(output_commit(f"{top}/run", APP, files=victim), call)([("", part)])
    assert victim.read_bytes(f"{part}/model", 100) == b"weights"
    assert_kept(admin, top)


def test_a_removed_new_target_loses_no_part(admin: HdfsFiles, victim: HdfsFiles, top: str) -> None:
    attacker = HdfsFiles(admin.place._replace(login=Login("mallory")))
    parts = parts_of(victim, top)

    def take_away(step: str) -> None:
        if step == "marker":
            attacker.web.rename(f"/shared/run.{APP}.ready", "/shared/taken")

    with pytest.raises(NotFound, match=r"ready was taken away, so /shared/run cannot be committed"):
        commit(f"{top}/run", APP, parts, overwrite=True, files=victim, step=take_away)
    for _, part in parts:
        assert victim.read_bytes(f"{part}/model", 1 << 10) == b"weights"


def test_a_private_directory_exchanged_for_a_part_receives_no_file(
    admin: HdfsFiles, victim: HdfsFiles, top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "output").mkdir(mode=0o755)
    (tmp_path / "output/model").write_text("weights")
    attacker = HdfsFiles(admin.place._replace(login=Login("mallory")))
    victim.web.set_mode("/shared/dataset", 0o700)
    parts = f"/shared/run.{APP}.tmp"
    clear = victim.web.clear

    def clear_and_lose_the_name(path: str, *, file: bool = False) -> None:
        clear(path, file=file)
        attacker.web.rename(parts, f"{parts} aside")
        attacker.web.make_directory(parts, 0o777)
        attacker.web.rename("/shared/dataset", f"{parts}/{CONTAINER}")

    monkeypatch.setattr(victim.web, "clear", clear_and_lose_the_name)
    victim.store(str(tmp_path / "output"), part_location(f"{top}/run", APP, CONTAINER))
    private = admin.web.status(f"{parts}/{CONTAINER}")
    assert private is not None
    assert private.mode == 0o700
    assert admin.names(f"{top}/run.{APP}.tmp/{CONTAINER}") == ["images"]
    assert admin.read_bytes(f"{top}/run.{APP}.tmp aside/{CONTAINER}/model", 1 << 10) == b"weights"


def test_a_directory_in_a_foreign_parts_directory_is_not_removed_by_a_store(
    admin: HdfsFiles, victim: HdfsFiles, top: str, tmp_path: Path
) -> None:
    (tmp_path / "output").write_text("weights")
    fake = f"/shared/run.{APP}.tmp"
    attacker = HdfsFiles(admin.place._replace(login=Login("mallory")))
    attacker.web.make_directory(fake, 0o777)
    attacker.web.set_mode(fake, 0o777)
    attacker.web.rename("/shared/dataset", f"{fake}/{CONTAINER}")
    with pytest.raises(UntrustedFile, match="belongs to mallory"):
        victim.store(str(tmp_path / "output"), part_location(f"{top}/run", APP, CONTAINER))
    assert admin.read_bytes(f"{top}/run.{APP}.tmp/{CONTAINER}/images/1.png", 100) == b"pixels"


@pytest.mark.parametrize("single", [True, False])
def test_an_output_does_not_inherit_permissions_of_a_planted_directory(
    admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles, single: bool
) -> None:
    parts = parts_of(victim, top)
    if single:
        parts = [("", parts[0][1])]
        victim.web.set_mode(victim.place.path(parts[0][1]), 0o700)
    victim.web.make_directory("/shared/run", 0o700)
    attacker.web.rename("/shared/run", "/shared/run aside")
    attacker.web.make_directory("/shared/run", 0o777)
    attacker.web.set_mode("/shared/run", 0o777)
    acl = {"aclspec": "user::rwx,group::rwx,mask::rwx,other::rwx,user:mallory:rwx,default:user:mallory:rwx"}
    attacker.web._call("SETACL", "/shared/run", acl, method="PUT")
    commit(f"{top}/run", APP, parts, overwrite=True, files=victim)
    output = admin.web.status("/shared/run")
    assert output is not None
    assert (output.owner, output.mode, output.has_acl) == ("victim", 0o700 if single else 0o755, False)


def test_the_marker_is_written_where_the_parts_are_and_not_in_a_directory_that_gets_their_name(
    monkeypatch: pytest.MonkeyPatch, admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles
) -> None:
    parts, tmp, write = parts_of(victim, top), f"/shared/run.{APP}.tmp", victim.web.write

    def after_the_attacker(path: str, *arguments: Any, **options: Any) -> None:
        attacker.web.rename(tmp, f"{tmp} aside")
        attacker.web.make_directory(tmp, 0o777)
        attacker.web.set_mode(tmp, 0o777)
        write(path, *arguments, **options)
        assert admin.names(f"{top}/run.{APP}.tmp") == []
        raise CutOff

    monkeypatch.setattr(victim.web, "write", after_the_attacker)
    with pytest.raises(CutOff):
        commit(f"{top}/run", APP, parts, overwrite=True, files=victim)


def test_a_try_to_store_removes_no_directory_that_gets_the_name_of_its_file(
    monkeypatch: pytest.MonkeyPatch, admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles
) -> None:
    tmp, write, done = f"/shared/run.{APP}.tmp", victim.web.write, list[str]()

    def written_and_exchanged(path: str, *arguments: Any, **options: Any) -> None:
        write(path, *arguments, **options)
        (name,) = admin.names(f"{top}/run.{APP}.tmp")
        attacker.web.rename(tmp, f"{tmp} aside")
        attacker.web.make_directory(tmp, 0o777)
        attacker.web.set_mode(tmp, 0o777)
        done.append(f"{tmp}/{name}")
        attacker.web.rename("/shared/dataset", done[0])

    monkeypatch.setattr(victim.web, "write", written_and_exchanged)
    victim.probe_store(part_location(f"{top}/run", APP, CONTAINER))
    assert admin.read_bytes(f"{admin.place.location}{done[0]}/images/1.png", 100) == b"pixels"
    assert admin.names(f"{top}/run.{APP}.tmp aside") == []


def test_a_foreign_parts_directory_is_not_used(
    admin: HdfsFiles, victim: HdfsFiles, top: str, attacker: HdfsFiles
) -> None:
    fake = f"/shared/run.{APP}.tmp"
    attacker.web.make_directory(fake, 0o777)
    attacker.web.set_mode(fake, 0o777)
    before = admin.web.status(fake)
    with pytest.raises(UntrustedFile, match="belongs to mallory"):
        victim.probe_store(part_location(f"{top}/run", APP, CONTAINER))
    assert admin.web.status(fake) == before


def test_a_directory_that_gets_the_name_of_the_new_target_while_it_is_dropped_gets_it_back(
    monkeypatch: pytest.MonkeyPatch, admin: HdfsFiles, victim: HdfsFiles, top: str, plant: Callable[[str], None]
) -> None:
    def abort_calls(now: str) -> None:
        if now == "ready":
            raise CutOff

    with pytest.raises(CutOff):
        commit(f"{top}/run", APP, parts_of(victim, top), overwrite=True, files=victim, step=abort_calls)
    rename = victim.web.rename

    def after_the_attacker(old: str, new: str, *, overwrite: bool = False) -> bool:
        if old.endswith(".ready"):
            plant("ready")
        return rename(old, new, overwrite=overwrite)

    monkeypatch.setattr(victim.web, "rename", after_the_attacker)
    with pytest.raises(DlappError, match=r"run\..*\.ready: was not created by this commit"):
        output_commit(f"{top}/run", APP, files=victim).drop()
    assert admin.exists(f"{top}/run.{APP}.ready/images/1.png")
    monkeypatch.undo()
    output_commit(f"{top}/run", APP, files=victim).drop()
    assert_kept(admin, top)
