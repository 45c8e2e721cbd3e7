"""Commits of single trials: whoever dies at whichever step, the output of a trial is whole in the target, or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dlapp.storage import commit
from dlapp.storage.commit import part_location
from dlapp.storage.local import LocalFiles
from dlapp.storage.settlement import ApplicationOutputs
from dlapp.values.ids import ApplicationId
from dlapp.values.report import Cause, CommitClaim, FinalStatus, OutputClaim
from dlapp.values.spec import OutputSpec
from tests.storage.mortal import Killed

APP = ApplicationId(1700000000000, 7)


class MortalFiles(LocalFiles):
    """Local files of a process that dies before or after it renames the output of a trial."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self, _name: str = "") -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def move_stored(self, location: str, new: str) -> None:
        self.step()
        super().move_stored(location, new)
        self.step()


def store(target: Path, number: int, text: str) -> str:
    location = part_location(f"file://{target}", APP, f"trial_{number}_2")
    path = Path(location.removeprefix("file://"))
    path.mkdir(parents=True)
    path.parent.chmod(0o700)
    (path / "model").write_text(text)
    return location


def contents_by_path(target: Path) -> dict[str, str]:
    return {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}


def outputs_of(target: Path, files: LocalFiles, *, overwrite: bool = False) -> ApplicationOutputs:
    spec = OutputSpec(output_path="output", target=f"file://{target}", overwrite=overwrite, by_trial=True)
    return ApplicationOutputs(APP, (spec,), open_files=lambda _: files)


@pytest.mark.parametrize("then", ["commit again", "the claim", "keep", "kill"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_commit_of_a_trial_that_is_killed_anywhere_leaves_it_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, is_replaced: bool
) -> None:
    seen = set()
    for count in range(100):
        target = tmp_path / str(count) / "trials"
        old = {}
        if is_replaced:
            (target / "3").mkdir(parents=True)
            (target / "3" / "model").write_text("old")
            old = {"3/model": "old"}
        location, other = store(target, 3, "new"), store(target, 5, "five")
        files = MortalFiles(count)
        dying, outputs = (outputs_of(target, item, overwrite=is_replaced) for item in (files, LocalFiles()))
        died = False
        with monkeypatch.context() as patch:
            patch.setattr(commit, "ignore", files.step)
            try:
                dying.commit_trial(dying.specs[0], 3, location, is_retry=False)
            except Killed:
                died = True
        visible = {name: text for name, text in contents_by_path(target).items() if name == "3/model"}
        assert visible in (old, {"3/model": "new"})
        seen.add(visible.get("3/model", ""))
        if then == "commit again":
            outputs.commit_trial(outputs.specs[0], 3, location, is_retry=True)
            outputs.commit_trial(outputs.specs[0], 3, location, is_retry=True)
            assert os.path.isdir(other.removeprefix("file://"))
            new = {"3/model": "new"}
        elif then == "the claim":
            parts = {"3": location, "5": other}
            claim = OutputClaim(target=f"file://{target}", overwrite=is_replaced, parts=parts)
            ending: dict[str, Any] = {"final_status": FinalStatus.SUCCEEDED, "cause": Cause.SUCCEEDED}
            views, error = outputs.commit(
                CommitClaim(attempt=1, diagnostics="", outputs=(claim,), **ending), is_retry=True, retried=()
            )
            assert (views[0].committed, error) == (True, None)
            new = {"3/model": "new", "5/model": "five"}
        else:
            begun = visible == {"3/model": "new"} or count > 0
            keeps = then == "keep"
            views = outputs.keep_or_drop((lambda _: [("3", location), ("5", other)]) if keeps else None)  # noqa: B023
            partial = views[0].partial
            rest = {"5/model": "five"} if begun else {"3/model": "new", "5/model": "five"}
            assert (contents_by_path(Path(partial.removeprefix("file://"))) if partial else {}) == (
                rest if keeps else {}
            )
            new = {"3/model": "new"} if begun else old
        committed = {name: text for name, text in contents_by_path(target).items() if ".replaced." not in name}
        assert committed == new
        beside = [path.name for path in target.glob("*") if not path.name.isdigit()]
        assert not [name for name in beside if ".replaced." not in name]
        if not died:
            assert count > 5
            break
    assert seen == {"old" if is_replaced else "", "new"}


def test_a_trial_whose_name_is_taken_is_kept_aside_and_named_and_the_others_are_committed(tmp_path: Path) -> None:
    target = tmp_path / "trials"
    (target / "3").mkdir(parents=True)
    (target / "3" / "model").write_text("old")
    parts = {"3": store(target, 3, "new"), "5": store(target, 5, "five")}
    outputs = outputs_of(target, LocalFiles())
    claim = OutputClaim(target=f"file://{target}", overwrite=False, parts=parts)
    views, error = outputs.commit(
        CommitClaim(
            attempt=1, final_status=FinalStatus.SUCCEEDED, cause=Cause.SUCCEEDED, diagnostics="", outputs=(claim,)
        ),
        is_retry=False,
        retried=(),
    )
    assert not views[0].committed
    assert error is not None
    assert f"{target}/3 was created while the application ran" in error
    assert f"kept at file://{target}/3.{APP}.partial" in error
    assert contents_by_path(target) == {"3/model": "old", f"3.{APP}.partial/model": "new", "5/model": "five"}
