"""Quotas of HDFS that are reached under a real application: it waits, says for what, and computes nothing again."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from tests.applications import launch, properties, run, status, wait_for
from tests.engines import Engine
from tests.services.hadoop import Hadoop

END_S = 120.0
SPACE, NAMES = "storagespacequota", "namespacequota"


class Directory:
    """A directory on HDFS whose quota the test sets."""

    def __init__(self, hadoop: Hadoop, path: str) -> None:
        self.path = path
        self._files = HdfsFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
        self._files.web.make_directory(path)

    def limit(self, kind: str, most: int) -> None:
        """Set a quota; -1 removes it."""
        self._files.web._call("SETQUOTA", self.path, {kind: str(most)}, method="PUT")

    def close(self) -> None:
        self._files.web.close()


@pytest.fixture
def limited(engine: Engine) -> Iterator[Directory]:
    assert engine.hadoop is not None
    directory = Directory(engine.hadoop, f"{engine.root}/limited")
    yield directory
    directory.close()


def computing_once(directory: Path, limited: Directory, **application: object) -> Path:
    script = (
        f"echo start >>{directory}/starts; mkdir output; echo new >output/model\n"
        f"until [ -e {directory}/go ]; do sleep 0.05; done"
    )
    output = {"output_path": "output", "hdfs": f"{limited.path}/result"}
    return properties(directory, script, application=application, resources={"retries": 2}, to_hdfs=output)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.parametrize(
    ("kind", "most", "phase", "lack"),
    [
        (SPACE, 1000, "storing", " in the space quota of "),
        # One name for the directory itself; nothing can be stored.
        (NAMES, 1, "storing", " in the name quota of "),
        # And three for what is stored: the commit needs one more, for its marker.
        (NAMES, 4, "committing", "1 name in the name quota of "),
    ],
    ids=["space", "names", "names of the commit"],
)
def test_output_waits_for_a_quota_until_it_is_raised(
    limited: Directory, engine: Engine, tmp_path: Path, kind: str, most: int, phase: str, lack: str
) -> None:
    application = launch(computing_once(tmp_path, limited))
    limited.limit(kind, most)
    (tmp_path / "go").touch()
    wait_for("it waits", lambda: status(application)["phase"].startswith(f"{phase}: waits for "), END_S)
    text = f"{lack}{limited.path} since "
    wait_for(f"the reason {text}", lambda: text in run("dlapp-status", application).out, END_S)
    limited.limit(kind, -1)
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert engine.tree("limited/result") == {"model": "new\n"}
    assert engine.beside("limited/result") == []
    assert (tmp_path / "starts").read_text() == "start\n"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.parametrize("most", [1, 4], ids=["not stored", "not committed"])
def test_output_refused_by_a_quota_in_time_is_named(
    limited: Directory, engine: Engine, tmp_path: Path, most: int
) -> None:
    application = launch(computing_once(tmp_path, limited, output_patience="1s"))
    limited.limit(NAMES, most)
    (tmp_path / "go").touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 1
    seen = status(application)
    shown = run("dlapp-status", application).out
    assert "quota" in seen["diagnostics"]
    if most == 1:
        (unstored,) = seen["unstored"]
        assert f"unstored : {unstored} (a NodeManager that starts without recovery removes it)\n" in shown
        assert Path(unstored.partition(":")[2], "output", "model").read_text() == "new\n"
    else:
        (output,) = seen["outputs"]
        assert f"partial : kept at {output['partial']}" in shown.splitlines()
        assert engine.tree(f"limited/{output['partial'].rpartition('/limited/')[2]}") == {"model": "new\n"}
    assert (tmp_path / "starts").read_text() == "start\n"
