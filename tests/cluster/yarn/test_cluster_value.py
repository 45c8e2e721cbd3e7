"""Test where YARN is, as the client writes it down for the ApplicationMaster."""

from __future__ import annotations

import json

import pytest

from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.values import Cluster, address
from dlapp.errors import ConfigError
from dlapp.login import Login
from dlapp.values.serialization import from_json, to_json


def test_a_cluster_value_survives_json() -> None:
    cluster = Cluster(
        schedulers=("rm1:8030", "rm2:8030"), clients=("rm1:8032",), login=Login("tony"), dialect=Dialect.FIELD3
    )
    assert from_json(Cluster, json.loads(json.dumps(to_json(cluster)))) == cluster


@pytest.mark.parametrize(
    ("text", "parts"), [("rm:8030", ("rm", 8030)), ("[::1]:1", ("::1", 1)), ("127.0.0.1:65535", ("127.0.0.1", 65535))]
)
def test_an_address_is_read(text: str, parts: tuple[str, int]) -> None:
    assert address(text) == parts


@pytest.mark.parametrize("text", ["", "rm", ":8030", "rm:", "rm:0", "rm:65536", "rm:x", "rm:-1", "rm:²"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address such as"):
        address(text)
