"""Test where a configuration says that the ledger is, and who may write it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.config import load_config
from dlapp.errors import ConfigError
from dlapp.gpuid.factory import configured, full_name_of, host_of_task, yarn_assigns_gpus
from dlapp.values.launch_spec import LedgerSettings
from tests.services.http.tls import CERTIFICATE, KEY
from tests.services.missing import missing


def settings(credentials: str | None = None) -> str:
    """Return the credentials with which the ledger of a cluster would be opened."""
    options = {"gpuid.zookeeper.ensemble": "127.0.0.1:1", "gpuid.zookeeper.root": "/dlapp"}
    if credentials is not None:
        options["gpuid.zookeeper.credentials"] = credentials
    return configured(load_config(options, {}, system_file=missing())).credentials


@pytest.mark.proves("zookeeper-access")
def test_a_ledger_on_zookeeper_needs_credentials_or_none() -> None:
    with pytest.raises(ConfigError, match=r"name a file of mode 0600 with user:password, or write none"):
        settings()
    assert settings("none") == ""


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("dlapp:secret\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"may be read by others; chmod 600 "):
        settings(str(file))
    file.chmod(0o600)
    assert settings(str(file)) == "dlapp:secret"


def test_gpu_assignment_by_yarn_comes_from_the_key_or_the_hadoop_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)

    def assigns(dialect: str, **keys: str) -> bool:
        return yarn_assigns_gpus(load_config({"yarn.dialect": dialect, **keys}, {}, system_file=missing()))

    def write(name: str, value: str) -> None:
        entry = f"<property><name>{name}</name><value>{value}</value></property>"
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{entry}</configuration>")

    here = {"yarn.conf_dir": str(tmp_path)}
    assert [assigns(one) for one in ("auto", "gcores", "yarn.io/gpu")] == [False, False, True]
    write("yarn.nodemanager.resource-plugins", "yarn.io/fpga,yarn.io/gpu")
    assert [assigns(one, **here) for one in ("auto", "gcores")] == [True, False]
    write("yarn.resource-types", "gcores, yarn.io/gpu")
    assert assigns("auto", **here)
    write("yarn.resource-types", "gcores")
    assert not assigns("auto", **here)


def test_tls_needs_a_ca_and_the_contents_of_its_files_are_sent_along(tmp_path: Path) -> None:
    def settings_with(**more: str) -> LedgerSettings:
        options = {"ensemble": "127.0.0.1:1", "root": "/dlapp", "credentials": "none", **more}
        keys = {f"gpuid.zookeeper.{name}": text for name, text in options.items()}
        return configured(load_config(keys, {}, system_file=missing()))

    both = tmp_path / "both.pem"
    both.write_text(CERTIFICATE + KEY)
    both.chmod(0o600)
    assert (settings_with().tls, settings_with(ca="system").tls, settings_with(ca="system").certificates) == (
        False,
        True,
        "",
    )
    tls = settings_with(ca=str(both), certificate=str(both))
    assert (tls.certificates, tls.client_certificate) == (CERTIFICATE + KEY, (CERTIFICATE + KEY).strip())
    with pytest.raises(ConfigError, match=r"gpuid.zookeeper.ca is not: without it there is no TLS"):
        settings_with(certificate=str(both))
    both.chmod(0o644)
    with pytest.raises(ConfigError, match=r"gpuid.zookeeper.certificate: .* may be read by others"):
        settings_with(ca="system", certificate=str(both))
    both.write_text(CERTIFICATE)
    both.chmod(0o600)
    with pytest.raises(ConfigError, match="is not a certificate with its key"):
        settings_with(ca="system", certificate=str(both))
    both.write_text("nothing")
    with pytest.raises(ConfigError, match=r"gpuid.zookeeper.ca: .* is neither PEM nor"):
        settings_with(ca=str(both))


@pytest.mark.parametrize("text", ["", "dlapp", "dlapp:", ":secret", "a:b\nc:d"])
def test_credentials_are_one_line_with_user_and_password(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="is not one line user:password"):
        settings(str(file))


def of_cluster(place: Path, **properties: str) -> LedgerSettings:
    """Return the settings of a cluster's ledger, without a root of the operator's."""
    lines = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    (place / "core-site.xml").write_text(f"<configuration>{lines}</configuration>")
    options = {"gpuid.zookeeper.ensemble": "127.0.0.1:1", "gpuid.zookeeper.credentials": "none"}
    return configured(load_config(options | {"yarn.conf_dir": str(place)}, {}, system_file=missing()))


def test_each_cluster_has_its_own_root_by_its_id_or_the_name_of_its_file_system(tmp_path: Path) -> None:
    named = {"yarn.resourcemanager.cluster-id": "lab1", "fs.defaultFS": "hdfs://ns1"}
    found = of_cluster(tmp_path, **named, **{"yarn.resourcemanager.hostname": "rm1"})
    assert (found.root, found.former_root) == ("/dlapp/lab1", "/dlapp")
    assert found.resource_managers == ("http://rm1:8088",)
    assert of_cluster(tmp_path, **{"fs.defaultFS": "hdfs://nn.example.org:8020/"}).root == "/dlapp/nn.example.org"


@pytest.mark.parametrize("name", ["a/b", "..", "hosts", "short", ""])
def test_a_cluster_id_that_is_no_path_needs_a_configured_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"gpuid.zookeeper.root"):
        of_cluster(tmp_path, **{"yarn.resourcemanager.cluster-id": name})


def test_a_root_of_the_operators_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    options = {"gpuid.zookeeper.ensemble": "127.0.0.1:1", "gpuid.zookeeper.credentials": "none"}
    found = configured(load_config(options | {"gpuid.zookeeper.root": "/mine"}, {}, system_file=missing()))
    assert (found.root, found.former_root) == ("/mine", "")
    with pytest.raises(ConfigError, match=r"gpuid.zookeeper.root is not set, and no configuration of Hadoop"):
        configured(load_config(options, {}, system_file=missing()))


@pytest.mark.parametrize(
    ("node", "host", "expected"),
    [
        ("node7.example.org", "node7", "node7.example.org"),
        ("node7.example.org", "node7.example.org", "node7.example.org"),
        ("node7", "node7", ""),
        ("10.0.0.7", "node7", ""),
        ("", "node7", ""),
    ],
)
def test_the_full_name_of_a_host_is_its_nodemanagers_if_that_is_the_same_host(
    node: str, host: str, expected: str
) -> None:
    assert full_name_of(host, {"NM_HOST": node}) == expected


NAMES_ITS_HOST = """
import sys
from dlapp.errors import DlappError
from dlapp.gpuid.factory import host_of_task
try:
    print(host_of_task(sys.argv[1], {"NM_HOST": "node7.example.org"}))
except DlappError as error:
    print(error)
"""


def host_of_task_in(place: Path, *namespaces: str, mounted: bool = False) -> str:
    """Return what a process in namespaces of its own calls its host."""
    locks = place / "locks"
    locks.mkdir(exist_ok=True)
    mount = 'mount --bind "$1" "$1";' if mounted else ""
    name = "hostname ctr-0001;" if "--uts" in namespaces else ""
    script = f'{mount} {name} shift; exec "$@"'
    program = [sys.executable, "-c", NAMES_ITS_HOST, str(locks)]
    command = ["unshare", "--mount", *namespaces, "sh", "-c", script, "sh", str(locks), *program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.root("to make namespaces")
@pytest.mark.parametrize("namespaces", [("--uts",), ("--pid", "--fork", "--mount-proc"), ("--uts", "--pid", "--fork")])
def test_a_container_that_locks_devices_where_no_other_one_sees_it_is_refused(
    tmp_path: Path, namespaces: tuple[str, ...]
) -> None:
    refused = host_of_task_in(tmp_path, *namespaces)
    assert refused.startswith("node7.example.org: this container has namespaces of its own, and "), refused
    assert host_of_task_in(tmp_path, *namespaces, mounted=True) == "node7.example.org"


@pytest.mark.root("to make namespaces")
def test_a_process_in_the_hosts_namespaces_uses_the_kernels_host_name(tmp_path: Path) -> None:
    assert host_of_task_in(tmp_path) == ""
    assert host_of_task(str(tmp_path), {}) == ""
