"""Test which files of a directory are a checkpoint, by two looks at it.

The looks are 10 s apart, at 100 and 110. A file is written as its inode and the time of its last change.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from dlapp.storage.checkpoints.selection import (
    BusyEntry,
    DirectoryState,
    FileIdentity,
    Inspection,
    Selection,
    is_cut_off,
    select,
    select_all,
    step_of,
)
from dlapp.storage.values import TreeNode

QUIET_NS = 10_000_000_000
Files = Mapping[str, tuple[int, float]]


def scan(
    at_s: float,
    files: Files,
    *,
    opened: Sequence[str] = (),
    appended: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    empty: Sequence[str] = (),
) -> Inspection:
    """Return a look at ``at`` [s]; ``opened`` and ``appended``: files that a program has open for writing."""
    directories = {"", *empty}
    for name in (*files, *(links or {})):
        parts = name.split("/")[:-1]
        directories |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    nodes = [TreeNode(f"/m/{name}", name, stat.S_IFDIR | 0o700, 0, 0) for name in sorted(directories)]
    identities = {}
    for name, (inode, changed) in files.items():
        time_ns = int(changed * 1e9)
        nodes.append(TreeNode(f"/m/{name}", name, stat.S_IFREG | 0o600, 1, time_ns))
        identities[name] = FileIdentity(1, inode, 1, time_ns, time_ns)
    nodes += [TreeNode(f"/m/{name}", name, stat.S_IFLNK, 0, 0, link) for name, link in (links or {}).items()]
    writers = dict.fromkeys(opened, False) | dict.fromkeys(appended, True)
    return Inspection(DirectoryState(nodes, identities), int(at_s * 1e9), writers)


before, after = partial(scan, 100.0), partial(scan, 110.0)


def selected(first: Inspection, second: Inspection, *, has_ended: bool = False) -> Selection:
    """Select; a file is unchanged unless its inode has another time."""
    later = second.state.identities
    unchanged = {
        name
        for name, one in first.state.identities.items()
        if name not in later or later[name] in (one,) or later[name].inode != one.inode
    }
    return select(first, second, unchanged, QUIET_NS, has_ended=has_ended)


def files_of(found: Selection) -> list[str]:
    """Return the selected entries, without directories that have others."""
    return sorted(name for name in found.names if not any(item.startswith(f"{name}/") for item in found.names) and name)


def checkpoint(step: int, inode: int, at_s: float) -> dict[str, tuple[int, float]]:
    names = ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json")
    return {f"checkpoint-{step}/{name}": (inode + place, at_s) for place, name in enumerate(names)}


def test_a_directory_that_does_not_change_is_selected_as_a_whole() -> None:
    files = {"a": (1, 50.0), "deep/b": (2, 99.0), "deep/train.log": (3, 99.0)}
    found = selected(before(files, empty=["none"]), after(files, empty=["none"]))
    assert files_of(found) == ["a", "deep/b", "deep/train.log", "none"]
    assert (found.blocked, found.unfinished) == (None, None)


EVENTS = "runs/Nov28_host/events.out.tfevents.1.host.2.0"
VERSION = "version_0/events.out.tfevents.1.host.2.0"


@pytest.mark.parametrize(
    "log",
    [
        EVENTS,
        VERSION,
        "train.log",
        "checkpoint-500/train.log",
        "wandb/run-1/run-1.wandb",
        "wandb/run-1/files/output",
        "study.db",
        "study.db-wal",
        "mlruns/0/meta",
        "metrics.csv",
        "stdout",
    ],
)
def test_a_log_that_grows_is_left_out_and_does_not_matter(log: str) -> None:
    saved = checkpoint(500, 1, 50.0)
    found = selected(before({**saved, log: (9, 99.0)}, opened=[log]), after({**saved, log: (9, 109.0)}, opened=[log]))
    assert files_of(found) == sorted(saved)
    assert found.blocked is None


def test_a_file_of_any_name_is_a_log_if_it_is_open_for_appending() -> None:
    found = selected(
        before({"model": (1, 50.0), "history": (2, 99.0)}, appended=["history"]),
        after({"model": (1, 50.0), "history": (2, 109.0)}, appended=["history"]),
    )
    assert files_of(found) == ["model"]


def test_a_database_in_a_directory_with_a_step_is_a_part_of_the_save() -> None:
    files = {"checkpoint-500/index.db": (1, 99.0), "checkpoint-500/weights": (2, 50.0)}
    found = selected(before(files, opened=["checkpoint-500/index.db"]), after(files))
    assert found.names == frozenset()
    assert found.unfinished == BusyEntry("checkpoint-500/index.db", "is open for writing")


def test_only_logs_are_a_checkpoint_when_they_are_not_written() -> None:
    found = selected(before({EVENTS: (1, 99.0)}, opened=[EVENTS]), after({EVENTS: (1, 109.0)}, opened=[EVENTS]))
    assert (found.names, found.blocked) == (frozenset(), BusyEntry(EVENTS, "is open for writing"))
    assert files_of(selected(before({EVENTS: (1, 99.0)}), after({EVENTS: (1, 99.0)}))) == [EVENTS]


@pytest.mark.parametrize("is_later_file_open", [True, False])
def test_a_directory_with_a_step_that_is_half_written_is_left_out(is_later_file_open: bool) -> None:
    old, new = checkpoint(500, 1, 50.0), checkpoint(1000, 11, 99.0)
    half = dict(list(new.items())[:2])
    opened = [list(half)[-1]] if is_later_file_open else []
    found = selected(before({**old, **half}, opened=opened), after({**old, **new}))
    assert files_of(found) == sorted(old)
    assert "checkpoint-1000" not in found.names
    assert found.unfinished is not None
    assert found.unfinished.name.startswith("checkpoint-1000/")


def test_an_empty_directory_with_a_step_is_not_selected() -> None:
    files = {"checkpoint-500/a": (1, 50.0)}
    empty = ["checkpoint-1000"]
    assert "checkpoint-1000" not in selected(before(files, empty=empty), after(files, empty=empty)).names


def test_shards_that_are_written_one_after_the_other_are_one_save() -> None:
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    one = {shards[0]: (1, 99.0)}
    two = {**one, shards[1]: (2, 109.0)}
    for opened in ([], [shards[1]]):
        found = selected(before(one), after(two, opened=opened))
        assert found.names == frozenset(), found
    index = {**dict.fromkeys(shards, (1, 80.0)), "model.safetensors.index.json": (4, 81.0)}
    assert files_of(selected(before(index), after(index))) == sorted(index)


def test_a_file_written_in_place_blocks_its_checkpoint() -> None:
    found = selected(before({"a": (1, 99.0), "b": (2, 50.0)}), after({"a": (1, 109.0), "b": (2, 50.0)}))
    assert (found.names, found.blocked) == (frozenset(), BusyEntry("a", "has just been written"))


def test_a_state_that_is_replaced_all_the_time_is_selected_as_it_was() -> None:
    found = selected(
        before({"state.pt": (1, 99.9), "config": (2, 10.0)}), after({"state.pt": (3, 109.9), "config": (2, 10.0)})
    )
    assert files_of(found) == ["config", "state.pt"]


def test_a_temporary_file_of_the_next_state_does_not_matter() -> None:
    first = before({"state.pt": (1, 99.9), "state.tmp": (2, 100.0)}, opened=["state.tmp"])
    second = after({"state.pt": (3, 109.5), "state.tmp": (4, 109.9)}, opened=["state.tmp"])
    assert files_of(selected(first, second)) == ["state.pt"]


@pytest.mark.parametrize(("last", "is_between_saves"), [(99.8, True), (99.99, False)])
def test_files_that_are_replaced_together_are_selected_only_between_two_saves(
    last: float, is_between_saves: bool
) -> None:
    first = {"weights": (1, last), "meta": (2, 99.79 if is_between_saves else 99.5), "config": (3, 10.0)}
    found = selected(before(first), after({"weights": (4, 109.9), "meta": (5, 109.9), "config": (3, 10.0)}))
    assert bool(found.names) == is_between_saves
    assert (found.blocked is None) == is_between_saves


def test_a_file_saved_before_the_scan_belongs_to_a_later_save() -> None:
    """The look fell into one save: the new weights are of another step than the optimizer."""
    found = selected(
        before({"weights": (1, 99.9), "optimizer": (2, 40.0)}), after({"weights": (1, 99.9), "optimizer": (3, 100.5)})
    )
    assert found.names == frozenset()


def test_files_with_a_step_do_not_wait_for_a_file_being_written() -> None:
    done, half = "version_0/checkpoints/epoch=0-step=500.ckpt", "version_0/checkpoints/epoch=1-step=1000.ckpt"
    found = selected(before({done: (1, 50.0)}), after({done: (1, 50.0), half: (2, 109.0)}, opened=[half]))
    assert files_of(found) == [done]


def test_the_parts_of_a_tensorflow_checkpoint_belong_together() -> None:
    data, index = "ckpt-500.data-00000-of-00001", "ckpt-500.index"
    old = {"ckpt-400.index": (1, 50.0), "ckpt-400.data-00000-of-00001": (2, 50.0)}
    found = selected(before({**old, data: (3, 99.0)}), after({**old, data: (3, 99.0), index: (4, 101.0)}))
    assert files_of(found) == sorted(old)


def test_a_checkpoint_removed_after_the_scan_is_complete_if_it_had_the_files_of_others() -> None:
    kept, removed = checkpoint(1000, 11, 99.5), checkpoint(500, 1, 99.0)
    found = selected(before({**removed, **kept}), after(checkpoint(1500, 21, 109.0)))
    assert files_of(found) == sorted({**removed, **kept})
    half = dict(list(removed.items())[1:])  # its removal had begun
    found = selected(before({**half, **kept}), after(checkpoint(1500, 21, 109.0)))
    assert files_of(found) == sorted(kept)


def test_changing_files_outside_a_step_directory_are_left_out() -> None:
    saved = checkpoint(500, 1, 50.0)
    first = {**saved, "README": (5, 10.0), "best/model": (6, 99.0), "best/config": (7, 10.0)}
    found = selected(before(first, opened=["best/model"]), after(first, opened=["best/model"]))
    assert found.blocked == BusyEntry("best/model", "is open for writing")
    assert files_of(found) == sorted({**saved, "README": 0})


def test_a_link_to_an_omitted_file_is_omitted() -> None:
    saved, half = checkpoint(500, 1, 50.0), {"checkpoint-1000/a": (11, 99.0)}
    links = {"last": "checkpoint-1000", "best": "checkpoint-500"}
    found = selected(
        before({**saved, **half}, links=links), after({**saved, "checkpoint-1000/a": (11, 109.0)}, links=links)
    )
    assert files_of(found) == sorted([*saved, "best"])


@pytest.mark.parametrize("name", ["state.pt", "step=500.ckpt"])
@pytest.mark.parametrize(("opened", "is_whole"), [([], True), (["it"], False)])
def test_a_file_closed_before_sigterm_and_unchanged_is_complete(name: str, opened: list[str], is_whole: bool) -> None:
    first = before({name: (1, 99.9)}, opened=[name] * len(opened))
    found = selected(first, scan(101.0, {name: (1, 99.9)}), has_ended=True)
    assert bool(found.names) == is_whole
    problem = found.blocked or found.unfinished
    assert problem == (None if is_whole else BusyEntry(name, "was open for writing"))


def test_a_file_replaced_after_the_scan_before_sigterm_is_selected_in_its_old_state() -> None:
    second = scan(101.0, {"state.pt": (2, 100.5), "state.tmp": (3, 100.6)})
    assert files_of(selected(before({"state.pt": (1, 99.9)}), second, has_ended=True)) == ["state.pt"]


def test_the_first_checkpoint_directory_counts_after_sigterm_only_if_it_was_quiet() -> None:
    for changed, is_whole in ((95.0, False), (85.0, True)):
        files = {**checkpoint(500, 1, changed), EVENTS: (9, 99.0)}
        found = selected(before(files, opened=[EVENTS]), scan(101.0, files), has_ended=True)
        assert bool(found.names) == is_whole
    files = {**checkpoint(500, 1, 95.0), **checkpoint(1000, 11, 99.0)}
    assert files_of(selected(before(files), scan(101.0, files), has_ended=True)) == sorted(files)


def test_files_changed_shortly_before_a_kill_are_not_selected() -> None:
    files = {**checkpoint(500, 1, 50.0), **checkpoint(1000, 11, 99.0), EVENTS: (9, 99.9)}
    end = before(files)
    found = selected(end, end, has_ended=True)
    assert files_of(found) == sorted([*checkpoint(500, 1, 50.0), EVENTS])
    assert found.unfinished == BusyEntry("checkpoint-1000/config.json", "was written shortly before the end")
    end = before({"state.pt": (1, 99.0), "config": (2, 10.0)})
    assert selected(end, end, has_ended=True).names == frozenset()


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("other", ["config.json", "latest", "trainer_state.json"])
def test_without_a_whole_save_the_other_files_are_no_checkpoint(*, has_ended: bool, other: str) -> None:
    saved = {"global_step600/a.pt": (1, 98.0), "global_step600/b.pt": (2, 98.0), other: (3, 10.0)}
    first = before(saved, opened=["global_step600/b.pt"])
    found = selected(first, after(saved, opened=() if has_ended else ["global_step600/b.pt"]), has_ended=has_ended)
    assert (files_of(found), found.unfinished is not None) == ([], True)


def test_a_file_that_may_name_a_save_that_is_left_out_is_no_part_of_the_one_before() -> None:
    old = {"global_step500/a.pt": (1, 10.0), "global_step500/b.pt": (2, 10.0), "config.json": (3, 1.0)}
    new = {"global_step600/a.pt": (4, 98.0)}
    assert "global_step500/a.pt" in files_of(selected(before(old | new), after(old | new), has_ended=True))
    named = old | new | {"latest": (5, 99.0)}
    assert files_of(selected(before(named), after(named), has_ended=True)) == []


def test_a_save_paused_between_two_files_is_not_selected_at_a_kill() -> None:
    files = {"model.pt": (1, 99.0), "optimizer.pt": (2, 88.0)}
    found = selected(before(files), after(files), has_ended=True)
    assert (files_of(found), found.blocked) == ([], BusyEntry("model.pt", "was written shortly before the end"))
    files = {"model.pt": (1, 99.0), "config.json": (2, 30.0)}
    assert files_of(selected(before(files), after(files), has_ended=True)) == ["config.json", "model.pt"]


def test_an_open_file_unchanged_since_sigterm_is_truncated() -> None:
    def is_cut(opened: str, later: Files, *, appended: Sequence[str] = ()) -> bool:
        first = before({opened: (1, 99.0)}, opened=() if appended else [opened], appended=appended)
        return is_cut_off(first, after(later))

    assert is_cut("a.pt", {"a.pt": (1, 99.0)})
    assert not is_cut("a.pt", {"a.pt": (1, 101.0)})  # its handler completed it
    assert not is_cut("a.tmp", {"a.pt": (1, 101.0)})  # and renamed it
    assert not is_cut("a.pt", {"a.pt": (2, 101.0)})
    assert not is_cut("train.log", {"train.log": (1, 99.0)})
    assert not is_cut("a.pt", {"a.pt": (1, 99.0)}, appended=["a.pt"])


def test_a_reported_checkpoint_is_everything_but_growing_logs() -> None:
    files = {"model": (1, 99.0), EVENTS: (2, 90.0), "old.log": (3, 80.0), "new.log": (4, 96.0)}
    found = select_all(before(files, opened=[EVENTS]), int(95e9))
    assert files_of(found) == ["model", "old.log", "runs/Nov28_host"]


def test_growing_logs_are_no_reason_for_another_checkpoint() -> None:
    one, two = ({"model": (1, 50.0), "train.log": (2, at_s)} for at_s in (60.0, 70.0))
    assert selected(before(one), after(one)).key == selected(before(two), after(two)).key


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["checkpoint-500/model", "checkpoint-1000/model"], (1000, None)),
        (["version_0/checkpoints/epoch=3-step=40.ckpt"], (40, 3)),
        (["iter_0000500/mp_rank_00/model.pt"], (500, None)),
        (["global_step12/zero_pp_rank_7_mp_rank_00_optim_states.pt"], (12, None)),
        (["model.ckpt-300.data-00000-of-00001"], (300, None)),
        (["epoch_004.pth"], (None, 4)),
        (["model.ckpt-00001-of-00003", "rng_state_7.pth", "version_3/model.pt", "state.pt"], (None, None)),
    ],
)
def test_the_step_is_read_from_names(names: list[str], expected: tuple[int | None, int | None]) -> None:
    assert step_of(names) == expected
