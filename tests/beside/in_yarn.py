"""Losses under what runs beside a program on a real YARN, with GPUs: of its client, its ApplicationMaster, its node.

`make test-beside`; the notebook is PyPI's JupyterLab.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.applications import BIN, ended, launch, properties, run, status, wait_for
from tests.end_to_end.test_idle_guard import stub
from tests.end_to_end.test_keep_failed import FAILS, LOOKS, kept_container
from tests.end_to_end.test_notebooks import answer, opened
from tests.end_to_end.test_ports import SERVER as PROGRAM
from tests.end_to_end.test_ports import talk
from tests.end_to_end.test_services import API, get, ready_url
from tests.end_to_end.test_services import SERVER as SERVICE
from tests.engines import Engine
from tests.services.hadoop import NODES
from tests.tools.test_exec import sleepers

__all__ = ["stub"]
pytestmark = [
    pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True),
    pytest.mark.usefixtures("stub"),
]
PATIENCE_S = 240.0


def holders() -> list[str]:
    """Return the application of each GPU that is leased."""
    found = json.loads(run("dlapp-gpu", "list", "--original").out or "{}")
    return [application for devices in found.values() for application in devices.values()]


def lose_node(engine: Engine, application: str, index: int) -> None:
    """Kill the NodeManager of a container, start it again, and wait until the container's index has another one."""
    assert engine.hadoop is not None
    before = status(application)["containers"][index]
    part = next(part for part, host in NODES.items() if f"//{host}:" in before["log_url"])
    engine.hadoop.kill_part(part)
    engine.hadoop.start_part(part)

    def runs_elsewhere() -> bool:
        one = status(application)["containers"][index]
        return bool(one["container_id"] != before["container_id"] and one["phase"] == "running")

    wait_for("another container", runs_elsewhere, PATIENCE_S)
    wait_for("both nodes", engine.hadoop.nodes_ready, PATIENCE_S)


def has_begun(command: subprocess.Popen[str]) -> bool:
    assert command.stdout is not None
    return command.stdout.readline() == "begun\n"


def check_nothing_is_left(engine: Engine, application: str) -> None:
    wait_for("no process of it", lambda: not engine.processes(application), PATIENCE_S)
    wait_for("no GPU is held", lambda: not holders(), PATIENCE_S)


def test_a_lost_task_ends_ports_commands_and_services_and_the_program_continues(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/server.py").write_text(SERVICE)
    (tmp_path / "w/serve.py").write_text(PROGRAM)
    (tmp_path / "w/work.sh").write_text('exec python3 -I serve.py "$PLACE/port.$DLAPP_CONTAINER_ID"\n')
    file = tmp_path / "beside.properties"
    file.write_text(
        f"[application]\nappname=beside\nuser_dev_workspace_path=w\nuser_shell_script=work.sh\nenv.PLACE={tmp_path}\n"
        f"env.PATH={BIN}:/usr/bin:/bin\n[resources]\nmemory=256\ngcores=1\n{API}memory=128\ngcores=0\n"
    )
    application = launch(file)
    marker = f"{6_000_000 + os.getpid()}"
    script = f"trap '' HUP TERM; echo begun; sleep {marker}; sleep {marker}"

    def command(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(list(map(str, (BIN / words[0], *words[1:]))), stdout=subprocess.PIPE, text=True)

    def program_port() -> str:
        def look() -> str:
            containers = status(application)["containers"]
            place = tmp_path / f"port.{containers[0]['container_id']}" if containers else tmp_path / "none"
            return place.read_text() if place.exists() and containers[0]["phase"] == "running" else ""

        return wait_for("the program serves", look, PATIENCE_S)

    def is_answered(local: int) -> bool:
        with contextlib.suppress(OSError, AssertionError):
            talk(local)
            return True
        return False

    with contextlib.ExitStack() as stack:

        def reach() -> tuple[subprocess.Popen[str], subprocess.Popen[str], int]:
            """Run a command in the container, and bring its port here."""
            port = program_port()
            executed, forward = (
                command("dlapp-exec", application, "--", "sh", "-c", script),
                command("dlapp-port", application, "worker", port),
            )
            for process in (executed, forward):
                stack.enter_context(process)
                stack.callback(process.kill)
            assert has_begun(executed)
            assert forward.stdout is not None
            local = int(forward.stdout.readline().split(":")[1].split()[0])
            wait_for("its answer", lambda: is_answered(local), PATIENCE_S)
            return executed, forward, local

        executed, forward, local = reach()
        pid = get(f"{ready_url(application, 'api 0')}pid")
        assert holders() == [application]

        for process in (executed, forward):
            process.kill()
        wait_for("the command ends with its client", lambda: not sleepers(marker), PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", local), timeout=120)

        executed, forward, local = reach()
        engine.kill_master(application)
        assert executed.wait(PATIENCE_S) not in (0, None)
        wait_for("the command ends with its ApplicationMaster", lambda: not sleepers(marker), PATIENCE_S)
        wait_for("the next ApplicationMaster", lambda: status(application)["attempt"] == 2, PATIENCE_S)
        wait_for("the port is back", lambda: is_answered(local), PATIENCE_S)
        assert get(f"{ready_url(application, 'api 0')}pid") == pid
        assert [container["attempt"] for container in status(application)["containers"]] == [1, 1]
        forward.kill()

        executed, forward, local = reach()
        lose_node(engine, application, 0)
        assert executed.wait(PATIENCE_S) not in (0, None)
        wait_for("the command ends with its node", lambda: not sleepers(marker), PATIENCE_S)
        wait_for("the lost GPU is free", lambda: holders() == [application], PATIENCE_S)
        ready_url(application, "api 0")
        reach()
        assert run("dlapp-softkill", application).code == 0
        assert ended(application, PATIENCE_S)["cause"] == "soft-killed"
    check_nothing_is_left(engine, application)


def test_a_notebook_survives_its_applicationmaster_and_node_and_cleans_up(engine: Engine, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab")
    file = properties(tmp_path, "true", application={"env.PATH": f"{BIN}:/usr/bin:/bin"}, resources={"memory": "1500m"})
    with opened("--gcores", "1", file) as (program, url, token):
        assert answer(url, token) == 200
        application = run("dlapp-list", "-o", "id").out.split()[-1]
        assert holders() == [application]
        engine.kill_master(application)
        wait_for("the next ApplicationMaster", lambda: status(application)["attempt"] == 2, PATIENCE_S)

        def is_there() -> bool:
            with contextlib.suppress(OSError):
                return answer(url, token) == 200
            return False

        wait_for("the notebook is back", is_there, PATIENCE_S)
        program.kill()
        assert status(application)["containers"][0]["attempt"] == 1
        lose_node(engine, application, 0)
        wait_for("the lost GPU is free", lambda: holders() == [application], PATIENCE_S)
    assert run("dlapp-softkill", application).code == 0
    assert ended(application, PATIENCE_S)["cause"] == "soft-killed"
    check_nothing_is_left(engine, application)


def test_a_failed_container_is_kept_without_its_gpu_until_the_applicationmaster_dies(
    engine: Engine, tmp_path: Path
) -> None:
    keys = {"keep_failed": "30m", "env.GREETING": "hi there"}
    application = launch(properties(tmp_path, FAILS, application=keys, resources={"gcores": 1}))
    kept_container(application)
    wait_for("its GPU is free", lambda: not holders(), PATIENCE_S)
    looked = run("dlapp-exec", application, "--", "sh", "-c", LOOKS)
    assert (looked.code, looked.out) == (4, "data\nscratch\nhi there||\n"), looked.err
    other = launch(properties(tmp_path, "exit 0", name="other", resources={"gcores": 1}))
    assert ended(other, PATIENCE_S)["final_status"] == "SUCCEEDED"
    engine.kill_master(application)
    end = ended(application, PATIENCE_S)
    assert (end["final_status"], end["diagnostics"]) == ("FAILED", "container 0 (worker 0) failed: exit code 3")
    check_nothing_is_left(engine, application)
