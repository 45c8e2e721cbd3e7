"""Test what dlapp-doctor finds about a cluster that counts GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.config import load_config
from dlapp.doctor import yarn
from tests.services.missing import missing


class ResourceManager:
    """The answers of one that counts with Hadoop's own type."""

    def configuration(self, name: str) -> str | None:
        del name
        return None

    def scheduled_types(self) -> set[str]:
        return {"memory-mb", "vcores", "yarn.io/gpu"}


@pytest.mark.parametrize(
    ("keys", "is_warned"),
    [
        ({"gpuid.zookeeper.ensemble": "host01:2181"}, True),
        ({"gpuid.zookeeper.ensemble": "host01:2181", "yarn.dialect": "yarn.io/gpu"}, False),
        ({}, False),
    ],
    ids=["not known to dlapp-gpu", "known to it", "no ZooKeeper"],
)
def test_a_ledger_that_no_task_reads_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], is_warned: bool
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    rest: Any = ResourceManager()
    found = list(yarn._gpus(load_config(keys, {}, system_file=missing()), rest, rest.scheduled_types()))
    warned = [finding for finding in found if finding.verdict == "warn"]
    assert [finding.subject for finding in warned] == (["gpu.ledger"] if is_warned else [])
    assert all(finding.repair == "set yarn.dialect: yarn.io/gpu on each machine of the cluster" for finding in warned)
