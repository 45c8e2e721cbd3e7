"""Use and cost of an application, as its user sees them in the end, on every engine that there is."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.values.usage import UsageHistory
from tests.applications import ended, launch, properties, run, status, wait_for
from tests.engines import Engine
from tests.services.containers.dockerd import IMAGE, Dockerd

BURN = """
import json, os, sys, time
held = bytearray(64 << 20)
os.makedirs("output")
with open("output/data", "wb") as file: file.write(bytes(1 << 20))
while not os.path.exists(sys.argv[1]):
    if sum(os.times()[:2]) > 2: time.sleep(0.05)
    with open(os.environ["DLAPP_REPORT"], "a") as file: file.write(json.dumps({"progress": 0.5}) + chr(10))
    time.sleep(0.001)
"""
"""It runs until the test says that its use was reported, which is every ten seconds."""


def usage_of(application: str) -> UsageHistory:
    with contextlib.closing(Client()) as client:
        return client.usage(application)


@pytest.mark.slow
def test_status_list_and_history_show_the_receipt_of_an_application(engine: Engine, tmp_path: Path) -> None:
    counted, go = tmp_path / "counted", tmp_path / "go"
    file = properties(
        tmp_path,
        f"exec /usr/bin/time -f '%U %S' -o {counted} python3 -I burn.py {go}",
        resources={"memory": "1g"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
    )
    (tmp_path / "test_workspace/burn.py").write_text(BURN)
    application = launch(file)
    wait_for("it runs", lambda: [container["phase"] for container in status(application)["containers"]] == ["running"])
    began_s = time.monotonic()
    wait_for("its use", lambda: status(application)["containers"][0]["usage"])
    ran_s = time.monotonic() - began_s
    go.touch()
    view = ended(application)
    assert view["cause"] == "succeeded", view["diagnostics"]
    counted_s = sum(map(float, counted.read_text().split()))
    receipt = view["receipt"]
    assert 0.98 * counted_s <= receipt["cpu_hours"] * 3600 <= 1.02 * counted_s + 0.05
    assert 64 <= receipt["memory"]["peak_mib"] < 300
    assert (receipt["memory"]["asked_mib"], receipt["memory"]["is_exact"]) == (1024, False)
    assert receipt["bytes"]["output"] == 1 << 20
    assert receipt["seconds"]["running"] >= round(ran_s, 3)
    assert receipt["gpu_hours"] == {"granted": 0.0, "busy": 0.0, "idle": 0.0, "unknown": 0.0}
    assert view["containers"][0]["receipt"]["cpu_hours"] == receipt["cpu_hours"]

    assert "cost : <0.01 CPU-hours, memory 1.0 GiB, peak " in run("dlapp-status", application).out
    listed = json.loads(run("dlapp-list", "--json").out)["applications"][-1]
    assert listed["application_id"] == application
    assert listed["receipt"] == receipt

    (series,) = wait_for("the history", lambda: usage_of(application).containers)
    assert str(series.container_id) == view["containers"][0]["container_id"]
    assert series.columns["memory_mib"]["max"][0] >= 64
    assert series.columns["cpu_cores"]["mean"][0] > 0
    assert series.columns["progress"]["mean"][0] == 0.5


IN_DOCKER = """
mkdir output
burn() { i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done; }
burn & burn
wait
head -c 30000000 /dev/zero >$TMPDIR/held
at=/sys/fs/cgroup
if [ -e $at/cpuacct/cpuacct.usage ]; then
  cat $at/memory/memory.max_usage_in_bytes $at/cpuacct/cpuacct.usage
else
  cat $at/memory.peak
  sed -n 's/usage_usec \\(.*\\)/\\1000/p' $at/cpu.stat
fi >output/counted
"""
"""The files that the kernel keeps for the container are read as its last act."""


@pytest.mark.docker
@pytest.mark.slow
def test_a_receipt_in_docker_equals_the_kernels_counters(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_CLUSTER", "local")
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    file = properties(
        tmp_path,
        IN_DOCKER,
        application={"docker_image": IMAGE},
        resources={"memory": "200m"},
        to_hdfs={"output_path": "output", "hdfs": tmp_path / "result"},
    )
    view = ended(launch(file))
    assert view["cause"] == "succeeded", view["diagnostics"]
    *peak, counted = map(int, (tmp_path / "result/counted").read_text().split())
    counted_s = counted / 1e9
    receipt = view["receipt"]
    assert counted_s > 0.2
    rounded_s = 0.5e-6 * 3600  # a receipt has millionths of an hour
    assert counted_s - rounded_s <= receipt["cpu_hours"] * 3600 <= 1.02 * counted_s + 0.05
    assert receipt["bytes"]["output"] == len((tmp_path / "result/counted").read_bytes())
    if peak:  # Linux 5.19 and later, or version 1
        assert receipt["memory"]["is_exact"]
        assert receipt["memory"]["peak_mib"] >= peak[0] >> 20
