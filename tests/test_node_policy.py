"""The operator's file on a node: who may write it, what may stand in it, and what holds without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.errors import ConfigError
from dlapp.node_policy import (
    ANY_REGISTRY,
    GPU_MODES,
    KEYS,
    DockerPolicy,
    Mount,
    NodePolicy,
    QueuePolicy,
    RegistryPolicy,
    mount_problem,
    node_policy,
)
from dlapp.system.network.port_range import PortRange
from dlapp.values.image_name import parse_image_name

DOCS = Path(__file__).parents[1] / "docs"


def policy_of(directory: Path, text: str, mode: int = 0o644) -> object:
    path = directory / "node.yaml"
    path.write_text(text)
    path.chmod(mode)
    return node_policy(str(path), owner=os.getuid())


def test_without_a_file_the_strict_defaults_hold(tmp_path: Path) -> None:
    policy = node_policy(str(tmp_path / "node.yaml"))
    assert (policy.kill_grace_max_s, policy.log_limit_bytes, policy.cache_dir) == (None, None, None)
    assert (policy.payload_cache_limit_bytes, policy.network_interface) == (None, None)
    assert policy.ports == (20_000, 29_999)
    networks = ("host", "bridge", "none")
    assert policy.docker == DockerPolicy(GPU_MODES, None, networks, (), False, 16384, 50, ANY_REGISTRY)
    assert policy.queue == QueuePolicy(604800.0, 86400.0, 0, None, None, None, None, "gcores")


def test_a_file_sets_the_policy(tmp_path: Path) -> None:
    text = """
kill_grace_max: 10m
log_limit: 100m
cache_dir: /var/cache/dlapp
payload_cache_limit: 0
network_interface: ib0
ports: 21000-21099
notify_commands: [/usr/local/bin/tell, /opt/page]
shared_paths: /mnt/data/
docker:
  gpu_modes: cdi
  gpu_capabilities: [video, graphics]
  networks: [host]
  mounts:
    - /data/sets
    - /scratch:rw
  root: true
  pids_limit: 100
  shm_percent: 90
  registry:
    mirror: [mirror.local:5000/hub, "quay.io = mirror.local:5000/quay"]
    prefix: registry.local/team
    allow: [registry.local, docker.io/library]
queue:
  half_life: 1d
  raise_after: 2h
  max_priority: 1
  max_priority_of: [ann=5, "1002 = 7"]
  user_gcores: 4
  user_gcores_of: tony=0
  user_queued: 100
  charge: vcores
"""
    policy = policy_of(tmp_path, text)
    mounts = (Mount("/data/sets", False), Mount("/scratch", True))
    commands, shared = ("/usr/local/bin/tell", "/opt/page"), ("/mnt/data",)
    mirrors = (("docker.io", "mirror.local:5000/hub"), ("quay.io", "mirror.local:5000/quay"))
    registry = RegistryPolicy(mirrors, "registry.local/team", ("registry.local", "docker.io/library"))
    docker = DockerPolicy(("cdi",), ("graphics", "video"), ("host",), mounts, True, 100, 90, registry)
    queue = QueuePolicy(86400.0, 7200.0, 1, (("ann", 5), ("1002", 7)), 4, (("tony", 0),), 100, "vcores")
    ports = PortRange(21_000, 21_099)
    assert policy == NodePolicy(600.0, 100 << 20, "/var/cache/dlapp", 0, "ib0", ports, shared, commands, docker, queue)


@pytest.mark.parametrize("text", ["", "docker:\n", "docker: {mounts: []}\n", "docker:\n  root: false\n"])
def test_missing_keys_have_the_defaults_of_a_missing_file(tmp_path: Path, text: str) -> None:
    assert policy_of(tmp_path, text) == node_policy(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ports: 20000", ":1: ports: '20000' is not a range of ports such as 20000-29999"),
        ("queue: {max_priority_of: [ann]}", ":1: queue.max_priority_of: 'ann' is not USER=NUMBER"),
        ("queue: {user_gcores_of: 'ann=-1'}", ":1: queue.user_gcores_of: is -1, the minimum is 0"),
        ("queue: {half_life: 1s}", ":1: queue.half_life: is 1 s, the minimum is 60 s"),
        ("queue: {charge: gpus}", ":1: queue.charge: is 'gpus', allowed are gcores, vcores"),
        ("network_interface: a/b", ":1: network_interface: 'a/b' is not the name of a network interface"),
        ("docker: {gpu_mode: cdi}", ":1: docker.gpu_mode: is not known, the nearest is docker.gpu_modes"),
        (
            "docker: {gpu_capabilities: [video, graphic]}",
            ":1: docker.gpu_capabilities: 'graphic' is not a driver capability, the nearest is graphics",
        ),
        (
            "docker: {networks: ['container:other']}",
            ":1: docker.networks: 'container:other' is not a network for containers",
        ),
        ("docker: {mounts: data}", ":1: docker.mounts: 'data' is not a mount: /an/absolute/path"),
        ("docker: {mounts: [/var/run/docker.sock]}", "and what is in it stays outside of containers"),
        ("docker: {mounts: [/]}", "'/': / and what is in it stays outside of containers"),
        ("docker: {mounts: [/etc/../etc/ssl]}", "'/etc/ssl': /etc and what is in it stays outside of containers"),
        ("docker: {mounts: [/workspace/x]}", "'/workspace/x' is where dlapp puts its own"),
        ("docker: {pids_limit: [1, 2]}", ":1: docker.pids_limit: must be a single value"),
        ("docker: {shm_percent: 0}", ":1: docker.shm_percent: is 0, the minimum is 1"),
        ("docker: {shm_percent: 101}", ":1: docker.shm_percent: is 101, the maximum is 100"),
        ("docker: {shm_percent: 50%}", ":1: docker.shm_percent: '50%' is not a whole number"),
        ("docker: {registry: {allow: [ubuntu]}}", ":1: docker.registry.allow: 'ubuntu' is not a registry such as"),
        ("docker: {registry: {allow: []}}", ":1: docker.registry.allow: is empty"),
        ("docker: {registry: {allow: r.org/A}}", ":1: docker.registry.allow: 'r.org/A' is not a registry such as"),
        ("docker: {registry: {prefix: 'https://r.org'}}", ":1: docker.registry.prefix: 'https://r.org' is not a"),
        ("docker: {registry: {mirror: [a.org, docker.io=b.org]}}", "mirror: docker.io has two mirrors"),
        ("docker: {registry: {mirror: a.org/x=b.org}}", "'a.org/x': a mirror is of a whole registry: HOST=MIRROR"),
        ("docker: {registry: r.org}", ":1: docker.registry: must be a level with keys under it"),
        ("docker: {root: {a: b}}", ":1: docker.root: must be a value or a list of values"),
        ("kill_grace_max:\n", ":1: kill_grace_max: is empty"),
        ("[", "is not YAML"),
        ("- a\n", ":1: the file: "),
    ],
)
def test_invalid_values_are_refused_with_their_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        policy_of(tmp_path, text)
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("image", "is_allowed"),
    [
        ("r.org/net:1", True),
        ("r.org/team/net", True),
        ("r.org:5000/net", False),
        ("r.org.evil.org/net", False),
        ("ubuntu", True),
        ("library/ubuntu", True),
        ("libraryx/ubuntu", False),
        ("q.org/team/net", True),
        ("q.org/team", True),
        ("q.org/teams/net", False),
        ("a" * 64, False),
    ],
)
def test_an_image_is_allowed_by_its_registry_or_if_present(image: str, is_allowed: bool) -> None:
    policy = RegistryPolicy(allow=("r.org", "docker.io/library", "q.org/team"))
    assert (policy.forbidden(parse_image_name(image)) == "") is is_allowed
    assert ANY_REGISTRY.forbidden(parse_image_name(image)) == ""


@pytest.mark.parametrize(
    ("image", "resolved"),
    [("net:1", "r.org/team/net:1"), ("a/net", "r.org/team/a/net"), ("q.org/net", "q.org/net"), ("a" * 64, "a" * 64)],
)
def test_a_name_without_a_registry_has_the_prefix(image: str, resolved: str) -> None:
    assert RegistryPolicy(prefix="r.org/team").resolve(parse_image_name(image)).text == resolved


def test_a_link_does_not_allow_a_closed_directory(tmp_path: Path) -> None:
    (tmp_path / "harmless").symlink_to("/etc")
    policy_of(tmp_path, f"docker: {{mounts: [{tmp_path}/harmless]}}")
    assert "/etc and what is in it" in mount_problem(Mount(f"{tmp_path}/harmless", False))


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="must be a file of"):
        policy_of(tmp_path, "", mode)


def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"must be a file of uid \d+ that nobody else may write"):
        node_policy(str(path), owner=os.getuid() + 1)


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a file of \w+( \d+)? that nobody else may write"):
        node_policy(str(tmp_path), owner=os.getuid())


def test_the_documentation_has_the_table_of_keys() -> None:
    shown = {name: f"`{key.default_text}`" if key.default_text else "none" for name, key in KEYS.items()}
    rows = [f"|`{name}` |{key.kind} |{shown[name]} |{key.meaning}|\n" for name, key in KEYS.items()]
    assert "".join(rows) in (DOCS / "docker.md").read_text()


def test_the_example_is_a_file_that_is_taken(tmp_path: Path) -> None:
    text = (DOCS / "node.yaml").read_text()
    policy = policy_of(tmp_path, text)
    assert policy == NodePolicy(
        kill_grace_max_s=3600.0,
        log_limit_bytes=1 << 30,
        payload_cache_limit_bytes=50 << 30,
        docker=DockerPolicy(("cdi", "gpus"), ("video",), ("bridge", "none")),
    )
    for name in KEYS:
        assert f"{name.rpartition('.')[2]}:" in text
