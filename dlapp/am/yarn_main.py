"""An ApplicationMaster in a container of YARN: its input is in the container's credentials."""

from __future__ import annotations

import os
import resource
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dlapp.am.application_dir.hdfs import HdfsApplicationDir
from dlapp.am.loop import Item, Loop
from dlapp.am.model.start_gate import StartGate
from dlapp.cluster.yarn.am.engine import YarnAmEngine
from dlapp.cluster.yarn.am_plan import WORKSPACE, AmPlan
from dlapp.errors import DlappError
from dlapp.hadoop.tokens import read_container_credentials
from dlapp.net.control import max_connections
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.system.logs import log
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId

if TYPE_CHECKING:
    from dlapp.am.other_applications import EndWatcher
    from dlapp.notifications.sender import Sender


def run() -> None:
    """Run one attempt of the application whose container this is."""
    try:
        _run()
    except DlappError as error:
        # YARN shows the end of what is on standard error in its diagnostics.
        raise SystemExit(f"dlapp: {error}") from None


def _run() -> None:
    # Each task keeps a connection; nothing is started here that would inherit this.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    credentials = read_container_credentials()
    plan = AmPlan.from_credentials(credentials)
    if (most := max_connections()) < plan.submission.spec.containers:
        log.warning(
            f"this node's limit of open files ({hard}) lets {most} of {plan.submission.spec.containers} tasks connect: "
            "raise its NodeManager's hard limit (LimitNOFILE, nofile)"
        )
    own = ContainerId.from_text(os.environ["CONTAINER_ID"])
    app_dir = HdfsApplicationDir(
        HdfsStagingFiles(plan.hdfs),
        own.application,
        own.attempt,
        plan.submission,
        plan.hdfs,
    )
    wakes: SimpleQueue[Item] = SimpleQueue()
    engine = YarnAmEngine(
        plan.cluster,
        credentials,
        own.attempt,
        plan.program(),
        lambda: wakes.put(None),
        application_id=own.application,
        certificates=plan.hdfs.certificates,
    )
    loop = Loop(
        app_dir=app_dir,
        # YARN brings it to a task's own directory.
        submission=replace(plan.submission, workspace_archive=plan.submission.workspace_archive and WORKSPACE),
        secrets=plan.secrets,
        application_id=own.application,
        attempt=own.attempt,
        engine=engine,
        wakes=wakes,
        listen=("0.0.0.0", os.environ.get("NM_HOST", "")),
        open_page=True,  # YARN's proxy shows the root, to whom it lets in
        ledger=plan.ledger,
        sender=_sender(plan, own.application),
        notifies_end=True,
        start_gate=StartGate(plan.submission.spec.after, is_held=plan.submission.spec.hold),
        watcher=_watcher(plan, own.application, wakes),
    )
    loop.run()


def _watcher(plan: AmPlan, application_id: ApplicationId, wakes: SimpleQueue[Item]) -> EndWatcher | None:
    if not plan.submission.spec.after:
        return None
    from dlapp.am.other_applications import EndWatcher
    from dlapp.cluster.yarn.am.other_applications import EndReader

    cluster, files = plan.cluster, HdfsStagingFiles(plan.hdfs)
    reader = EndReader(cluster.web, cluster.login, files, application_id, plan.hdfs.certificates)
    return EndWatcher(reader.read, wakes.put)


def _sender(plan: AmPlan, application_id: ApplicationId) -> Sender | None:
    if (settings := plan.secrets.notify) is None:
        return None
    from dlapp.cluster.yarn.outbox import StagedOutbox
    from dlapp.node_policy import node_policy
    from dlapp.notifications.sender import Sender
    from dlapp.values.notification import COMMAND

    channels = set(settings.channels)
    if settings.command:
        try:
            allowed = node_policy().notify_commands
        except DlappError as error:
            log.warning(f"the user's notification command is not run on this node: {error}")
            allowed = ()
        if settings.command[0] not in allowed:
            channels.discard(COMMAND)  # it stays in the outbox, for the user's next command
    return Sender(settings, StagedOutbox(HdfsStagingFiles(plan.hdfs), application_id), channels)
