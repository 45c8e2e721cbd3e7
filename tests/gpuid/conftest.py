"""A real ZooKeeper for the tests that need one, started for the first that asks; and both stores of the ledger."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.value import replace
from dlapp.values.launch_spec import LedgerSettings
from tests.services.processes.ledger_process import fake_devices
from tests.services.zookeeper import ZooKeeper, ledger_settings, wait_long, zookeeper_for_tests

_NUMBERS = itertools.count(1)
SESSION_S = 60.0
"""Of clients that are to keep their connection: kazoo gives one up after a third of it without an answer."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server that is slow; tests of what happens without an answer set their own limits."""
    wait_long(monkeypatch)


@pytest.fixture(scope="session")
def ensemble() -> Iterator[ZooKeeper]:
    """Three servers."""
    with zookeeper_for_tests(3) as servers:
        yield servers


def _settings(servers: ZooKeeper, tmp_path: Path) -> LedgerSettings:
    """A ledger of one test alone."""
    root, locks = f"/test-{next(_NUMBERS)}/dlapp", str(tmp_path / "locks")
    return ledger_settings(servers.ensemble, root, "dlapp:secret", session_timeout_s=SESSION_S, lock_dir=locks)


@pytest.fixture
def settings(zookeeper: ZooKeeper, tmp_path: Path) -> LedgerSettings:
    """A ledger of this test alone."""
    return _settings(zookeeper, tmp_path)


Open = Callable[..., Any]


@pytest.fixture
def on_zookeeper(settings: LedgerSettings) -> Iterator[Open]:
    """Open the test's ledger on ZooKeeper: ``on_zookeeper(host="node7", devices=…)``; closed at the end."""
    with _opening(settings) as open_one:
        yield open_one


@pytest.fixture
def on_ensemble(ensemble: ZooKeeper, tmp_path: Path) -> Iterator[Open]:
    """The same on three servers: each user has its connection to one of them, and reads what that one has."""
    with _opening(_settings(ensemble, tmp_path)) as open_one:
        yield open_one


@contextlib.contextmanager
def _opening(settings: LedgerSettings) -> Iterator[Open]:
    opened: list[ZooKeeperLedger] = []

    def open_one(
        *,
        host: str = "node7",
        devices: tuple[Device, ...] | None = None,
        over: dict[str, Any] | None = None,
        **more: Any,
    ) -> ZooKeeperLedger:
        present = fake_devices(4) if devices is None else devices
        more.setdefault("discover", lambda: present)
        more.setdefault("probes", LivenessProbes())
        # Each host is a machine of its own.
        where = settings if host == "node7" else replace(settings, lock_dir=f"{settings.lock_dir}-{host}")
        opened.append(ZooKeeperLedger(replace(where, **(over or {})), host=host, **more))
        return opened[-1]

    yield open_one
    for item in opened:
        item.close()


@pytest.fixture(
    params=["machine", *(pytest.param(name, marks=pytest.mark.zookeeper) for name in ("zookeeper", "ensemble"))]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open the test's ledger on each of the two stores in turn; each call is another user of it."""
    if request.param != "machine":
        found: Open = request.getfixturevalue(f"on_{request.param}")
        return found

    def open_one(*, devices: tuple[Device, ...] | None = None, **more: Any) -> MachineLedger:
        present = fake_devices(4) if devices is None else devices
        more.setdefault("discover", lambda: present)
        return MachineLedger(str(tmp_path / "gpus"), **more)

    return open_one
