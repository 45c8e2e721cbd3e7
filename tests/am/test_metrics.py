"""Metrics of an application, and the file by which Prometheus finds them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from dlapp.am.discovery import MetricsTarget
from dlapp.am.metrics import metrics_text
from dlapp.value import replace
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, ContainerView
from dlapp.values.usage import DeviceUsage, Usage
from tests.am.driving import APPLICATION, Driver


def view() -> ApplicationView:
    am = Driver()
    am.running(2)
    found = am.view()
    (one,) = found.containers
    devices = (DeviceUsage(index=3, utilisation=0.5, memory_mib=2, power_w=61.5, temperature_c=40, uuid="GPU-3"),)
    usage = Usage(at_ms=1, cpu_cores=1.5, memory_mib=3, read_bytes=4, devices=devices)
    return replace(found, containers=(replace(one, usage=usage, metrics={"loss": 0.25}, step=7),))


def lines(found: ApplicationView) -> list[str]:
    return [line for line in metrics_text(found).splitlines() if not line.startswith("#")]


def test_each_known_value_has_a_line_with_its_containers_labels() -> None:
    app = f'app="{APPLICATION}",user="tony",queue="default",project=""'
    own = f'{app},role="worker",index="0",host="node1"'
    found = lines(view())
    assert f"dlapp_application_containers{{{app}}} 1" in found
    assert f"dlapp_container_running{{{own}}} 1" in found
    assert f"dlapp_container_cpu_cores{{{own}}} 1.5" in found
    assert f"dlapp_container_memory_bytes{{{own}}} {3 << 20}" in found
    assert f'dlapp_container_reported{{{own},name="loss"}} 0.25' in found
    assert f'dlapp_gpu_utilisation_ratio{{{own},gpu="3",uuid="GPU-3"}} 0.5' in found
    assert not any(text.startswith(("dlapp_container_sent", "dlapp_container_progress")) for text in found)


def test_a_gpu_that_has_the_index_of_another_one_after_a_reboot_has_series_of_its_own() -> None:
    found = view()
    (one,) = found.containers
    series: list[set[str]] = []
    for uuid, mig in (("GPU-3", ""), ("GPU-4", ""), ("MIG-1", "1g.10gb")):
        devices = (DeviceUsage(index=3, utilisation=0.5, activity=0.25, memory_mib=2, power_w=1.0, uuid=uuid, mig=mig),)
        usage = Usage(at_ms=1, devices=devices)
        output = lines(replace(found, containers=(replace(one, usage=usage),)))
        series.append({line.rpartition(" ")[0] for line in output if line.startswith("dlapp_gpu_")})
    assert all(len(each) == 4 for each in series)
    assert not series[0] & series[1]
    assert all('gpu="3",uuid="MIG-1",mig="1g.10gb"' in line for line in series[2])


def test_names_of_users_end_no_line_and_no_label() -> None:
    found = lines(replace(view(), username='a"b\\c\nd\ud800'))
    assert all('user="a\\"b\\\\c\\nd?"' in item for item in found)


def test_an_ended_container_has_no_usage_metrics() -> None:
    (one,) = view().containers
    ended: tuple[ContainerView, ...] = (replace(one, phase=Phase.ENDED),)
    found = lines(replace(view(), containers=ended))
    assert [text.rpartition(" ")[2] for text in found if text.startswith("dlapp_container_running")] == ["0"]
    assert not any(text.startswith(("dlapp_gpu", "dlapp_container_cpu")) for text in found)


def test_the_file_is_readable_by_the_group_and_removed_with_its_process(tmp_path: Path) -> None:
    left = [
        {
            "targets": ["127.0.0.1:1"],
            "labels": {"__meta_dlapp_process": "1 1", "__meta_dlapp_host": os.uname().nodename},
        }
    ]
    (tmp_path / "application_1700000000000_0001.json").write_text(json.dumps(left))  # its process was killed
    (tmp_path / "application_1700000000000_0002.json").write_text("damaged")
    (tmp_path / "other.json").write_text(json.dumps(left))
    target = MetricsTarget(str(tmp_path), APPLICATION)
    target.write("http://127.0.0.1:4711", "/metrics/secret")
    target.write("http://127.0.0.1:4712", "/metrics/secret")  # the next attempt
    file = tmp_path / f"{APPLICATION}.json"
    (group,) = json.loads(file.read_text())
    assert (group["targets"], group["labels"]["__metrics_path__"]) == (["127.0.0.1:4712"], "/metrics/secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["application_1700000000000_0002.json", file.name, "other.json"]
    target.remove()
    assert not file.exists()


def test_a_missing_metrics_directory_is_ignored(tmp_path: Path) -> None:
    MetricsTarget(str(tmp_path / "none"), APPLICATION).write("http://127.0.0.1:1", "/metrics/secret")
