"""Outputs that cannot be stored: what is kept of them on the machine, with what their links lead to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dlapp.errors import DlappError
from dlapp.storage.open import open_output
from dlapp.storage.values import DiskFull
from dlapp.task.data import outputs as module
from dlapp.task.data.outputs import Outputs
from dlapp.task.data.workspace_changes import WorkspaceChanges
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import DockerSettings, LaunchSpec
from dlapp.values.messages import Assignment, Fault, Stop, TaskResult
from dlapp.values.spec import OnFailure, OutputSpec, Resources

APP = ApplicationId(1700000000000, 1)
CONTAINER = ContainerId(APP, 1, 2)


@contextmanager
def no_step(_what: str) -> Iterator[None]:
    yield


def step(what: str, *, cut_by: Stop = Stop.NOW) -> AbstractContextManager[None]:
    assert cut_by is Stop.NOW
    return no_step(what)


class Payload:
    """A workspace after its script, and a target that refuses output: others may write to its directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.unstored = tmp_path / "container", tmp_path / "unstored"
        self.workspace, self.parts = self.home / "workspace", tmp_path / "parts"
        self.workspace.mkdir(parents=True)
        (self.home / "tmp").mkdir()
        self.parts.mkdir()
        self.parts.chmod(0o777)
        self.changes = WorkspaceChanges(str(self.workspace), str(self.home / "tmp"))
        self.changes.begin()

    def write(self, **contents: str) -> None:
        for name, content in contents.items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def link(self, name: str, text: str) -> None:
        (self.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (self.workspace / name).symlink_to(text)

    def outputs(self, *paths: str, am_file: str = "", workspace_end: str = "") -> Outputs:
        specs = [
            OutputSpec(name=path, output_path=path, target=f"file://{self.parts}", on_failure=OnFailure.KEEP)
            for path in paths
        ]
        assignment = Assignment(
            application_id=APP,
            attempt=1,
            container_id=CONTAINER,
            index=0,
            total=1,
            role="worker",
            role_index=0,
            role_size=1,
            workspace_archive="",
            workspace_digest="",
            resources=Resources(memory_mib=128),
            script="run.sh",
            args=(),
            docker_image=None,
            username="tony",
            appname="a test",
            kill_grace_s=60.0,
            outputs=tuple(specs),
            parts=tuple(f"file://{self.parts}/{number}" for number in range(len(paths))),
        )
        docker = DockerSettings("unix:///nowhere", "none")
        launch = LaunchSpec(
            CONTAINER, "http://nowhere", "", {}, {}, docker, am_file=am_file, unstored=str(self.unstored)
        )
        return Outputs(
            assignment,
            launch,
            str(self.home),
            Mock(end_reason="", is_masterless=False),
            step=step,
            report_phase=Mock(),
            note=lambda _: None,
            release=lambda: None,
            workspace_end=workspace_end,
        )

    def store(self, outputs: Outputs, exit_code: int = 0) -> TaskResult:
        fault = Fault.USER if exit_code else Fault.NONE
        return outputs.store(TaskResult(exit_code=exit_code, fault=fault), 100.0, self.changes, ())

    def kept_files(self) -> dict[str, str]:
        """Return the kept files by name, with their content; a link is named with its target."""
        above, found = self.unstored / str(CONTAINER), {}
        for path in sorted(above.rglob("*")):
            name = str(path.relative_to(above))
            if path.is_symlink():
                found[name] = f"-> {os.readlink(path)}"
            elif path.is_file():
                found[name] = path.read_text()
        return found


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    return Payload(tmp_path)


def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


def nothing_can_be_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    no_hard_links(monkeypatch)
    monkeypatch.setattr("dlapp.storage.local.free_bytes", lambda _: 0)


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
@pytest.mark.parametrize("exit_code", [0, 3], ids=["finished", "failed"])
def test_link_targets_of_a_refused_output_are_kept_with_it(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, exit_code: int, links: bool
) -> None:
    payload.write(**{"best.pt": "trained for days", "runs/3/model": "weights", "out/log": "losses"})
    payload.link("out/model.pt", "../best.pt")
    payload.link("out/last", "../runs/3")
    payload.link("out/same", "log")
    if not links:
        no_hard_links(monkeypatch)
    outputs = payload.outputs("out")
    result = payload.store(outputs, exit_code)
    assert (result.outputs, result.exit_code) == ((), exit_code)
    assert result.message.endswith(f"in {payload.unstored}/{CONTAINER}/out")
    assert payload.kept_files() == {
        "out/last/model": "weights",
        "out/log": "losses",
        "out/model.pt": "trained for days",
        "out/same": "-> log",
    }
    assert (outputs.unstored, outputs.is_in_workspace) == ([f"{payload.unstored}/{CONTAINER}"], False)
    assert outputs.not_stored(result, payload.changes) is None


def test_a_refused_output_of_the_whole_workspace_is_kept(payload: Payload) -> None:
    payload.write(**{"best.pt": "trained for days"})
    payload.link("model.pt", "best.pt")
    result = payload.store(payload.outputs("out"))
    assert "the script made no 'out'" in result.message
    assert payload.kept_files() == {"workspace/best.pt": "trained for days", "workspace/model.pt": "-> best.pt"}


def test_a_link_out_of_the_workspace_is_not_kept_and_named(payload: Payload) -> None:
    payload.write(**{"out/log": "losses"})
    payload.link("out/far", "/etc/passwd")
    outputs = payload.outputs("out")
    lost = outputs.not_stored(payload.store(outputs), payload.changes)
    assert payload.kept_files() == {"out/log": "losses"}
    assert lost is not None
    assert [entry.name for entry in lost.entries] == ["out/far"]


def test_the_workspace_stays_if_link_targets_cannot_be_kept_elsewhere(
    payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload.write(**{"best.pt": "trained for days"})
    payload.link("out/model.pt", "../best.pt")
    nothing_can_be_filled_in(monkeypatch)
    outputs = payload.outputs("out")
    result = payload.store(outputs)
    assert result.message.endswith(f"in {payload.workspace}/out")
    assert (outputs.unstored, outputs.is_in_workspace) == ([f"{payload.workspace}/out"], True)
    assert (payload.workspace / "out/model.pt").read_text() == "trained for days"
    assert payload.kept_files() == {}


@pytest.mark.parametrize(
    ("am_file", "workspace_end"), [("hdfs://nowhere/addresses", ""), ("", "it is removed with its trial")]
)
def test_with_a_lost_workspace_only_the_output_is_kept_and_the_rest_named(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, am_file: str, workspace_end: str
) -> None:
    payload.write(**{"best.pt": "trained for days", "out/log": "losses"})
    payload.link("out/model.pt", "../best.pt")
    nothing_can_be_filled_in(monkeypatch)
    outputs = payload.outputs("out", am_file=am_file, workspace_end=workspace_end)
    lost = outputs.not_stored(payload.store(outputs), payload.changes)
    assert payload.kept_files() == {"out/log": "losses", "out/model.pt": "-> ../best.pt"}
    assert not outputs.is_in_workspace
    assert lost is not None
    assert [file.name for file in lost.files] == ["best.pt"]


def test_an_unkept_output_of_a_trial_is_not_reported_as_kept(payload: Payload) -> None:
    payload.unstored.write_text("in the way")
    payload.write(**{"out/log": "losses"})
    outputs = payload.outputs("out", workspace_end="it is removed with its trial")
    result = payload.store(outputs)
    assert result.message.endswith("out (Not a directory): it is removed with its trial")
    assert outputs.unstored == []


def test_an_outer_output_does_not_replace_a_kept_inner_one(payload: Payload) -> None:
    payload.write(**{"out/inner/model": "weights", "out/log": "losses"})
    outputs = payload.outputs("out/inner", "out")
    payload.store(outputs)
    assert payload.kept_files() == {"out/inner/model": "weights"}
    assert outputs.is_in_workspace
    assert (payload.workspace / "out/log").read_text() == "losses"


def test_outputs_that_link_to_each_other_are_kept_with_all_files(payload: Payload) -> None:
    payload.write(**{"a/1": "one", "b/2": "two"})
    payload.link("a/to b", "../b/2")
    payload.link("b/to a", "../a/1")
    payload.store(payload.outputs("a", "b"))
    assert payload.kept_files() == {"a/1": "one", "a/to b": "two", "b/2": "two"}


def test_a_failed_try_to_store_does_not_count_as_stored(payload: Payload) -> None:
    from dlapp.storage.local import LocalFiles
    from dlapp.storage.values import Workspace

    payload.write(**{"best.pt": "trained for days"})
    payload.link("out/model.pt", "../best.pt")
    linked: list[str] = []
    around = Workspace(str(payload.workspace), linked=linked.append)
    with pytest.raises(DlappError, match="others may write there"):
        LocalFiles().store(f"{payload.workspace}/out", f"file://{payload.parts}/0", workspace=around)
    assert linked == []
    LocalFiles().store(f"{payload.workspace}/out", f"file://{payload.parts}/own/0", workspace=around)
    assert linked == ["best.pt"]


def test_a_wait_for_space_is_reported_before_the_gpus_are_released(
    payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload.write(**{"out/model": "weights"})
    payload.parts.chmod(0o700)
    outputs, calls, real = payload.outputs("out"), list[str](), open_output

    def full_at_first(*where: Any) -> Any:
        if not calls:
            raise DiskFull("disk full", place="/data")
        return real(*where)

    monkeypatch.setattr(module, "open_output", full_at_first)
    monkeypatch.setattr(module, "_STORE_AGAIN_S", (0.001, 0.001))
    monkeypatch.setattr(outputs, "_report_phase", lambda phase, detail="": calls.append(detail) if detail else None)
    monkeypatch.setattr(outputs, "_release", lambda: calls.append("released"))
    result = payload.store(outputs)
    assert [output.files for output in result.outputs] == [1], result
    assert "released" in calls[1:]
    assert "/data" in calls[0]
