"""GPUs that real applications on YARN hold and do not use, as NVML tells; the ledger is on a real ZooKeeper."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.engines import Engine
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.http.webhook import Hook
from tests.services.zookeeper import ZooKeeper

END_S = 180.0
DEVICES = 4


@pytest.fixture
def stub(
    engine: Engine, zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return the directory that says how the GPUs of the nodes are, which a ledger has."""
    del engine  # first
    place = tmp_path_factory.mktemp("stub")
    python, credentials = place / "python3", place / "credentials"
    variables = with_devices(place, [StubDevice(utilization=80, gpm=70)] * DEVICES)
    exports = "".join(f"export {name}='{value}'\n" for name, value in variables.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    settings = {
        "YARN_PYTHON": python,
        "GPUID_ZOOKEEPER_ENSEMBLE": zookeeper.ensemble,
        "GPUID_ZOOKEEPER_ROOT": f"/{place.name}",
        "GPUID_ZOOKEEPER_CREDENTIALS": credentials,
        "GPUID_LOCK_DIR": place / "locks",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"DLAPP_{name}", str(value))
    return place


def utilisations(application: str) -> list[float]:
    """Return the utilisation of each GPU whose use is known."""
    uses = [container["usage"] for container in status(application)["containers"] if container["usage"] is not None]
    return [device["utilisation"] for use in uses for device in use["devices"]]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_idle_gpus_are_sent_to_the_webhook_and_end_an_application_with_its_output(
    engine: Engine, stub: Path, hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_DEFAULTS_IDLE_GUARD", "5%, 30s, notify")  # the operator's
    application = launch(
        properties(
            tmp_path,
            "sleep 600",
            name="notified",
            application={"notify": "idle"},
            resources={"gcores": 1, "memory": 256},
        )
    )
    script = "mkdir output; trap 'echo saved $CONTAINER_INDEX >output/x; exit 0' TERM\nwhile :; do sleep 0.05; done"
    stopped = launch(
        properties(
            tmp_path,
            script,
            name="stopped",
            application={"idle_guard": "5%, 30s, stop"},
            resources={"containers": 2, "gcores": 1, "memory": 256},
            to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        )
    )
    wait_for("the use of all is known", lambda: utilisations(application) + utilisations(stopped) == [0.8] * 3, END_S)
    assert status(application)["idle"] is None
    # Its kernels only wait: for another rank, for example.
    with_devices(stub, [StubDevice(utilization=100, gpm=1)] * DEVICES)
    idle = wait_for("the GPU is idle", lambda: status(application)["idle"], END_S)
    assert time.time() * 1000 - idle["since_ms"] >= 30_000
    assert idle["message"] in run("dlapp-status", application).out
    wait_for("the notification", lambda: "idle" in hook.events(application), END_S)
    (event,) = [item for item in hook.received(application) if item["event"] == "idle"][:1]
    assert "below 5 % for 30 s" in str(event["text"])
    assert status(application)["phase"] == "running 1 of 1"
    assert run("dlapp-kill", application).code == 0

    view = ended(stopped, END_S)
    assert view["cause"] == "timed out", view["diagnostics"]
    assert view["diagnostics"] == "timed out: idle_guard (all GPUs below 5 % for 30 s), output committed"
    assert view["diagnosis"]["diagnosis"]["rule"] == "idle_guard"
    assert engine.tree("kept/result") == {"0/x": "saved 0\n", "1/x": "saved 1\n"}
    hours = view["receipt"]["gpu_hours"]
    assert hours["granted"] >= 2 * 30 / 3600, json.dumps(view["receipt"])
    assert hours["busy"] > hours["idle"], "by its utilisation"
