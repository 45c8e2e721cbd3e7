"""Directories of the caches of a payload on a node, and what the operator of the node allows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.errors import Denied
from dlapp.node_policy import FILE, DockerPolicy, Mount, NodePolicy
from dlapp.storage.cache.payload import PayloadCaches
from dlapp.task.data.payload_caches import open_caches
from dlapp.values.launch_spec import CacheSettings
from dlapp.values.spec import PayloadCache

MODELS = (PayloadCache("models", "/models"),)


def opened(
    settings: CacheSettings, policy: NodePolicy, note: Callable[[str], None] = print, *, in_docker: bool = False
) -> PayloadCaches:
    return open_caches(MODELS, settings, policy, note, in_docker=in_docker)


def settings(tmp_path: Path) -> CacheSettings:
    return CacheSettings(0, 86_400.0, payload_limit_bytes=1 << 30, payload_directory=str(tmp_path / "engine"))


def test_an_operator_can_forbid_caches_and_lower_their_limit(tmp_path: Path) -> None:
    with pytest.raises(Denied, match=rf"cache\.models: not allowed on this node \(payload_cache_limit of {FILE}\)"):
        opened(settings(tmp_path), NodePolicy(payload_cache_limit_bytes=0))
    assert not (tmp_path / "engine").exists()
    messages: list[str] = []
    one = opened(settings(tmp_path), NodePolicy(payload_cache_limit_bytes=1000), messages.append)
    (Path(one.hold("models")) / "x").write_bytes(b"x" * 5000)
    one.close()
    (line,) = messages
    assert line.endswith("the limit is 1000 bytes")
    assert os.listdir(tmp_path / "engine" / "caches") == []


def test_the_operators_directory_overrides_the_engines(tmp_path: Path) -> None:
    one = opened(settings(tmp_path), NodePolicy(cache_dir=str(tmp_path / "operator")))
    assert one.hold("models") == f"{tmp_path}/operator/{os.geteuid()}/payload/caches/models"
    one.close()


def test_a_path_at_which_the_node_mounts_something_is_refused_in_docker(tmp_path: Path) -> None:
    docker = DockerPolicy(mounts=(Mount("/models", False),))
    with pytest.raises(Denied, match=r"/models is a mount of this node \(docker\.mounts of "):
        opened(settings(tmp_path), NodePolicy(docker=docker), in_docker=True)
    opened(settings(tmp_path), NodePolicy(docker=docker))
