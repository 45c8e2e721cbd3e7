"""Whole applications on the embedded engine, with input and output on a real HDFS."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.config import load_config
from dlapp.locations import HdfsPlace
from dlapp.storage import commit
from dlapp.storage.hdfs.file_system import HdfsFiles
from tests.applications import ended, launch, processes, properties, run, status, wait_for
from tests.services.hadoop import Hadoop
from tests.storage.commit.test_hdfs import APP, new_tree, old_target, plant, sibling_names, tree
from tests.storage.mortal import Killed

DYING = """
import os, signal, sys
from dlapp.__main__ import main
from dlapp.storage.commit import hdfs

STEP = {step!r}

def dies(step):
    if step == STEP:
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "am" and "--aftermath" not in sys.argv:
    real = hdfs.HdfsCommit.commit
    hdfs.HdfsCommit.commit = lambda self, parts, **options: real(self, parts, **{{**options, "step": dies}})
sys.exit(main(sys.argv[1:]))
"""
"""dlapp, with an ApplicationMaster that dies in the commit."""


@pytest.fixture(autouse=True)
def _is_shown(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> Iterator[None]:
    """A machine that knows where HDFS is; afterwards nothing runs on it."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.configuration))
    yield
    wait_for("the end of all processes", lambda: not processes(state_dir))


@pytest.fixture
def target(base: str) -> str:
    return f"{base}/run 1 100%"


@pytest.fixture
def train(files: HdfsFiles, base: str) -> str:
    """A directory on HDFS with the files ``a`` and ``b``."""
    files.make_directory(f"{base}/train")
    for name in ("a", "b"):
        files.write_atomic(f"{base}/train/{name}", f"{name} of hdfs\n".encode())
    return f"{base}/train"


def to(target: str, *, overwrite: bool = True) -> dict[str, object]:
    return {"output_path": "output", "hdfs": target, "overwrite": str(overwrite).lower()}


def test_input_and_output_of_all_containers_use_hdfs(files: HdfsFiles, target: str, train: str, tmp_path: Path) -> None:
    old_target(files, target)
    script = 'mkdir -p output && cat data/[ab] here/c > "output/all of $CONTAINER_INDEX"'
    (tmp_path / "c").write_text("c of this machine\n")
    more: dict[str, Any] = {"from_hdfs local": {"hdfs": "c", "input_path": "here"}}
    file = properties(
        tmp_path,
        script,
        resources={"containers": 2},
        from_hdfs={"hdfs": f"{train}/*", "input_path": "data"},
        **more,
        to_hdfs=to(target),
    )
    end = ended(launch(file))
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    assert [(output["target"], output["committed"]) for output in end["outputs"]] == [(target, True)]
    text = "a of hdfs\nb of hdfs\nc of this machine\n"
    assert tree(files, target) == {"0/": "", "1/": "", "0/all of 0": text, "1/all of 1": text}
    assert sibling_names(files, target) == ["train"]


def test_a_failed_application_keeps_its_output_beside_the_target(files: HdfsFiles, target: str, tmp_path: Path) -> None:
    old = old_target(files, target)
    application = launch(properties(tmp_path, "mkdir output; echo half > output/model; exit 3", to_hdfs=to(target)))
    assert ended(application)["final_status"] == "FAILED"
    assert tree(files, target) == old
    assert tree(files, f"{target}.{application}.partial") == {"model": "half\n"}
    assert sibling_names(files, target) == [f"run 1 100%.{application}.partial"]


@pytest.mark.slow
def test_output_waits_for_a_read_only_hdfs(
    files: HdfsFiles, target: str, tmp_path: Path, admin: Callable[..., None]
) -> None:
    script = f"mkdir output; echo new > output/model; until [ -e '{tmp_path}/go' ]; do sleep 0.1; done"
    application = launch(properties(tmp_path, script, to_hdfs=to(target)))
    wait_for("the payload", lambda: details(application, "running"))
    admin("-safemode", "enter")
    try:
        (tmp_path / "go").touch()
        (output,) = wait_for("a word on it", lambda: details(application, "storing", "safe mode"))
        assert re.match(r"waits for its file system since \S+ \S+, until \S+ \S+: hdfs://", output)
    finally:
        admin("-safemode", "leave")
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    assert tree(files, target) == {"model": "new\n"}
    assert sibling_names(files, target) == []


def details(application: str, phase: str, words: str = "") -> list[str]:
    """Return what the containers in a phase say of it, of those that have these words."""
    containers = status(application)["containers"]
    return [
        container["detail"] for container in containers if container["phase"] == phase and words in container["detail"]
    ]


@pytest.mark.parametrize("step", ["marker", "old aside", "swapped"])
def test_a_commit_whose_applicationmaster_died_is_finished_after_it(
    files: HdfsFiles, target: str, tmp_path: Path, step: str
) -> None:
    old_target(files, target)
    (tmp_path / "dying.py").write_text(DYING.format(step=step))
    config = load_config({"local.am_attempts": "1"})
    engine = LocalEngine(config, program=(sys.executable, "-I", str(tmp_path / "dying.py")))
    with engine, Client(config, engine=engine) as client:
        file = properties(tmp_path, "mkdir output; echo new > output/model", to_hdfs=to(target))
        application = client.submit(str(file))
        wait_for("its end", lambda: client.status(application).state.ended)
        end = client.status(application)
    assert end.final_status is not None
    assert end.final_status.value == "SUCCEEDED", end.diagnostics
    assert "the ApplicationMaster died while it committed the output" in end.diagnostics
    assert tree(files, target) == {"model": "new\n"}
    assert sibling_names(files, target) == []


def test_a_swap_that_was_cut_off_is_finished_by_the_next_launcher_on_the_target(
    place: HdfsPlace, files: HdfsFiles, target: str, tmp_path: Path
) -> None:
    old_target(files, target)

    def dies(step: str) -> None:
        if step == "old aside":
            raise Killed

    with pytest.raises(Killed):
        commit.commit(target, APP, plant(files, target, ["0", "1"]), overwrite=True, hdfs=place, step=dies)
    assert tree(files, target) is None
    done = run("dlapp-launcher", properties(tmp_path, "true", to_hdfs=to(target, overwrite=False)))
    assert done.code == 2
    assert f"already exists (the output of {APP}, which was cut off, is put in place now); name another" in done.err
    assert tree(files, target) == new_tree(["0", "1"])
    assert sibling_names(files, target) == []


def test_a_configured_but_unneeded_cluster_may_be_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration><property>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert ended(launch(properties(tmp_path, "true")))["final_status"] == "SUCCEEDED"
    done = run("dlapp-launcher", properties(tmp_path, "true", name="other", to_hdfs=to("hdfs://nn/x")))
    assert done.code == 2
    assert f"hdfs://nn/x is on HDFS, and {tmp_path}/core-site.xml:1: is not XML" in done.err
