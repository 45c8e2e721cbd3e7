"""JAX finds the other containers, by a package that registers launchers as JAX does (with JAX itself:
tests/end_to_end/frameworks/in_frameworks.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.runtime.payload import Payload
from dlapp.values.spec import Resources

CLUSTERS = """
class ClusterEnv:
    found = []
    def __init_subclass__(cls, **more):
        super().__init_subclass__(**more)
        cls.found.append(cls)
class Slurm(ClusterEnv):
    @classmethod
    def is_env_present(cls):
        return False
"""
PROGRAM = """
import json, sys
before = "jax" in sys.modules
import jax._src.clusters as clusters
present = [one for one in clusters.ClusterEnv.found if one.is_env_present()]
seen = [
    (one.name, one.get_coordinator_address(timeout_secs=3), one.get_process_count(), one.get_process_id())
    for one in present
]
print(json.dumps([before, seen, getattr(sys, "hidden", None)]))
"""
VARIABLES = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:20001", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a package jax, and the directory ``python`` of a payload with framework=jax."""
    (tmp_path / "lib/jax/_src").mkdir(parents=True)
    for name, text in (("__init__", ""), ("_src/__init__", ""), ("_src/clusters", CLUSTERS)):
        (tmp_path / f"lib/jax/{name}.py").write_text(text)
    payload(tmp_path, has_jax=True).write_context()
    return tmp_path


def payload(place: Path, *, has_jax: bool) -> Payload:
    return Payload(
        application_id="a",
        container_id="c",
        directory=str(place),
        script="x",
        args=(),
        env={},
        resources=Resources(),
        has_jax=has_jax,
    )


def printed(place: Path, *, variables: dict[str, str]) -> list[object]:
    env = {"PYTHONPATH": f"{place}/lib:{place}/python", **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: list[object] = json.loads(done.stdout)
    return found


def test_jax_recognizes_dlapp_among_its_launchers(place: Path) -> None:
    assert printed(place, variables=VARIABLES) == [False, [["dlapp", "10.0.0.1:20001", 3, 2]], None]


@pytest.mark.parametrize("missing", VARIABLES)
def test_without_a_variable_the_application_is_no_launcher(place: Path, missing: str) -> None:
    variables = {name: value for name, value in VARIABLES.items() if name != missing}
    assert printed(place, variables=variables) == [False, [], None]


def test_a_sitecustomize_that_is_hidden_runs_too(place: Path) -> None:
    (place / "other").mkdir()
    (place / "other/sitecustomize.py").write_text("import sys; sys.hidden = 'ran'\n")
    env = VARIABLES | {"PYTHONPATH": f"{place}/lib:{place}/python:{place}/other"}
    assert printed(place, variables=env) == [False, [["dlapp", "10.0.0.1:20001", 3, 2]], "ran"]


def test_a_sitecustomize_of_the_user_comes_first(place: Path) -> None:
    (place / "lib/sitecustomize.py").write_text("import sys; sys.hidden = 'of the user'\n")
    assert printed(place, variables=VARIABLES) == [False, [], "of the user"]


def test_other_frameworks_leave_python_as_it_is(tmp_path: Path) -> None:
    payload(tmp_path, has_jax=False).write_context()
    assert not (tmp_path / "python/sitecustomize.py").exists()
