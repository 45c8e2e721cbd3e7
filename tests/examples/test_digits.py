"""The example does what its README says, by the commands that it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.hadoop import Hadoop
from tests.services.polling import wait_until

ROOT = Path(__file__).parents[2]
COMMANDS = Path(sys.executable).parent

pytest.importorskip("numpy")
pytest.importorskip("matplotlib")


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, on a machine that is large enough for its four containers."""
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "4")
    monkeypatch.setenv("PATH", f"{COMMANDS}{os.pathsep}{os.environ['PATH']}")
    target = tmp_path / "digits"
    shutil.copytree(ROOT / "examples" / "digits", target, ignore=shutil.ignore_patterns("results*"))
    return target


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240)


@pytest.mark.slow
def test_the_demo_ends_with_four_accuracies_and_a_plot_and_can_be_run_again(digits: Path) -> None:
    for _ in range(2):
        demo = run(digits, "./demo.sh")
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert " is FINISHED\n" in demo.stdout
        assert "\nfinalStatus : SUCCEEDED\n" in demo.stdout
        assert demo.stdout.count("accuracy on the test set: 9") == 4
        plot = Path(demo.stdout.partition("plot of the best: ")[2].partition("\n")[0])
        assert plot.read_bytes().startswith(b"\x89PNG")
    parts = sorted(digits.glob("results/*/accuracy.json"))
    found = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
    assert [item["container"] for item in found] == [0, 1, 2, 3]
    assert all(item["accuracy"] > 0.9 for item in found)
    tried = {(item["hidden"], item["rate"]) for part in found for item in part["tried"]}
    assert len(tried) == 16


@pytest.mark.slow
def test_the_demo_runs_on_a_hadoop_cluster(digits: Path, hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.configuration))
    monkeypatch.setenv("DLAPP_YARN_PYTHON", sys.executable)
    for _ in range(2):
        demo = run(digits, "./demo-yarn.sh")
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert "data/digits.csv.gz is at hdfs://" in demo.stdout
        assert "\nfinalStatus : SUCCEEDED\n" in demo.stdout
        assert demo.stdout.count("accuracy on the test set: 9") == 4


@pytest.mark.slow
def test_a_softkill_commits_the_output_so_far(digits: Path) -> None:
    properties = digits / "dl_app.properties"
    properties.write_text(properties.read_text(encoding="utf-8").replace("--epochs 60", "--epochs 1000000"))
    submitted = run(digits, "dlapp-launcher", str(properties))
    assert submitted.returncode == 0, submitted.stderr
    follow = subprocess.Popen(
        ["dlapp-logs", "-f", "last"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    assert follow.stdout is not None
    seen = ""
    with follow:
        while seen.count("digits: container") < 4:
            line = follow.stdout.readline()
            assert line, f"the application ended by itself:\n{seen}"
            seen += line
        wait_until(lambda: "phase : running 4 of 4" in run(digits, "dlapp-status", "last").stdout)
        softkill = run(digits, "dlapp-softkill", "last")
        assert softkill.returncode == 0, softkill.stderr
        follow.stdout.read()
    assert follow.returncode == 7
    status = json.loads(run(digits, "dlapp-status", "--json").stdout)
    assert (status["state"], status["final_status"], status["cause"]) == ("FINISHED", "KILLED", "soft-killed")
    assert len(list(digits.glob("results/*/model.npz"))) == 4
