"""The application as JAX's launcher, so that ``jax.distributed.initialize()`` needs no arguments (``framework=jax``).

JAX reads the address of its coordinator from JAX_COORDINATOR_ADDRESS. The number of processes and that of this one it
asks of a ``ClusterEnv``: it has one for each launcher that it knows, such as Slurm, and takes others that the program
imports. This is dlapp's, which reads JAX_NUM_PROCESSES and JAX_PROCESS_ID.

So that no program must import it, a container has this file as ``sitecustomize.py``, in the last directory of
PYTHONPATH: Python runs it at each start. It imports nothing of JAX; when a program does, the class is added there. A
``sitecustomize`` that the file hides, such as Debian's, runs after it.

It is not imported within dlapp.

Source: jax/_src/distributed.py, jax/_src/clusters/cluster.py (0.4.2 to 0.10); Python's site.py.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

CLUSTERS = "jax._src.clusters"
"""JAX's package with all launchers that it knows."""
ADDRESS, PROCESSES, NUMBER = VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


class ClustersFinder:
    """Finder of JAX's package of launchers, to which it adds dlapp's when the package has been loaded."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return how Python loads the package; None for every other module."""
        if name != CLUSTERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_add(module: Any) -> None:
                load(module)
                add_cluster(module)

            spec.loader.exec_module = load_and_add  # type: ignore[method-assign]
        return spec


def add_cluster(clusters: Any) -> None:
    """Add this application to the launchers that JAX knows, after its own: ``ClusterEnv`` keeps its subclasses."""
    methods: dict[str, Any] = {
        "is_env_present": lambda: all(one in os.environ for one in VARIABLES),
        "get_coordinator_address": lambda *_args, **_more: os.environ[ADDRESS],  # differ between versions
        "get_process_count": lambda: int(os.environ[PROCESSES]),
        "get_process_id": lambda: int(os.environ[NUMBER]),
    }
    names = {name: staticmethod(method) for name, method in methods.items()}
    type("DlappCluster", (clusters.ClusterEnv,), {"name": "dlapp", **names})


def run_hidden(directory: str) -> None:
    """Run the ``sitecustomize`` that Python would have run without the one in a directory, if there is one."""
    others = [one for one in sys.path if os.path.abspath(one) != directory]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, ClustersFinder())
    run_hidden(os.path.dirname(os.path.abspath(__file__)))
