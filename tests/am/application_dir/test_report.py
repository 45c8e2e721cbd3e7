"""Test the report that an ApplicationMaster on one machine leaves: what dlapp-report shows, for its owner alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.values.report import ContainerView
from dlapp.values.serialization import to_json
from tests.am.test_loop import SUBMISSION
from tests.pages.samples import START_MS, application, container


def left_by(directory: Path, *containers: ContainerView) -> str:
    LocalApplicationDir(str(directory)).write_report(application(*containers))
    path = directory / "report.html"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text()


def logs_of(directory: Path, one: ContainerView) -> Path:
    path = directory / "containers" / str(one.container_id)
    path.mkdir(parents=True)
    return path


def test_the_report_has_properties_curves_and_ends_of_logs(tmp_path: Path) -> None:
    one = container(1, exit_code=1)
    (logs_of(tmp_path, one) / "stderr").write_text("".join(f"line {number}\n" for number in range(10_000)))
    series = {"container_id": str(one.container_id), "index": 1, "attempt": 1, "start_ms": START_MS, "step_ms": 10_000}
    columns = {"cpu_cores": {"mean": [1.0, 2.0]}}
    (tmp_path / "usage.json").write_text(json.dumps({"version": 1, "containers": [{**series, "columns": columns}]}))
    submission = {**to_json(SUBMISSION), "properties": "[application]\nappname=of the file\n"}
    (tmp_path / "submission.json").write_text(json.dumps(submission))
    found = left_by(tmp_path, one)
    for text in (
        "appname=of the file",
        "line 9999",
        "line 9971",
        "max 2 cores",
        "10 containers of 1 MiB, 1 vcore: run.sh",
    ):
        assert text in found
    assert "line 9900" not in found


def test_the_report_names_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "usage.json").write_text("[]")
    found = left_by(tmp_path, container(0))
    assert "what was submitted cannot be read" in found
    assert "usage.json cannot be read" in found


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    one = container(0)
    (tmp_path / "secrets.json").write_text("a secret")
    (logs_of(tmp_path, one) / "stdout").symlink_to(tmp_path / "secrets.json")
    found = left_by(tmp_path, one)
    assert "a secret" not in found
    assert "stdout of container 0 cannot be read" in found


def test_the_report_does_not_follow_an_existing_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "report.html").symlink_to(other)
    assert "resnet" in left_by(tmp_path, container(0))
    assert other.read_text() == "kept"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e308", "1e308", "-5"])
def test_an_odd_metric_does_not_break_the_report(tmp_path: Path, value: str) -> None:
    one = container(0)
    columns = f'{{"metric.loss": {{"mean": [1.0, {value}, 2.0]}}, "cpu_cores": {{"mean": [{value}]}}}}'
    (tmp_path / "usage.json").write_text(
        f'{{"version": 1, "containers": [{{"container_id": "{one.container_id}", "index": 0, "attempt": 1, '
        f'"start_ms": {START_MS}, "step_ms": 10000, "columns": {columns}}}]}}'
    )
    assert "loss" in left_by(tmp_path, one)
