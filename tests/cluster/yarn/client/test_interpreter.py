"""The Python of the nodes: one that travels as an archive, one that is missing, one that is too old."""

from __future__ import annotations

import getpass
import io
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.cluster.yarn.client.interpreter import archive_resource, check_archive, interpreter
from dlapp.config import load_config
from dlapp.errors import ConfigError, Denied
from dlapp.hadoop.configuration import read_configuration
from dlapp.login import Login
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.values.report import ApplicationView, Cause
from tests.applications import properties
from tests.services.hadoop import Hadoop
from tests.tiers import FULL


@pytest.mark.parametrize(
    ("python", "archive", "called"),
    [
        ("python3", None, "python3"),
        ("/opt/python/bin/python3.12", None, "/opt/python/bin/python3.12"),
        ("python3", "/apps/python.tar.gz", "python/bin/python3"),
        ("python/bin/python3.12", "/apps/python.tar.gz", "python/python/bin/python3.12"),
    ],
)
def test_with_an_archive_the_path_of_python_is_one_in_it(python: str, archive: str | None, called: str) -> None:
    assert interpreter(python, archive) == called


@pytest.mark.parametrize("python", ["/usr/bin/python3", "../python3", "bin/../../python3"])
def test_a_path_that_leads_out_of_the_archive_is_refused(python: str) -> None:
    with pytest.raises(ConfigError, match=r"yarn\.python: .* a path in the archive, like bin/python3"):
        interpreter(python, "/apps/python.tar.gz")


def test_an_archive_that_nodes_cannot_unpack_is_refused() -> None:
    check_archive("hdfs:///apps/python-3.12.tgz")
    with pytest.raises(ConfigError, match=r"yarn\.python_archive: is '/apps/python\.tar\.xz'"):
        check_archive("/apps/python.tar.xz")


# ---- on a cluster ----


def run(hadoop: Hadoop, directory: Path, sweep: Mapping[str, object] | None = None, **options: str) -> ApplicationView:
    """An application that says hello, to its end.

    Args:
        directory: for its files.
        sweep: keys of [sweep]; None: there is none.
        options: keys of the configuration, with ``__`` in place of dots.
    """
    resources = {"memory": "256m", "gcores": None}
    more = {} if sweep is None else {"sweep": sweep}
    of = {"username": getpass.getuser()}
    file = properties(directory, "echo hello", name="python", application=of, resources=resources, **more)
    texts = {"cluster": "yarn", "yarn.conf_dir": str(hadoop.configuration), "yarn.am_attempts": "1"}
    client = Client(load_config(texts | {name.replace("__", "."): text for name, text in options.items()}))
    try:
        return client.wait(client.submit(str(file)), timeout_s=240)
    finally:
        client.engine.close()


def python_archive(files: HdfsStagingFiles, directory: Path, script: str) -> str:
    """Put an archive on HDFS whose Python is a shell script. Return its location."""
    data = f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n'.encode()
    archive = directory / "python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        entry = tarfile.TarInfo("bin/python3")
        entry.mode, entry.size = 0o755, len(data)
        tar.addfile(entry, io.BytesIO(data))
    place = f"{files.home}/pythons/{time.time_ns()}.tar.gz"
    files.make(f"{files.home}/pythons", 0o755)
    files.send(str(archive), place, 0o644)
    return place


@pytest.mark.slow
def test_a_sweep_has_optuna_of_the_python_that_is_an_archive(hadoop: Hadoop, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    place = python_archive(files, tmp_path, "")
    files.close()
    sweep = {
        "sampler": "optuna:tpe",
        "random.X": "uniform(0, 1)",
        "trials": 4,
        "metric": "m",
        "goal": "max",
        "trials_per_container": 2,
    }
    end = run(hadoop, tmp_path, sweep, yarn__python_archive=place)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    client = Client(load_config({"cluster": "yarn", "yarn.conf_dir": str(hadoop.configuration)}))
    try:
        results = client.sweep(end.application_id).results()
    finally:
        client.engine.close()
    assert results.counts() == {"done": 4}
    assert len({trial.parameters["X"] for trial in results.trials}) == 4
    assert {trial.why for trial in results.trials} == {"never reported m"}


def test_a_python_archive_on_hdfs_runs_applicationmaster_and_tasks(hadoop: Hadoop, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    files = HdfsStagingFiles(read_configuration(str(hadoop.configuration)).hdfs(Login(getpass.getuser())))
    place = python_archive(files, tmp_path, f'echo "$4" >>{witness}')
    name = place.rpartition("/")[2]
    end = run(hadoop, tmp_path, yarn__python_archive=place)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    assert sorted(witness.read_text().split()) == ["am", "task"]

    assert archive_resource(files, place, public=True).archive
    with pytest.raises(ConfigError, match=r"yarn\.python_archive: hdfs://.*/nowhere.tar.gz is not there"):
        archive_resource(files, f"{files.home}/pythons/nowhere.tar.gz", public=True)
    files.make(f"{files.home}/open", 0o777)
    files.send(str(tmp_path / "python.tar.gz"), f"{files.home}/open/{name}", 0o644)
    with pytest.raises(Denied, match="others may write it"):
        archive_resource(files, f"{files.home}/open/{name}", public=True)
    files.close()


def test_a_python_that_is_too_old_gives_one_line(hadoop: Hadoop, tmp_path: Path) -> None:
    old = tmp_path / "python3.6"
    code = "import sys, zipfile; sys.version_info = (3, 6, 8); exec(zipfile.ZipFile(sys.argv[3]).read('__main__.py'))"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    old.chmod(0o755)
    tmp_path.chmod(0o755)
    end = run(hadoop, tmp_path, yarn__python=str(old))
    assert "and dlapp needs 3.11 or later there: set yarn.python or yarn.python_archive" in end.diagnostics


if FULL:

    def test_a_missing_python_is_a_node_fault_with_a_one_line_message(hadoop: Hadoop, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nrm "$0"\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        tmp_path.chmod(0o755)
        end = run(hadoop, tmp_path, yarn__python=str(python))
        assert end.cause is Cause.FAILED
        assert end.diagnostics.startswith(
            "container 0 (worker 0) failed 4 times for reasons other than its program, the last time: "
        )
        assert f"there is no {python} on " in end.diagnostics
        assert "\n" not in end.diagnostics
