"""A process without a lease on the GPU of a real application: it is named, and the user is not blamed for it."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.task.environment import node_name
from tests.applications import ended, launch, properties, run, status, wait_for
from tests.services.containers.nvml_stub import MIB, StubDevice, seen_by_all, with_devices

SCRIPT = """
[ -e "$MARK" ] && exit 0
touch "$MARK"; until [ -e "$MARK.go" ]; do sleep 0.02; done
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." >&2; exit 1
"""


@pytest.fixture
def foreign() -> Iterator[int]:
    """Return the pid of a process that sleeps."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.slow
def test_a_foreign_process_is_shown_and_its_out_of_memory_failure_retried(
    tmp_path: Path, foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, stub = StubDevice(uuid="GPU-0"), tmp_path / "stub"
    stub.mkdir()
    for name, value in seen_by_all(stub, [gpu]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(tmp_path / "gpus"))
    mark = tmp_path / "mark"
    resources = {"gcores": 1, "retries": 0}
    application = launch(properties(tmp_path, SCRIPT, application={"env.MARK": mark}, resources=resources))
    wait_for("the program runs", mark.exists)
    used = {"pids": (foreign,), "process_mib": (5 * 1024,), "used": 5 * 1024 * MIB}
    with_devices(stub, [StubDevice(uuid="GPU-0", **used)])  # type: ignore[arg-type]

    def named() -> list[dict[str, Any]]:
        (one,) = status(application)["containers"] or [{}]
        found: list[dict[str, Any]] = (one.get("receipt") or {}).get("foreign_processes", [])
        return found

    (process,) = wait_for("the process is named", named)
    user = getpass.getuser()
    assert (process["pid"], process["program"], process["user"]) == (foreign, "sleep", user)
    assert (process["gpu"], process["uuid"], process["peak_mib"]) == ("0", "GPU-0", 5 * 1024)
    line = f"foreign : process {foreign} (sleep, user {user}) used 5.0 GiB of gpu0 on {node_name()}"
    wait_for("its line in the status", lambda: line in run("dlapp-status", application).out.splitlines())
    Path(f"{mark}.go").touch()

    def failed() -> dict[str, Any] | None:
        (one,) = status(application)["containers"]
        return one["earlier"][0] if one["earlier"] else None

    first = wait_for("the program is tried again", failed)
    os.kill(foreign, 15)
    with_devices(stub, [gpu])
    found = first["diagnosis"]
    assert (found["rule"], found["fault"]) == ("gpu_memory_foreign", "node")
    assert found["cause"].endswith(f"5.0 GiB of gpu0 were used by process {foreign} (sleep, user {user})")
    assert run("dlapp-gpu", "heal", "gpu0").code in (0, 3)
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    assert line in run("dlapp-status", application).out.splitlines(), "the receipt has it"
