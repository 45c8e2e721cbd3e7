"""A real Prometheus that finds an application by its file, and scrapes it and the exporter of the machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlapp.client.machine import exporter
from dlapp.client.machine.gpu_ledger import GpuLedger
from dlapp.config import load_config
from tests.applications import BIN, application_dir, launch, properties, status, wait_for
from tests.engines import Engine
from tests.services.install import SEARCH
from tests.services.ports import held

PROGRAM = shutil.which("prometheus", path=SEARCH)
ROOT = Path(__file__).parents[2]
END_S = 180.0


@contextmanager
def ended_at_last(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def ask(port: int, query: str) -> list[dict[str, Any]]:
    """Return what Prometheus answers to a query; nothing while it does not answer."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return list(json.load(answer)["data"]["result"])
    except OSError:
        return []


def dashboard_queries() -> list[str]:
    """Return the queries of Grafana's dashboard, with any value for its variables, as parameters of a URL."""
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [urllib.parse.urlencode({"query": re.sub(r"\$\w+", ".*", text)}) for text in texts]


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Prometheus")
def test_prometheus_finds_a_run_by_its_file_and_scrapes_it_and_the_exporter(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROGRAM is not None
    targets, go = tmp_path / "targets", tmp_path / "go"
    targets.mkdir(mode=0o2770)
    monkeypatch.setenv("DLAPP_METRICS_TARGETS", str(targets))
    (port, held_one), (exporter_port, held_other) = held(), held()
    for item in (*held_one, *held_other):
        item.close()
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "dlapp", "file_sd_configs": [{"files": [f"{targets}/*.json"], "refresh_interval": "1s"}]},
            {"job_name": "gpus", "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}]},
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(settings))  # which is YAML
    words = [PROGRAM, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    export = [str(BIN / "dlapp-gpu"), "exporter", "--listen", f"127.0.0.1:{exporter_port}"]
    script = f"""echo '{{"metrics": {{"loss": 0.25}}, "step": 7}}' >>$DLAPP_REPORT
until [ -e {go} ]; do sleep 0.05; done"""
    with ended_at_last(words, tmp_path / "log"), ended_at_last(export, tmp_path / "exporter.log"):
        application = launch(properties(tmp_path, script, application={"project": "vision"}))
        try:
            query = f'dlapp_container_reported{{app="{application}"}}'
            (found,) = wait_for("the metrics of the run", lambda: ask(port, query), END_S)
            labels = {name: found["metric"][name] for name in ("project", "role", "index", "name")}
            assert labels == {"project": "vision", "role": "worker", "index": "0", "name": "loss"}
            assert found["value"][1] == "0.25"
            query = f'dlapp_container_running{{app="{application}"}} == 1'
            (running,) = wait_for("it runs", lambda: ask(port, query), END_S)
            assert running["metric"]["host"] == status(application)["containers"][0]["host"]
            (up,) = wait_for("the exporter", lambda: ask(port, "dlapp_node_up"), END_S)
            assert up["value"][1] == "1", (tmp_path / "exporter.log").read_text()
            for query in dashboard_queries():
                answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=60)
                assert json.load(answer)["status"] == "success"
            # Only clients that know the path can read it.
            (group,) = json.loads((targets / f"{application}.json").read_text())
            for path in ("/metrics", "/metrics/", f"/metrics/{'0' * 32}"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"http://{group['targets'][0]}{path}", timeout=60)
        finally:
            go.touch()
        wait_for("its end", lambda: status(application)["state"] == "FINISHED", END_S)
        wait_for("no target", lambda: not list(targets.iterdir()), END_S)
    if engine.name == "local":
        assert "WARNING" not in (application_dir(engine.state_dir, application) / "am.log").read_text()


def test_the_exporter_reports_the_holder_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = {
        "label": "gpu1",
        "state": "held",
        "uuid": "GPU-1",
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "application": "application_1_0001",
        "user": "tony",
        "container": "container_1",
        "role": "worker",
        "container_index": "0",
        "utilization": 50,
        "used_mib": 2,
        "memory_mib": 80,
        "temperature_c": None,
        "xids": {"63": {"times": 3, "last_ms": 5}},
        "notes": ["PCIe has 8 of 16 lanes"],
    }

    def hosts(_: object, host: str) -> Iterator[dict[str, Any]]:
        yield {"host": host, "error": "", "devices": [device]}

    monkeypatch.setattr(GpuLedger, "hosts", hosts)
    with GpuLedger(load_config()) as ledger:
        here = ledger.host_name
        samples = [sample for metric in exporter.GpuCollector(ledger).collect() for sample in metric.samples]
    found = {sample.name: (sample.labels, sample.value) for sample in samples}
    where = {"host": here, "gpu": "1", "uuid": "GPU-1", "mig": "1g.10gb"}
    assert found["dlapp_node_gpu_info"] == ({**where, "model": device["name"]}, 1)
    assert all(labels["uuid"] == "GPU-1" for name, (labels, _) in found.items() if name.startswith("dlapp_node_gpu"))
    assert found["dlapp_node_gpu_utilisation_ratio"] == (where, 0.5)
    assert found["dlapp_node_gpu_memory_used_bytes"] == (where, 2 << 20)
    lease = {**where, "app": "application_1_0001", "user": "tony", "role": "worker", "index": "0"}
    lease |= {"container": "container_1"}
    assert found["dlapp_node_gpu_lease"] == (lease, 1)
    assert "dlapp_node_gpu_temperature_celsius" not in found
    assert found["dlapp_node_gpu_xid_total"] == ({**where, "xid": "63"}, 3)
    assert found["dlapp_node_gpu_note"] == ({**where, "note": "PCIe has 8 of 16 lanes"}, 1)


def test_the_dashboard_uses_existing_metrics() -> None:
    from dlapp.am.metrics import _HELP

    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    targets = [panel["targets"] for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = set(re.findall(r"dlapp_\w+", json.dumps([targets, dashboard["templating"]])))
    source = (ROOT / "dlapp/client/machine/exporter.py").read_text()
    named = {f"dlapp_node_gpu_{name}" for name, *_ in exporter._VALUES} | set(
        re.findall(r"\"(dlapp_node_\w+)\"", source)
    )
    metric_names = set(_HELP) | named
    assert asked <= metric_names, asked - metric_names
    assert all(targets)
    assert len(asked) >= 12
