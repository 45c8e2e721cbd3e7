"""The zip that goes to the nodes, run as on a machine of another processor and libc: without any native part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dlapp.cluster.yarn import travel

PARTS = (
    "dlapp.am.on_yarn",
    "dlapp.task.main",
    "dlapp.task.steps",
    "dlapp.cluster.yarn.task_side",
    "dlapp.gpuid.zookeeper",
    "dlapp.gpuid.given",
    "dlapp.gpuid.nvml",
    "dlapp.runtime.docker",
    "dlapp.storage.hdfs",
    "dlapp.storage.hdfs_commit",
    "google.protobuf.message",
    "kazoo.client",
    "pynvml",
    "docker",
)
_TRIAL = """
import importlib, os, sys
stdlib = os.path.dirname(os.__file__)
sys.path.insert(0, sys.argv[1])
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
for name in sys.argv[2:]:
    importlib.import_module(name)
for name, module in list(sys.modules.items()):
    place = getattr(module, "__file__", None) or ""
    if place and not place.startswith((sys.argv[1], stdlib, "<")):
        print(name, place)
"""


def test_all_that_runs_on_a_node_is_in_the_zip_in_its_pure_python_form(travel_cache: Path) -> None:
    path, _ = travel.packed(str(travel_cache))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", _TRIAL, path, *PARTS], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_python_of_another_version_passes_over_the_compiled_forms(travel_cache: Path) -> None:
    path, _ = travel.packed(str(travel_cache))
    # As if compiled by another: its number is not the one that this Python wants.
    code = "import importlib.util as u, zipimport, sys; zipimport._bootstrap_external.MAGIC_NUMBER = b'old!'\n" + _TRIAL
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", code, path, "dlapp.task.steps", "h11"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
