"""Clearing up the GPU ledger on other hosts, each by an application of one container there.

Only a host itself can see what runs on it, so whoever wants the GPUs of others cleared up must run something there. The
application has no payload: its task does what ``dlapp-gpu gc`` does, and what came of it is its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.errors import DlappError, Unreachable
from dlapp.system import clock

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.ids import ApplicationId

AT_ONCE = 16
"""Applications that run at the same time: each has an ApplicationMaster besides its container."""
MEMORY_MIB = 512
APPNAME = "dlapp-gpu-gc"
_LOOK_EVERY_S = 0.3


class _RemoteReclaim:
    """One host that is being cleared up."""

    def __init__(self, host: str, application: ApplicationId, deadline: float) -> None:
        self.host, self.application, self.deadline = host, application, deadline


def reclaim_on(
    client: Client, hosts: Sequence[str], *, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[dict[str, Any]]:
    """End the leases of other hosts whose payloads are gone, as soon as each is done.

    Args:
        client: of the cluster that the hosts are nodes of.
        hosts: as the cluster's nodes are called, or as the ledger calls them.
        timeout_s: what one host may take, from the submission to the answer.
        clock: the time [s, monotonic].

    Yields:
        ``host``; ``error``: why it was not reached, else empty; ``leases``: as `GpuLedger.reclaim` gives them.

    Raises:
        Unreachable: the cluster does not answer at all.
    """
    nodes = client.engine.node_names()
    waiting = list(dict.fromkeys(hosts))
    asked: list[_RemoteReclaim] = []
    try:
        while waiting or asked:
            while waiting and len(asked) < AT_ONCE:
                host = waiting.pop(0)
                try:
                    application = _submit(client, _node_of(host, nodes))
                except Unreachable:
                    raise
                except DlappError as error:
                    yield _failed(host, str(error))
                    continue
                asked.append(_RemoteReclaim(host, application, clock() + timeout_s))
            for one in list(asked):
                if (answer := _answer(client, one, late=clock() >= one.deadline, timeout_s=timeout_s)) is not None:
                    asked.remove(one)
                    yield answer
            if asked:
                time.sleep(_LOOK_EVERY_S)
    finally:
        for one in asked:
            _end(client, one.application)


def _node_of(host: str, nodes: Sequence[str]) -> str:
    """The node that a host is: of that name, or the only one whose name begins so, as a host's own name often is short.

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
    raise DlappError(f"no node of the cluster that runs now has this name{_some(nodes)}")


def _some(nodes: Sequence[str]) -> str:
    return f"; there are {', '.join(sorted(nodes)[:5])}{', …' if len(nodes) > 5 else ''}"


def _submit(client: Client, node: str) -> ApplicationId:
    from dlapp.launcher.application import os_user
    from dlapp.launcher.pack import pack
    from dlapp.launcher.scan import scan_workspace
    from dlapp.messages import new_secret
    from dlapp.spec import AppSpec, Placement, Resources, RoleSpec, Secrets, Submission

    engine = client.engine
    with tempfile.TemporaryDirectory(prefix="dlapp-gpu-gc-") as workspace:
        # What an application has: nothing of it runs.
        with open(os.path.join(workspace, "nothing.sh"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\n")
        os.chmod(file.name, 0o755)
        os.utime(file.name, (0, 0))
        spec = AppSpec(
            username=os_user(),
            appname=APPNAME,
            workspace=workspace,
            script="nothing.sh",
            placement=Placement(nodes=(node,)),
            roles=(RoleSpec(resources=Resources(memory_mib=MEMORY_MIB)),),
            collect_gpus=True,
        )
        engine.info()
        engine.check(spec)
        engine.prepare()
        packed = pack(scan_workspace(workspace), engine.archive_cache(), limit_bytes=1 << 20)
        submission = Submission(
            spec=spec,
            workspace_archive=packed.archive,
            workspace_digest=packed.digest,
            submitter=os_user(),
            submitted_ms=clock.now_ms(),
        )
        return engine.submit(submission, Secrets(control_secret=new_secret()))


def _answer(client: Client, asked: _RemoteReclaim, *, late: bool, timeout_s: float) -> dict[str, Any] | None:
    """Return the result of one host; None: none yet."""
    try:
        view = client.status(asked.application)
        if view.state.ended:
            if view.final_status.value != "SUCCEEDED":
                return _failed(asked.host, f"{asked.application} {view.final_status.value}: {view.diagnostics}")
            return _read(client, asked)
        said = view.diagnostics or view.state.value
    except Unreachable as error:
        said = str(error)
    except DlappError as error:
        return _failed(asked.host, f"{asked.application}: {error}")
    if not late:
        return None
    _end(client, asked.application)
    return _failed(asked.host, f"no answer in {timeout_s:g} s: {asked.application}: {said}")


def _read(client: Client, asked: _RemoteReclaim) -> dict[str, Any]:
    data = b"".join(piece.data for piece in client.logs(asked.application, streams=("stdout",)))
    try:
        found = json.loads(data)
        return {"host": asked.host, "error": "", "leases": list(found["leases"])}
    except (ValueError, KeyError, TypeError):
        return _failed(asked.host, f"what {asked.application} found cannot be read: {data[:80]!r}")


def _failed(host: str, why: str) -> dict[str, Any]:
    return {"host": host, "error": why, "leases": []}


def _end(client: Client, application: ApplicationId) -> None:
    with contextlib.suppress(DlappError):
        client.kill(application)
