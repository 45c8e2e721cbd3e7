"""The examples of Hadoop's files in docs/hadoop, read as dlapp reads those of a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlapp.hadoop.configuration import HadoopConfiguration, read_configuration
from dlapp.login import Login

EXAMPLES = Path(__file__).parents[2] / "docs" / "hadoop"


def configured(directory: Path, **more: str) -> HadoopConfiguration:
    """Read the examples as an operator copies them.

    Args:
        directory: an empty directory.
        more: file -> the example for high availability whose properties are added, in place of those that it names.
    """
    for name in ("core-site", "hdfs-site", "yarn-site"):
        text = (EXAMPLES / f"{name}.xml").read_text()
        if example := more.get(name.replace("-", "_")):
            added = (EXAMPLES / f"{example}.xml").read_text()
            head = added.partition("<configuration>")[0]
            for gone in re.findall(r"\b(?:yarn|dfs)\.[a-z.-]+[a-z]", head):
                text = re.sub(rf" *<property><name>{re.escape(gone)}</name>.*</property>\n", "", text)
            text = text.replace("</configuration>", added.partition("<configuration>")[2])
        if more and name == "core-site":
            text = text.replace("hdfs://namenode.example:8020", "hdfs://cluster")
        (directory / f"{name}.xml").write_text(text)
    return read_configuration(str(directory))


def test_the_examples_name_one_resource_manager_and_one_namenode(tmp_path: Path) -> None:
    site = configured(tmp_path)
    assert site.web_urls() == ["http://resourcemanager.example:8088"]
    assert site.hdfs(Login("tony")).web == ("http://namenode.example:9870",)


def test_the_examples_of_high_availability_name_two_of_each(tmp_path: Path) -> None:
    site = configured(tmp_path, yarn_site="yarn-site-ha", hdfs_site="hdfs-site-ha")
    assert site.web_urls() == ["http://resourcemanager1.example:8088", "http://resourcemanager2.example:8088"]
    place = site.hdfs(Login("tony"))
    assert place.location == "hdfs://cluster"
    assert place.web == ("http://namenode1.example:9870", "http://namenode2.example:9870")
    assert set(place.names) >= {"namenode1.example:8020", "namenode2.example:8020"}
    assert place.home == "hdfs://cluster/user/tony"
    # What Hadoop itself needs to start so.
    ensemble = "zookeeper1.example:2181,zookeeper2.example:2181,zookeeper3.example:2181"
    for name in ("yarn.resourcemanager.zk-address", "hadoop.zk.address", "ha.zookeeper.quorum"):
        assert site.get(name) == ensemble
    assert str(site.get("yarn.resourcemanager.store.class")).endswith(".ZKRMStateStore")
    assert site.get("yarn.resourcemanager.fs.state-store.uri") is None
    assert site.get("dfs.journalnode.edits.dir") == "/var/lib/hadoop-hdfs/journal"


def test_datanodes_are_reached_by_name_if_configured(tmp_path: Path) -> None:
    assert not configured(tmp_path).hdfs(Login("tony")).by_hostname
    file = tmp_path / "hdfs-site.xml"
    wanted = "<property><name>dfs.client.use.datanode.hostname</name><value>true</value></property></configuration>"
    file.write_text(file.read_text().replace("</configuration>", wanted))
    assert read_configuration(str(tmp_path)).hdfs(Login("tony")).by_hostname


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.xml")), ids=lambda item: item.name)
def test_every_example_is_a_configuration_without_a_property_twice(example: Path, tmp_path: Path) -> None:
    names = re.findall(r"<name>(.*?)</name>", example.read_text())
    assert names
    assert len(set(names)) == len(names)
    (tmp_path / "core-site.xml").write_text(example.read_text())
    site = read_configuration(str(tmp_path))
    assert all(site.get(name) is not None for name in names)
