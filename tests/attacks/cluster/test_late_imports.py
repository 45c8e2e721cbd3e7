"""Test that what root does as another user loads nothing: that user may be unable to read it, or may have put it."""

from __future__ import annotations

import ast
import json
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

import dlapp
from dlapp.am.control.server import ControlEndpoint, ControlRequest
from dlapp.values.messages import StopAnswer
from dlapp.values.serialization import to_json
from tests.attacks.identities import ROOT, VICTIM, Identities
from tests.attacks.local_state import engine_in, make_application

AS_ROOT = """
import os, sys
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.config import load_config
from dlapp.errors import DlappError
from dlapp.system.processes import as_user

become, found = as_user._become, sys.argv[1]

def then_load_nothing(*args):
    become(*args)
    out = os.open(found, os.O_WRONLY | os.O_APPEND)

    def hook(event, args):
        if event == "import":
            os.write(out, f"{args[0]}\\n".encode())

    sys.addaudithook(hook)

as_user._become = then_load_nothing
engine = LocalEngine(load_config())
try:
    print(eval(f"engine.{sys.argv[2]}"))
except DlappError as error:
    print("Error:", error)
"""
"""Calls a method in an interpreter that has loaded no more than that, and writes down what the child still loads."""

TEXT, ID = "'{}'", "__import__('dlapp.values.ids').values.ids.ApplicationId.from_text('{}')"
CALLS = {
    "ids": ("everybody=True",),
    "issued": (TEXT,),
    "view": (TEXT,),
    "views": ("everybody=True",),
    "submission": (ID,),
    "usage_json": (ID,),
    "trials_text": (ID,),
    "dashboard_urls": (ID,),
    "soft_kill": (ID, "'root'"),
    "kill": (ID, "'root'"),
    "release": (ID, "'root'"),
}
"""What goes through `RootAccess._call`, by the method of the engine that is called for it, and its arguments."""
STATES = ("waiting", "running", "done", "gone", "odd")


@pytest.fixture
def master(identities: Identities) -> Iterator[str]:
    """An ApplicationMaster of the victim that agrees to everything: its URL."""
    url, write_url = os.pipe()
    is_over, end = os.pipe()

    def serve() -> None:
        os.close(end)
        calls: SimpleQueue[ControlRequest] = SimpleQueue()
        control = ControlEndpoint("00", calls.put)

        def answer() -> None:
            while True:
                calls.get().answer(to_json(StopAnswer(state="stopping")))

        threading.Thread(target=answer, name="answers", daemon=True).start()
        with control.server:
            os.write(write_url, control.url.encode())
            os.read(is_over, 1)

    thread = threading.Thread(target=identities.call, args=(VICTIM, serve), kwargs={"deadline_s": 300.0}, name="master")
    thread.start()
    assert select.select([url], [], [], 120.0)[0]
    yield os.read(url, 100).decode()
    os.close(end)
    thread.join()
    for fd in (url, write_url, is_over):
        os.close(fd)


def loaded_late(identities: Identities, env: dict[str, str], call: str) -> tuple[list[str], str]:
    """Return what a child of root's loads as the victim by a call of an engine, and what it returns to root."""
    found = identities.place / "found"
    found.write_text("")
    found.chmod(0o666)
    done = identities.run(ROOT, str(identities.python), "-c", AS_ROOT, found, call, env=env, deadline_s=30)
    assert done.code == 0, done.err
    return found.read_text().split(), done.out


def make_states(state: Path, *, shared: bool, master: str) -> dict[str, str]:
    """An application of each kind; as their owner."""
    with engine_in(state, shared=shared) as engine:
        made = {item: make_application(engine, item if item in ("waiting", "done") else "running") for item in STATES}
        for application in made.values():
            home = Path(engine.state.application(application))
            (home / "am.json").write_text(json.dumps({"control_url": master}))
        odd = Path(engine.state.application(made["odd"]))
        for name in ("view.json", "am.json", "outcome.json", "am.pid", "secrets.json", "died"):
            (odd / name).write_bytes(b"\xff[[")
        for path in Path(engine.state.application(made["gone"])).iterdir():
            if path.is_file():
                path.unlink()
        return made


# What lies in a shared directory root reads without becoming its owner; it ends it as the owner.
@pytest.mark.proves("root-modules")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "shared"), [*((name, False) for name in CALLS), ("soft_kill", True), ("kill", True)])
def test_a_child_that_became_another_user_loads_no_module(
    identities: Identities, shared_state: Path, master: str, name: str, shared: bool
) -> None:
    state = shared_state if shared else identities.home(VICTIM) / "state"
    made = identities.call(VICTIM, lambda: make_states(state, shared=shared, master=master))
    env = {"DLAPP_LOCAL_STATE_DIR": str(state), "DLAPP_LOCAL_GCORES": "0"}
    env |= {"DLAPP_LOCAL_SHARED": "true"} if shared else {}
    content = {}
    for kind, application in made.items():
        call = f"{name}({', '.join(CALLS[name]).format(application)})"
        late, content[kind] = loaded_late(identities, env, call)
        assert not late, f"{kind}: loads {late}; {content[kind]}"
        assert "internal error" not in content[kind]
    if name == "soft_kill":
        assert "is being stopped" in content["running"]


def test_late_imports_are_detected(identities: Identities) -> None:
    state = identities.home(VICTIM) / "state"
    identities.call(VICTIM, lambda: engine_in(state, shared=False).close())
    call = "_as_root(engine.state)._call(lambda session: [__import__('colorsys').__name__])"
    assert loaded_late(identities, {"DLAPP_LOCAL_STATE_DIR": str(state)}, call) == (["colorsys"], "['colorsys']\n")


@pytest.mark.proves("root-modules")
@pytest.mark.slow
def test_every_call_as_another_user_is_tried_here() -> None:
    package, calls = Path(dlapp.__file__).parent, set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "as_user.call":
                calls.add(str(path.relative_to(package)))
    assert calls == {"cluster/local/client/as_owner.py"}
    tree = ast.parse((package / "cluster/local/client/as_owner.py").read_text())
    methods = {
        method.name.removesuffix("_json")
        for method in ast.walk(tree)
        for node in ast.walk(method)
        if isinstance(method, ast.FunctionDef)
        and isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("self._call", "self._change")
    }
    assert methods - {"_change"} == {name.removesuffix("_json") for name in CALLS}
