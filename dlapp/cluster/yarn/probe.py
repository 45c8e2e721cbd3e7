"""ApplicationMaster without requests: one container, to inspect its node."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from dlapp.cluster.yarn.am.resource_manager import ResourceManager
from dlapp.cluster.yarn.values import Cluster
from dlapp.errors import TimedOut
from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, read_container_credentials
from dlapp.locations import HdfsPlace
from dlapp.values.report import FinalStatus
from dlapp.values.serialization import from_json, to_json

KIND = "DLAPP-PROBE"
"""Its type in YARN's lists; dlapp-list does not show it."""


def credentials_of(secret: str, cluster: Cluster, hdfs: HdfsPlace, instructions: Mapping[str, Any]) -> bytes:
    """Return the credentials with the input of the process, which not everybody may read.

    Args:
        secret: the name under which ``instructions`` is in them.
        cluster: where its ResourceManager is.
        hdfs: how to reach HDFS.
        instructions: the input.
    """
    content = {**instructions, "cluster": to_json(cluster), "hdfs": to_json(hdfs)}
    return Credentials({}, {secret: json.dumps(content).encode()}).encode()


class ProbeMaster:
    """Registered ApplicationMaster during the block; its input is in ``instructions``.

    Args:
        timeout_s: for the registration, and for the end.
    """

    def __init__(self, instructions: Mapping[str, Any], rm: ResourceManager, timeout_s: float) -> None:
        self.instructions, self._rm, self._timeout_s = instructions, rm, timeout_s

    @classmethod
    def from_container(cls, secret: str, *, timeout_s: float) -> ProbeMaster:
        """Return the input from the container's credentials.

        Raises:
            HadoopError: this process was not started for this.
        """
        credentials = read_container_credentials()
        token = credentials.of_kind(AM_RM_KIND)
        if secret not in credentials.secrets or token is None:
            raise HadoopError("the container's credentials do not say what to check")
        instructions = json.loads(credentials.secrets[secret])
        cluster: Cluster = from_json(Cluster, instructions["cluster"])
        addresses = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in cluster.schedulers)]
        return cls(instructions, ResourceManager(addresses, token, cluster.dialect), timeout_s)

    def __enter__(self) -> ProbeMaster:
        self._rm.register(os.uname().nodename, 0, "", timeout_s=self._timeout_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._rm.close()

    def finish(self, diagnostics: str) -> None:
        """End well, with these words."""
        deadline = time.monotonic() + self._timeout_s
        while not self._rm.finish(FinalStatus.SUCCEEDED, diagnostics, "", timeout_s=self._timeout_s):
            if time.monotonic() >= deadline:
                raise TimedOut(f"the ResourceManager did not take the end down in {self._timeout_s:g} s")
            time.sleep(0.1)
