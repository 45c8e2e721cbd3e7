"""Which store the ledger is in: what the configuration says of it, and opening it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlapp.errors import ConfigError
from dlapp.gpuid.ledger import Inspect, Ledger, uninspected
from dlapp.gpuid.rules import LedgerError

if TYPE_CHECKING:
    from dlapp.config import GpuidConfig

MACHINE, ZOOKEEPER = "machine", "zookeeper"
NODE_MANAGER = "nodemanager"
"""YARN's own: no ledger of ours (`dlapp.gpuid.given`)."""


def configured(gpuid: GpuidConfig) -> dict[str, Any]:
    """Where the configuration says that the ledger is, for `open_ledger`. It holds the credentials: keep it secret.

    Raises:
        ConfigError: the file of the credentials is not what it must be.
    """
    zookeeper = gpuid.zookeeper
    if zookeeper.ensemble is None:
        return {"kind": MACHINE, "directory": gpuid.lock_dir}
    return {
        "kind": ZOOKEEPER,
        "ensemble": zookeeper.ensemble,
        "root": zookeeper.root,
        "credentials": "" if zookeeper.credentials is None else read_credentials(zookeeper.credentials),
        "session_timeout_s": zookeeper.session_timeout_s,
        "lock_dir": gpuid.lock_dir,
    }


def read_credentials(path: str) -> str:
    """``user:password`` from a file that nobody else may read. Raises ConfigError."""
    key = "gpuid.zookeeper.credentials"
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"{key}: {path} may be read by others; chmod 600 {path}")
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{key}: {path}: {what}") from error
    user, _, password = text.partition(":")
    if not user or not password or "\n" in text:
        raise ConfigError(f"{key}: {path} is not one line user:password")
    return text


def open_ledger(where: Mapping[str, Any], *, inspect: Inspect = uninspected) -> Ledger:
    """The ledger that ``where`` describes, as JSON: ``{"kind": "machine", "directory": …}`` or ``{"kind": "zookeeper",
    "ensemble": …, "root": …, "credentials": …, "session_timeout_s": …, "lock_dir": …, "host": …}`` or ``{"kind":
    "nodemanager", "web": …, "lock_dir": …}``.

    Raises:
        LedgerError: it is none of them.
    """
    kind = where.get("kind", MACHINE)
    if kind == MACHINE:
        from dlapp.gpuid.machine import MachineLedger

        return MachineLedger(where["directory"], inspect=inspect)
    if kind == ZOOKEEPER:
        from dlapp.gpuid.zookeeper import Settings, ZooKeeperLedger

        names = Settings._fields
        settings = Settings(**{name: value for name, value in where.items() if name in names})
        return ZooKeeperLedger(settings, host=where.get("host"), inspect=inspect)
    if kind == NODE_MANAGER:
        from dlapp.gpuid.given import GivenByNode

        return GivenByNode(where["web"], where["lock_dir"])
    raise LedgerError(f"a GPU ledger of kind {kind!r} is not known to this dlapp")
