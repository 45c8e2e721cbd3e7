"""GPUs that a real application holds and does not use, as NVML tells."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.services.containers.nvml_stub import StubDevice, seen_by_all, with_devices


@pytest.mark.slow
def test_an_application_whose_gpus_are_idle_is_stopped_with_its_output(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    for name, value in seen_by_all(stub, [StubDevice(utilization=80), StubDevice(utilization=2)]).items():
        monkeypatch.setenv(name, value)
    script = "mkdir output; trap 'echo saved $CONTAINER_INDEX >output/x; exit 0' TERM\nwhile :; do sleep 0.05; done"
    application = launch(
        properties(
            tmp_path,
            script,
            application={"idle_guard": "5%, 30s, stop"},
            resources={"containers": 2, "gcores": 1},
            to_hdfs={"output_path": "output", "hdfs": str(tmp_path / "result")},
        )
    )

    def gpus_by_use() -> dict[float, int]:
        seen = [(one["usage"], one["index"]) for one in status(application)["containers"]]
        return {use["devices"][0]["utilisation"]: index for use, index in seen if use is not None and use["devices"]}

    used = wait_for("their use is known", lambda: len(found := gpus_by_use()) == 2 and found, 60)
    assert sorted(used) == [0.02, 0.8]
    with_devices(stub, [StubDevice(utilization=0), StubDevice(utilization=2)])
    idle = wait_for("one is idle", lambda: status(application)["idle"], 120)
    assert idle["containers"] == [used[0.02]]
    assert time.time() * 1000 - idle["since_ms"] >= 30_000
    assert idle["message"] in run("dlapp-status", application).out
    assert status(application)["phase"] == "running 2 of 2"
    view = ended(application)
    assert view["cause"] == "timed out", view["diagnostics"]
    assert view["diagnostics"] == "timed out: idle_guard (all GPUs below 5 % for 30 s), output committed"
    assert [(tmp_path / f"result/{index}/x").read_text() for index in (0, 1)] == ["saved 0\n", "saved 1\n"]
