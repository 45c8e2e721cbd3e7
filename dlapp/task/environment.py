"""Environment variables of a payload; docs/payload.md documents them for users."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlapp.values.launch_spec import DOCKER_SHELL, LiveWorkspace
from dlapp.values.messages import Assignment
from dlapp.values.spec import Framework, cache_variable

if TYPE_CHECKING:
    from dlapp.runtime.payload import PayloadDevice

NODE_MANAGERS = "NM_HOST"
"""Variable that a NodeManager sets for each container, like USER, whatever the client requests. Source: Hadoop 2.6 to
3.4, ContainerLaunch.sanitizeEnv."""
THREADS = "OMP_NUM_THREADS"
"""Read by OpenMP, and so by PyTorch, MKL, OpenBLAS, XGBoost, LightGBM and scikit-learn; without it each program has a
thread for each core of the machine."""
FRAMEWORKS = "frameworks"
"""Name of the cache that plain processes have without asking, and of its directory in a cache in Docker."""
FRAMEWORK_CACHES = (
    ("TORCHINDUCTOR_CACHE_DIR", "torchinductor"),
    ("TRITON_CACHE_DIR", "triton"),
    ("TFHUB_CACHE_DIR", "tfhub"),
    ("TIKTOKEN_CACHE_DIR", "tiktoken"),
    ("FASTEMBED_CACHE_PATH", "fastembed"),
)
"""Variables of libraries whose cache is in TMPDIR, or in HOME (Triton), and which several processes may use at a time:
they write a file under another name and rename it, or hold a lock.

Not among them: NUMBA_CACHE_DIR and PYTHONPYCACHEPREFIX, because a changed script of the same length would run as it was
(both compare time and length, and all files of a workspace have the same time); TORCH_EXTENSIONS_DIR, whose builds wait
for ever for the lock of a killed one; JAX_COMPILATION_CACHE_DIR, because JAX has no cache without it.

Source: torch/_inductor/runtime/cache_dir_utils.py and codecache.py (write_atomic); triton/runtime/cache.py;
tensorflow_hub/resolver.py (tfhub_cache_dir, atomic_download); tiktoken/load.py; fastembed/common/utils.py
(define_cache_dir); numba/core/caching.py (_UserProvidedCacheLocator); torch/utils/file_baton.py.
"""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def node_name() -> str:
    """Return the host name that users know: on a cluster YARN's name of the node, as in ``nodes`` of the file."""
    return os.environ.get(NODE_MANAGERS) or os.uname().nodename


def payload_environment(
    assignment: Assignment,
    *,
    workspace: str,
    home: str,
    tmp: str,
    submitter: Mapping[str, str] | None,
    user: Mapping[str, str],
    run: str | None = None,
    python: str | None = None,
    gpus: Sequence[PayloadDevice] = (),
    caches: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the whole environment of a plain payload, or the variables that are added to an image's.

    ``DLAPP_INPUT`` and ``DLAPP_OUTPUT`` are the directories of the unnamed sections, or of the first ones if all have
    names. ``DLAPP_INPUT_NAME`` and ``DLAPP_OUTPUT_NAME`` are those of the section NAME, in capitals, with ``_`` for
    characters that are invalid in a variable's name.

    Args:
        assignment: the assignment of the task.
        workspace: absolute path of the workspace as the payload sees it.
        home: HOME where the submitter's environment has none.
        tmp: TMPDIR, as the payload sees it.
        submitter: variables that a plain process inherits from the submitter's shell; None if the payload runs in
            Docker.
        user: the variables of the properties file; ``{app_id}`` and ``{cache.NAME}`` in them are replaced.
        run: DLAPP_DIR, as the payload sees it; None if there is none.
        python: directory of the module dlapp_context, as the payload sees it; None if there is none. It is last on
            PYTHONPATH, so that it hides no module of the user's.
        gpus: the leased devices, in PCI bus order.
        caches: name of a cache -> its path, as the payload sees it.
    """
    # Not before the task has asked for its work.
    from dlapp.runtime.gpu.environment import gpu_variables
    from dlapp.values.program.placeholders import APP_ID, CACHE, substitute
    from dlapp.values.program.submitter import without_replaced

    plain = submitter is not None
    # Python's output must reach the log immediately, and survive a kill.
    env = {"PYTHONUNBUFFERED": "1", "HOME": home}
    if submitter is not None:
        env |= {"PATH": DEFAULT_PATH, **without_replaced(submitter, user)}
    env["TMPDIR"] = tmp
    values = {
        APP_ID: str(assignment.application_id),
        **{f"{CACHE}{name}": path for name, path in (caches or {}).items()},
    }
    env |= dict(zip(user, substitute(user.values(), values), strict=True))
    env |= {
        **_identity(assignment),
        "DLAPP_WORKSPACE": workspace,
        **gpu_variables(gpus, names=assignment.cuda_visible_devices, is_plain=plain),
    }
    if assignment.gpu_capabilities:
        env["NVIDIA_DRIVER_CAPABILITIES"] = ",".join(assignment.gpu_capabilities)
    if run is not None:
        env |= {"DLAPP_DIR": run, "DLAPP_REPORT": f"{run}/report", "DLAPP_STOP": f"{run}/stop"}
    if plain:
        env["PWD"] = workspace
    if assignment.hang_timeout_s is not None:
        env["DLAPP_HANG_TIMEOUT"] = f"{assignment.hang_timeout_s:g}"
        env.setdefault("PYTHONFAULTHANDLER", "1")  # dumps the stacks of all threads on SIGABRT
    if python is not None:
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{python}" if env.get("PYTHONPATH") else python
    env |= {cache_variable(name): path for name, path in (caches or {}).items()}
    _add_sections(env, assignment, workspace)
    return env


def _add_sections(env: dict[str, str], assignment: Assignment, workspace: str) -> None:
    """Add the variables of the sections of input and output."""
    inputs: Sequence[tuple[str, str]] = [(one.name, one.input_path) for one in assignment.inputs]
    outputs: Sequence[tuple[str, str]] = [(one.name, one.output_path) for one in assignment.outputs]
    if assignment.live is not None:
        inputs, outputs = assignment.live.inputs, assignment.live.outputs
    add_places(env, "DLAPP_INPUT", workspace, inputs)
    add_places(env, "DLAPP_OUTPUT", workspace, outputs)


def _identity(assignment: Assignment) -> dict[str, str]:
    """Return the variables that tell a payload which part of which application it is."""
    return {
        "CONTAINER_INDEX": str(assignment.index),
        "NUM_CONTAINERS": str(assignment.total),
        "DLAPP_ROLE": assignment.role,
        "DLAPP_ROLE_INDEX": str(assignment.role_index),
        "DLAPP_ROLE_SIZE": str(assignment.role_size),
        "DLAPP_APP_ID": str(assignment.application_id),
        "DLAPP_ATTEMPT": str(assignment.attempt),
        "DLAPP_CONTAINER_ID": str(assignment.container_id),
    }


def shell_variables(live: LiveWorkspace, env: Mapping[str, str], submitter: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variables of dlapp-run and of the start file of bash (``shell-rc.sh``).

    Args:
        live: the workspace of the shell.
        env: the other variables of the payload.
        submitter: variables of the caller; None in Docker.
    """
    own = ("CUDA_VISIBLE_DEVICES", "TMPDIR")
    kept = [
        name
        for name, value in env.items()
        if name not in ("PATH", "PWD")
        and (name in own or name.startswith("DLAPP_") or submitter is None or submitter.get(name) != value)
    ]
    directory = DOCKER_SHELL if submitter is None else live.shell_dir
    return {"DLAPP_SHELL_DIR": directory, "DLAPP_SHELL_VARIABLES": " ".join([*kept, "DLAPP_SHELL_DIR"])}


def default_variables(
    assignment: Assignment,
    *,
    user: Mapping[str, str],
    cache_path: str | None,
    submitter: Mapping[str, str] = MappingProxyType({}),
    docker_network: str = "",
) -> dict[str, str]:
    """Return the variables of a payload that the user and its image replace: threads, caches and proxies.

    Args:
        assignment: the assignment of the task.
        user: the variables of the properties file.
        cache_path: directory that stays on this node, for the caches of frameworks; None: there is none.
        submitter: in Docker the variables of the submitter.
        docker_network: Docker's network mode.
    """
    found = {name: f"{cache_path}/{directory}" for name, directory in FRAMEWORK_CACHES if cache_path is not None}
    processes = 1
    if assignment.framework is not Framework.NONE:
        from dlapp import frameworks

        processes = frameworks.processes(assignment.framework, assignment.resources, user)
    if processes:
        found[THREADS] = threads(assignment.resources.vcores, processes)
    if assignment.docker_image is not None:
        from dlapp.values.program.submitter import proxies_in_docker, without_replaced

        found |= proxies_in_docker(without_replaced(submitter, user), own_network=docker_network != "host")
    return found


def threads(vcores: int, processes: int) -> str:
    """Return the value of `THREADS` for each of some processes that share cores."""
    return str(max(1, vcores // processes))


def add_places(env: dict[str, str], variable: str, directory: str, places: Sequence[tuple[str, str]]) -> None:
    """Add the variables of the paths of sections: one for each name, and one for the unnamed or first section.

    Args:
        env: updated in place.
        variable: its name.
        directory: that the paths are relative to.
        places: names of sections, and paths.
    """
    for name, path in reversed(places):  # so that the first wins if two names map to the same variable
        if name:
            capitals = "".join(char if char.isascii() and char.isalnum() else "_" for char in name.upper())
            env[f"{variable}_{capitals}"] = posixpath.normpath(os.path.join(directory, path))
    if places:
        path = next((path for name, path in places if not name), places[0][1])
        env[variable] = posixpath.normpath(os.path.join(directory, path))
