"""Functions that the tests on a real YARN share."""

from __future__ import annotations

import getpass
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dlapp.cluster.yarn.am.resource_manager import ResourceManager
from dlapp.cluster.yarn.client.rest import AppSubmission
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.values import Launch
from dlapp.hadoop.connection import Connection
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.login import Login
from dlapp.values.ids import ApplicationId, ContainerId
from tests.services.hadoop import RESOURCEMANAGERS, Hadoop
from tests.services.polling import wait_until

T = TypeVar("T")


def until(condition: Callable[[], T | Literal[False] | None], timeout_s: float = 120) -> T:
    return wait_until(condition, timeout_s)


def set_safe_mode(hadoop: Hadoop, *, on: bool) -> None:
    """Let HDFS take changes, or none."""
    # ClientNamenodeProtocol.proto, SetSafeModeRequestProto: action (1): SAFEMODE_LEAVE = 1, SAFEMODE_ENTER = 2.
    protocol, deadline = "org.apache.hadoop.hdfs.protocol.ClientProtocol", time.monotonic() + 120
    address = ("127.0.0.1", hadoop.ports["nn"])
    with Connection(address, protocol, proof=Login(getpass.getuser()), deadline=deadline) as connection:
        connection.call("setSafeMode", bytes([0x08, 2 if on else 1]), deadline)


def set_ha_state(hadoop: Hadoop, part: str, *, active: bool) -> None:
    """Make one of two NameNodes or ResourceManagers active, or let it stand by, as ``haadmin`` and ``rmadmin`` do.

    ResourceManagers, which choose the active one by themselves, are forced to it (``--forcemanual``).
    """
    is_manager = part in RESOURCEMANAGERS
    # HAServiceProtocol.proto: reqInfo (1) with reqSource (1), REQUEST_BY_USER = 0, REQUEST_BY_USER_FORCED = 1.
    request = bytes([0x0A, 0x02, 0x08, 1 if is_manager else 0])
    protocol, deadline = "org.apache.hadoop.ha.HAServiceProtocol", time.monotonic() + 120
    address = ("127.0.0.1", hadoop.ports[f"{part}_admin" if is_manager else part])
    with Connection(address, protocol, proof=Login(getpass.getuser()), deadline=deadline) as connection:
        connection.call("transitionToActive" if active else "transitionToStandby", request, deadline)


def until_heard_of(hadoop: Hadoop, *containers: ContainerId) -> None:
    """Wait until the ResourceManager has heard of containers from their nodes, which say all once a second.

    Those that it has not heard of when their ApplicationMaster dies, it takes away.
    """
    for one in containers:
        until(lambda item=one: f"{item} Container Transitioned from ACQUIRED to RUNNING" in hadoop.log("rm"))  # type: ignore[misc]


def submission(application_id: ApplicationId, command: tuple[str, ...], **others: Any) -> AppSubmission:
    return AppSubmission(
        application_id=application_id, name="trial", memory_mib=256, launch=Launch(command=command), **others
    )


@dataclass
class Attempt:
    """An attempt whose ApplicationMaster is this process: in its container only its token is handed out."""

    hadoop: Hadoop
    application_id: ApplicationId
    token: Token

    def connect(self, address: tuple[str, int] | None = None) -> ResourceManager:
        return ResourceManager([address or self.hadoop.scheduler_address], self.token, Dialect.GCORES)


def token_of_attempt(directory: Path, number: int) -> Token:
    """The token of an attempt, once YARN has started it; what runs in its place left it there."""
    (path,) = until(lambda: list(directory.glob(f"container_*_{number:02d}_000001.tokens")))
    token = Credentials.decode(path.read_bytes()).of_kind(AM_RM_KIND)
    assert token is not None
    return token


def kill_attempt(directory: Path, number: int) -> None:
    """SIGKILL what runs in the place of an attempt's ApplicationMaster."""
    (path,) = directory.glob(f"container_*_{number:02d}_000001.pid")
    os.kill(int(path.read_text()), signal.SIGKILL)
