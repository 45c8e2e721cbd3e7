"""Faults of a cluster's GPU ledger on a real ZooKeeper: dlapp-doctor and an application agree on each.

Each takes 10 to 15 s on two cores.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from dlapp.doctor.findings import FAIL, WARN
from dlapp.gpuid.factory import open_cluster_ledger
from dlapp.values.launch_spec import LedgerSettings
from tests import seeds
from tests.applications import run
from tests.doctor.cases import SUCCEEDS, WAITS, Case, Run, check, parametrized
from tests.doctor.test_faults_of_a_cluster import ClusterSite
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.services.hadoop import Hadoop
from tests.services.polling import PATIENCE_S
from tests.services.zookeeper import ZooKeeper, ledger_settings
from tests.tiers import FULL

pytestmark = pytest.mark.slow
GPU = {"resources": {"gcores": 1}}


KNOWN = """
from dlapp.config import load_config
from dlapp.gpuid.factory import configured, open_cluster_ledger
ledger = open_cluster_ledger(configured(load_config()))
ledger.update_inventory()
ledger.close()
"""


class LedgerSite(ClusterSite):
    """A cluster whose nodes are one machine with two GPUs, with its ledger on ZooKeeper."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, hadoop: Hadoop, settings: LedgerSettings
    ) -> None:
        super().__init__(directory, monkeypatch, hadoop)
        self.settings = settings
        credentials = directory / "credentials"
        credentials.touch(mode=0o600)
        credentials.write_text(f"{settings.credentials}\n")
        self.set(
            gpuid__zookeeper__ensemble=settings.ensemble,
            gpuid__zookeeper__root=settings.root,
            gpuid__zookeeper__credentials=credentials,
        )
        python, exports = directory / "python3", ""
        for name, text in seen_by_all(directory, [StubDevice(), StubDevice()]).items():
            monkeypatch.setenv(name, text)
            exports += f"export {name}='{text}'\n"
        python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.set(yarn__python=python)


@pytest.fixture
def site(hadoop: Hadoop, zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerSite:
    return LedgerSite(
        tmp_path, monkeypatch, hadoop, ledger_settings(zookeeper.ensemble, f"/{tmp_path.name}", "tony:secret")
    )


def quarantine(site: LedgerSite, *names: str) -> None:
    """Let the ledger know this machine, and put GPUs of it into quarantine."""
    # Only processes that begin with the variables of the stub see its GPUs.
    subprocess.run([sys.executable, "-c", KNOWN], check=True)
    done = run("dlapp-gpu", "quarantine", *names, "--reason", "its fan has stopped")
    assert done.code == 0, done.err


def broken_record(site: LedgerSite) -> None:
    """Write what is no record in the place of this host's."""
    ledger = open_cluster_ledger(site.settings)
    path = f"{site.settings.root}/hosts/{ledger.host}"
    ledger.close()
    client = KazooClient(site.settings.ensemble, auth_data=[("digest", site.settings.credentials)])
    client.start(timeout=PATIENCE_S)
    client.create(path, b"[", makepath=True)
    client.stop()
    client.close()


CASES = [
    Case(
        "one-gpu-in-quarantine",
        (WARN, "gpu.quarantine"),
        lambda site: quarantine(site, "gpu0"),
        (Run(SUCCEEDS, "", GPU),),
    ),
    Case(
        "all-gpus-in-quarantine",
        (FAIL, "gpu.quarantine"),
        lambda site: quarantine(site, "gpu0", "gpu1"),
        (Run(SUCCEEDS), Run(WAITS, r"quarantine", GPU)),
    ),
    Case(
        "open-ledger",
        (WARN, "gpu.ledger.access"),
        lambda site: site.set(gpuid__zookeeper__credentials="none"),
        (Run(SUCCEEDS, "", GPU),),
    ),
    Case(
        "broken-record",
        (FAIL, "gpu.ledger.record"),
        broken_record,
        (Run(SUCCEEDS), Run(WAITS, r"record", GPU)),
    ),
]


CHOSEN = CASES if FULL else random.Random(seeds.FIRST).sample(CASES, 1)


@pytest.mark.parametrize("case", parametrized(CHOSEN))
def test_the_doctor_and_an_application_agree_on_a_fault_of_a_ledger(case: Case, site: LedgerSite) -> None:
    check(case, site)
