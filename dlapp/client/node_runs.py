"""Operations on single nodes of a cluster, each run by an application with one container there.

Only a host itself can inspect its processes and whether it meets the requirements of containers. Such an application
has no payload: its task cleans the GPU ledger like ``dlapp-gpu gc``, or checks its node for dlapp-doctor. The result is
its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.errors import DlappError, Unreachable
from dlapp.system import clock
from dlapp.value import replace

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.values.ids import ApplicationId
    from dlapp.values.spec import Submission

MAX_CONCURRENT = 16
"""Applications that run at the same time: each has an ApplicationMaster besides its container."""
MEMORY_MIB = 512
GC, CHECK = "dlapp-gpu-gc", "dlapp-doctor"
"""Names of such applications."""
_POLL_INTERVAL_S = 0.3


class _NodeRun(NamedTuple):
    """One host, and its application."""

    host: str
    application: ApplicationId
    deadline: float


def reclaim_on(client: Client, hosts: Sequence[str], *, timeout_s: float) -> Iterator[dict[str, Any]]:
    """Reclaim the leases of other hosts whose payloads are gone; yield each host when it is done.

    Args:
        client: the client of the cluster of the hosts.
        hosts: names of the cluster's nodes, or the ledger's names.
        timeout_s: limit for one host, from the submission to the result.

    Yields:
        ``host``; ``error``: why it was not reached, else empty; ``leases``: see `GpuLedger.reclaim`.

    Raises:
        Unreachable: the cluster does not answer at all.
    """
    return _run_on(client, hosts, _NodeOperation(GC, "leases", {"collect_gpus": True}), timeout_s)


def check_on(client: Client, hosts: Sequence[str], texts: Mapping[str, str], *, timeout_s: float) -> Iterator[Any]:
    """Check nodes like dlapp-doctor; yield each host when it is done.

    Args:
        client: the client of the cluster of the hosts.
        hosts: names of the cluster's nodes.
        texts: the configuration, without defaults.
        timeout_s: limit for one host, from the submission to the result.

    Yields:
        ``host``; ``error``: why it was not reached, else empty; ``findings``: each as a dictionary.

    Raises:
        Unreachable: the cluster does not answer at all.
    """
    operation = _NodeOperation(CHECK, "findings", {"check_node": True, "args": (json.dumps(dict(texts)),)})
    return _run_on(client, hosts, operation, timeout_s)


class _NodeOperation(NamedTuple):
    """Operation of such applications: their name, the key of the result list in their standard output, and fields of
    their `AppSpec`."""

    appname: str
    key: str
    spec: Mapping[str, Any]


def _run_on(
    client: Client, hosts: Sequence[str], operation: _NodeOperation, timeout_s: float
) -> Iterator[dict[str, Any]]:
    nodes = client.engine.node_names()
    waiting = list(dict.fromkeys(hosts))
    running: list[_NodeRun] = []
    submission: Submission | None = None
    try:
        while waiting or running:
            while waiting and len(running) < MAX_CONCURRENT:
                host = waiting.pop(0)
                try:
                    node = _node_of(host, nodes)
                    submission = submission or _prepare_submission(client, operation, node)
                    application = _submit(client, submission, node)
                except Unreachable:
                    raise
                except DlappError as error:
                    yield _failed(host, str(error), operation)
                    continue
                running.append(_NodeRun(host, application, time.monotonic() + timeout_s))
            for one in list(running):
                if (result := _poll_result(client, operation, one, timeout_s)) is not None:
                    running.remove(one)
                    yield result
            if running:
                time.sleep(_POLL_INTERVAL_S)
    finally:
        for one in running:
            _end(client, one.application)


def _node_of(host: str, nodes: Sequence[str]) -> str:
    """Return the node of a host: with the same name, or the only one with this prefix, since a host's own name is often
    short.

    Raises:
        DlappError: there is none.
    """
    if host in nodes:
        return host
    short = host.partition(".")[0]
    found = [one for one in nodes if one.partition(".")[0] == short and not short.isdigit()]
    if len(found) == 1:
        return found[0]
    if not nodes:
        raise DlappError("applications run on this machine only (cluster: local)")
    some = ", ".join(sorted(nodes)[:5]) + (", …" if len(nodes) > 5 else "")
    raise DlappError(f"no node of the cluster that runs now has this name; there are {some}")


def _prepare_submission(client: Client, operation: _NodeOperation, node: str) -> Submission:
    """Return the submission for a node; those for other nodes differ only in the node."""
    from dlapp.application.build import os_user
    from dlapp.launcher.workspace.pack import pack
    from dlapp.launcher.workspace.scan import scan_workspace
    from dlapp.values.spec import AppSpec, Placement, Resources, RoleSpec, Submission

    engine = client.engine
    with tempfile.TemporaryDirectory(prefix=f"{operation.appname}-") as workspace:
        # An application must have a command; it is never run.
        with open(os.path.join(workspace, "nothing.sh"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\n")
        os.chmod(file.name, 0o755)
        os.utime(file.name, (0, 0))
        spec = AppSpec(
            username=os_user(),
            appname=operation.appname,
            workspace=workspace,
            script="nothing.sh",
            placement=Placement(nodes=(node,)),
            roles=(RoleSpec(resources=Resources(memory_mib=MEMORY_MIB)),),
            **operation.spec,
        )
        engine.info()
        engine.check(spec)
        engine.prepare()
        packed = pack(scan_workspace(workspace), engine.archive_cache(), limit_bytes=1 << 20)
    return Submission(
        spec=spec,
        workspace_archive=packed.archive,
        workspace_digest=packed.digest,
        submitter=os_user(),
        submitted_ms=clock.now_ms(),
    )


def _submit(client: Client, submission: Submission, node: str) -> ApplicationId:
    from dlapp.values.access import new_secret
    from dlapp.values.spec import Placement, Secrets

    spec = replace(submission.spec, placement=Placement(nodes=(node,)))
    submission = replace(submission, spec=spec, submitted_ms=clock.now_ms())
    return client.engine.submit(submission, Secrets(control_secret=new_secret()))


def _poll_result(client: Client, operation: _NodeOperation, run: _NodeRun, timeout_s: float) -> dict[str, Any] | None:
    """Return the result of one host; None if there is none yet."""
    is_overdue = time.monotonic() >= run.deadline
    try:
        view = client.status(run.application)
        if view.state.ended:
            if view.final_status.value != "SUCCEEDED":
                return _failed(run.host, f"{run.application} {view.final_status.value}: {view.diagnostics}", operation)
            return _read(client, operation, run)
        status = view.diagnostics or view.state.value
    except Unreachable as error:
        status = str(error)
    except DlappError as error:
        return _failed(run.host, f"{run.application}: {error}", operation)
    if not is_overdue:
        return None
    _end(client, run.application)
    return _failed(run.host, f"no answer in {timeout_s:g} s: {run.application}: {status}", operation)


def _read(client: Client, operation: _NodeOperation, run: _NodeRun) -> dict[str, Any]:
    data = b"".join(piece.data for piece in client.logs(run.application, streams=("stdout",)))
    try:
        found = json.loads(data)
        return {"host": run.host, "error": "", operation.key: list(found[operation.key])}
    except (ValueError, KeyError, TypeError):
        return _failed(run.host, f"what {run.application} found cannot be read: {data[:80]!r}", operation)


def _failed(host: str, why: str, operation: _NodeOperation) -> dict[str, Any]:
    return {"host": host, "error": why, operation.key: []}


def _end(client: Client, application: ApplicationId) -> None:
    with contextlib.suppress(DlappError):
        client.kill(application)
