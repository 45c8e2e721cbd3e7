"""An ApplicationMaster in a container of YARN: what it is to do comes in the container's credentials."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from queue import SimpleQueue

from dlapp.am import events
from dlapp.am.loop import Item, Loop
from dlapp.am.staged_home import StagedHome
from dlapp.cluster import Heartbeat
from dlapp.cluster.yarn.am_side import YarnAmEngine
from dlapp.cluster.yarn.plan import WORKSPACE, Plan
from dlapp.cluster.yarn.staging import KILL
from dlapp.cluster.yarn.tokens import read_container_credentials
from dlapp.errors import DlappError
from dlapp.ids import ContainerId
from dlapp.storage import HdfsPlace
from dlapp.storage.staged import StagedFiles


def run() -> int:
    """Run one attempt of the application whose container this is."""
    try:
        return _run()
    except DlappError as error:
        # YARN shows the end of this in its diagnostics.
        print(f"dlapp: {error}", file=sys.stderr, flush=True)
        return 1


def _run() -> int:
    credentials = read_container_credentials()
    plan = Plan.from_credentials(credentials)
    own = ContainerId.from_text(os.environ["CONTAINER_ID"])
    home = StagedHome(
        StagedFiles(plan.storage),
        own.application,
        own.attempt,
        plan.submission,
        plan.secrets,
        HdfsPlace.from_settings(plan.storage),
    )
    wakes: SimpleQueue[Item] = SimpleQueue()
    engine = YarnAmEngine(plan.cluster, credentials, own.attempt, plan.program(), lambda: wakes.put(None))
    loop = Loop(
        home=home,
        # YARN brings it to a task's own directory.
        submission=replace(plan.submission, workspace_archive=WORKSPACE),
        secrets=plan.secrets,
        application_id=own.application,
        attempt=own.attempt,
        engine=engine,
        wakes=wakes,
        listen=("0.0.0.0", os.environ.get("NM_HOST", "")),
        open_page=True,  # YARN's proxy shows the root, to whom it lets in
        before_the_end=home.keep,
        ledger=plan.ledger,
    )

    def on_mark(name: str, by: str) -> None:
        wakes.put(events.Kill(by) if name == KILL else events.SoftKill(by))

    def on_other(why: str) -> None:
        wakes.put(Heartbeat(shut_down=why))

    home.open(loop.control_url, on_mark, on_other, lambda: wakes.put(events.Published()))
    loop.run()
    if loop.ended:
        home.remove()
    return 0
