"""Payload of a container, created from its assignment and prepared as a process or in Docker."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dlapp.runtime.payload import Payload, Running
from dlapp.runtime.process import PlainRun
from dlapp.system.owners import user_name
from dlapp.task.environment import FRAMEWORKS, default_variables, payload_environment, shell_variables
from dlapp.task.state import TaskState
from dlapp.value import replace
from dlapp.values.spec import Framework, PayloadProgram

if TYPE_CHECKING:
    from dlapp.runtime.docker.payload import DockerRun


def make_ready(task: TaskState) -> Running:
    """Prepare the payload of a container."""
    if task.assignment.docker_image is None:
        # There is no submitter environment on a cluster.
        os.makedirs(os.path.join(task.container_dir, "home"), 0o700, exist_ok=True)
        return PlainRun(plain_payload(task, task.container_dir), task.guardian, task.log.write)
    task.guardian.close()  # a container has its own init, and its lifeline
    phase = task.link.phase
    task.report_phase(phase, detail="creating the container")
    with task.step("the container could not be made", node=True):
        run = make_docker_run(
            task, docker_payload(task), partial(task.retry_while_unavailable, phase=phase), task.progress_reporter()
        )
    task.link.report_phase(phase, gpus=task.gpus, image=run.image_digest)
    return run


def make_docker_run(
    task: TaskState,
    payload: Payload,
    retry_while_unavailable: Callable[[Callable[[], None]], None] = lambda prepare: prepare(),
    progress: Callable[[int, int], None] | None = None,
    network: str | None = None,
) -> DockerRun:
    """Create a Docker container. Thread-safe.

    Args:
        task: the task of the container.
        payload: to run in it.
        retry_while_unavailable: calls its argument, and retries while Docker or a registry is away.
        progress: called with the pulled part of the image.
        network: Docker's network mode; None for that of the assignment.
    """
    from dlapp.runtime.docker.payload import DockerRun

    policy, settings = task.policy.docker, task.launch.docker
    if (network := network or task.assignment.network) is not None:
        settings = replace(settings, network=network)
    run = DockerRun(
        payload,
        settings,
        policy,
        task.log.write,
        progress,
        task.launch.registry_credentials,
        shared_paths=task.policy.shared_paths,
    )
    try:
        retry_while_unavailable(run.prepare)
    except BaseException:
        run.close()
        raise
    return run


def plain_payload(task: TaskState, directory: str) -> Payload:
    """Return the payload as a process; its files are in ``directory``."""
    paths = {name: os.path.join(directory, name) for name in ("workspace", "home", "tmp", "run", "python")}
    if (live := task.assignment.live) is not None:
        paths |= {"workspace": live.path, "tmp": live.tmp}
    return _payload(task, task.launch.environment, paths)


def docker_payload(task: TaskState) -> Payload:
    """Return the payload in Docker."""
    from dlapp.runtime.docker.container_factory import HOME, PYTHON, RUN, TMP, WORKSPACE

    return _payload(task, None, {"workspace": WORKSPACE, "home": HOME, "tmp": TMP, "run": RUN, "python": PYTHON})


def _payload(task: TaskState, submitter: dict[str, str] | None, paths: dict[str, str]) -> Payload:
    """Return the payload; ``paths`` are those of `payload_environment`, by parameter."""
    # Not before the task asks for its work.
    from dlapp.runtime.gpu.environment import payload_devices
    from dlapp.values.program.placeholders import CACHE, OF_PORT, substitute

    one, lease = task.assignment, task.lease
    gpus = payload_devices(lease.devices) if lease else ()
    program = PayloadProgram(one.script, one.command, one.args)
    if task.mpi is not None and task.mpi.command:
        program = PayloadProgram("", task.mpi.command, ())
    caches = {cache.name: task.cache_paths[cache.name] if submitter is not None else cache.path for cache in one.caches}
    values = {f"{CACHE}{name}": path for name, path in caches.items()}
    served: dict[str, str] = {}
    if task.rendezvous is not None and task.rendezvous.ports:
        served = task.rendezvous.own_environment()
        values |= zip(OF_PORT, (served["DLAPP_PORT"], served["DLAPP_ADDRESS"]), strict=True)
    env = payload_environment(
        one,
        **paths,
        submitter=submitter,
        user=task.launch.env,
        gpus=gpus,
        caches=caches,
    )
    defaults = default_variables(
        one,
        user=task.launch.env,
        cache_path=_framework_caches(task),
        submitter=task.launch.environment,
        docker_network=one.network or task.launch.docker.network,
    )
    if one.live is not None:
        env |= shell_variables(one.live, defaults | env, submitter)
    return Payload(
        application_id=str(one.application_id),
        container_id=str(one.container_id),
        directory=task.container_dir,
        live_workspace=one.live.path if one.live is not None else "",
        shell_dir=one.live.shell_dir if one.live is not None else "",
        script=program.script,
        command=substitute(program.command, values),
        args=substitute(program.args, values),
        env=env | served,
        defaults=defaults,
        resources=one.resources,
        image=one.docker_image,
        workdir=one.workdir,
        mounts=tuple(task.inputs.mounts) if task.inputs else (),
        shared=tuple(path for _, path in task.mounted if path is not None),
        caches=tuple((task.cache_paths[cache.name], cache.path) for cache in one.caches),
        gpus=gpus,
        keep_fds=(
            *task.keep_fds,
            *(lease.fds if lease else ()),
            *(task.caches.lock_fds if task.caches else ()),
            *(task.rendezvous.lock_fds if task.rendezvous else ()),
        ),
        has_peers=one.has_roster,
        has_jax=one.framework is Framework.JAX,
        has_feed=any(each.feed is not None for each in one.inputs),
        as_submitter=runs_as_submitter(os.environ, on_a_node=task.on_a_node),
    )


def _framework_caches(task: TaskState) -> str | None:
    """Return the directory for the caches of frameworks, as the payload sees it; None: there is none.

    In Docker it is in the first cache that the user mounts: what one image has compiled need not run in another.
    """
    if task.assignment.docker_image is None:
        return task.cache_paths.get(FRAMEWORKS)
    caches = task.assignment.caches
    return f"{caches[0].path}/{FRAMEWORKS}" if caches else None


def runs_as_submitter(environ: Mapping[str, str], *, on_a_node: bool) -> bool:
    """Return whether this task runs as the submitting user.

    On a node the container executor decides that. A NodeManager sets USER to the submitter.
    """
    return not on_a_node or user_name(os.getuid()) == environ.get("USER")
