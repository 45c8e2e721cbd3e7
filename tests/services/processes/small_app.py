"""Small applications for the embedded engine's tests, and a process that submits them.

    python -I small_app.py STATE_DIR OPTIONS COUNT WORD...     submits COUNT times, prints the ids; OPTIONS is JSON
    python -I small_app.py STATE_DIR OPTIONS CALL ID           view, kill, soft_kill, tend: prints the answer as JSON

Their ApplicationMaster is small_am.py, and does what the words say. Those that pause have a max_runtime of a second,
which counts for the order, and nobody ends them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.config import load_config
from dlapp.errors import DlappError
from dlapp.values.access import new_secret
from dlapp.values.ids import ApplicationId
from dlapp.values.spec import AppSpec, Placement, Resources, RoleSpec, Secrets, Submission

SMALL_AM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small_am.py")


def engine_at(state_dir: str, options: Mapping[str, str] | None = None) -> LocalEngine:
    """An engine with its state in ``state_dir``, GPU ledger beside it, and our small ApplicationMaster."""
    texts = {"local.state_dir": state_dir, "gpuid.lock_dir": f"{state_dir}-gpus", **(options or {})}
    return LocalEngine(load_config(texts, environ={}), program=(sys.executable, "-I", SMALL_AM))


def spec_of(
    *words: str,
    memory_mib: int = 1,
    gcores: int = 0,
    containers: int = 1,
    spread: bool = False,
    gpu: str = "whole",
    **fields: Any,
) -> AppSpec:
    """A spec whose arguments say what the ApplicationMaster does; ``fields`` are of `AppSpec`."""
    resources = Resources(memory_mib=memory_mib, gcores=gcores)
    return AppSpec(
        username="tony",
        appname="small",
        workspace="/tmp",
        script="start.sh",
        args=words,
        placement=Placement(spread=spread, gpu=gpu),
        roles=(RoleSpec(instances=containers, resources=resources),),
        **fields,
    )


def submit(engine: LocalEngine, *words: str, **ask: Any) -> ApplicationId:
    """Submit a small application."""
    archive = os.path.join(engine.archive_cache(), "small.tar.gz")
    os.close(os.open(archive, os.O_WRONLY | os.O_CREAT, 0o600))
    submission = Submission(
        spec=spec_of(*words, **ask),
        workspace_archive=f"file://{archive}",
        workspace_digest="sha256-00",
        submitter=f"uid{os.geteuid()}",
        submitted_ms=time.time_ns() // 1_000_000,
    )
    return engine.submit(submission, Secrets(control_secret=new_secret()))


def call(state_dir: str, options: str, what: str, text: str = "") -> int:
    """One call of the engine; an error is an object with its name and message."""
    try:
        with engine_at(state_dir, json.loads(options)) as engine:
            answer: Any = None
            if what == "ensure_runner":
                engine.ensure_runner()
            elif what == "view":
                answer = engine.view(text).json
            elif what == "kill":
                answer = engine.kill(ApplicationId.from_text(text), f"uid{os.geteuid()}")
            elif what == "soft_kill":
                answer = engine.soft_kill(ApplicationId.from_text(text), f"uid{os.geteuid()}")
    except DlappError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer))
    return 0


def main(argv: list[str]) -> int:
    """Submit as the command line says."""
    if not argv[2].isdigit():
        return call(*argv)
    with engine_at(argv[0], json.loads(argv[1])) as engine:
        limits = {"max_runtime_s": 1.0, "kill_grace_s": 0.0} if argv[3] == "pause" else {}
        for _ in range(int(argv[2])):
            print(submit(engine, *argv[3:], **limits), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
