"""Several nameservices and mount tables of one configuration."""

from __future__ import annotations

import pytest

from dlapp.errors import ConfigError, UsageError
from dlapp.hadoop.configuration import HadoopConfiguration
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.values.serialization import from_json, to_json

SERVICES = {
    "fs.defaultFS": "hdfs://east",
    "dfs.nameservices": "east, west,lone,half",
    "dfs.ha.namenodes.east": "a,b",
    "dfs.namenode.http-address.east.a": "e1:9870",
    "dfs.namenode.http-address.east.b": "e2:9870",
    "dfs.ha.namenodes.west": "a,b",
    "dfs.namenode.rpc-address.west.a": "w1:8020",
    "dfs.namenode.rpc-address.west.b": "w2:9000",
    "dfs.namenode.http-address.west.a": "w1:1234",
    "dfs.namenode.rpc-address.lone": "l1:8020",
    "dfs.namenode.http-address.lone": "0.0.0.0:50070",
    "dfs.ha.namenodes.half": "a",
}
TABLE = "fs.viewfs.mounttable.all"
MOUNTS = {
    f"{TABLE}.link./data/train": "hdfs://west/train",
    f"{TABLE}.link./data/logs": "hdfs://east/var/logs/",
    f"{TABLE}.link./user": "hdfs://west/home",
    f"{TABLE}.linkFallback": "hdfs://l1:8020/rest",
    f"{TABLE}.link./bucket": "s3a://bucket/x",
    f"{TABLE}.linkNfly.minReplication=2./safe": "hdfs://east/a,hdfs://west/a",
}


def place(*more: dict[str, str]) -> HdfsPlace:
    properties = dict(SERVICES)
    for item in more:
        properties |= item
    return HadoopConfiguration(properties, "here").hdfs(Login("tony"))


@pytest.mark.parametrize(
    ("text", "location", "web"),
    [
        ("/a", "hdfs://east/a", ("http://e1:9870", "http://e2:9870")),
        ("hdfs:///a", "hdfs://east/a", ("http://e1:9870", "http://e2:9870")),
        ("hdfs://west/a/*", "hdfs://west/a/*", ("http://w1:1234", "http://w2:9870")),
        ("hdfs://w2:9000/a", "hdfs://west/a", ("http://w1:1234", "http://w2:9870")),
        ("hdfs://w1/a", "hdfs://west/a", ("http://w1:1234", "http://w2:9870")),
        ("hdfs://lone/a", "hdfs://l1:8020/a", ("http://l1:50070",)),
        ("hdfs://l1:8020/a", "hdfs://l1:8020/a", ("http://l1:50070",)),
    ],
)
def test_every_nameservice_is_found_by_its_name_and_by_its_namenodes(
    text: str, location: str, web: tuple[str, ...]
) -> None:
    assert place().resolve(text) == location
    assert place().of(location).web == web


@pytest.mark.parametrize(
    ("location", "settings"),
    [
        ("hdfs://half/a", r"dfs\.ha\.namenodes\.half and dfs\.namenode\.http-address\.half\.NAMENODE"),
        ("hdfs://x9:8020/a", r"dfs\.namenode\.rpc-address\.NAME \(x9:8020\) and dfs\.namenode\.http-address\.NAME"),
    ],
)
def test_unknown_namenodes_are_refused_with_the_missing_settings(location: str, settings: str) -> None:
    with pytest.raises(UsageError, match=f"^{location}: .* dfs\\.nameservices, {settings}$"):
        place().resolve(location)


def test_the_default_nameservice_without_an_address_is_refused_by_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"here: dfs\.namenode\.http-address\.half\.a is not set"):
        place({"fs.defaultFS": "hdfs://half"})


def test_a_default_file_system_named_by_a_namenode_uses_its_nameservice() -> None:
    found = place({"fs.defaultFS": "hdfs://l1:8020"})
    assert (found.location, found.web) == ("hdfs://l1:8020", ("http://l1:50070",))
    assert found.of("hdfs://lone/a").location == "hdfs://l1:8020"


def test_nodes_get_the_nameservices_of_their_locations_alone() -> None:
    sent = from_json(HdfsPlace, to_json(place(MOUNTS).for_locations(["hdfs://west/a", "s3://bucket/a", "file:///a"])))
    assert [other.location for other in sent.others] == ["hdfs://west"]
    assert (sent.of("hdfs://west/a").web[0], sent.mounts) == ("http://w1:1234", ())


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("viewfs://all/data/train", "hdfs://west/train"),
        ("viewfs://all/data/./logs/../train/*/x{1,2}", "hdfs://west/train/*/x{1,2}"),
        ("viewfs://all/data/logs/1", "hdfs://east/var/logs/1"),
        ("viewfs://all/other/1", "hdfs://l1:8020/rest/other/1"),
        ("viewfs://all/oth*/1", "hdfs://l1:8020/rest/oth*/1"),
        ("viewfs://all/user/tony/run", "hdfs://west/home/tony/run"),
    ],
)
def test_a_path_under_a_mount_point_is_where_that_leads(text: str, location: str) -> None:
    assert place(MOUNTS).resolve(text) == location


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/data", r"viewfs://all/data has mount points in it, such as /data/"),
        ("/", r"viewfs://all/ has mount points in it, such as "),
        ("/d*/train", r"a wildcard stands for names below a mount point only; write /data/train itself"),
        ("/{data,x}/train", r"a wildcard stands for names below a mount point only"),
        ("/bucket/a", r"stands for s3a://bucket/x/a, which is not on hdfs://NAMESERVICE"),
        ("/safe/a", r"dlapp does not follow fs\.viewfs\.mounttable\.all\.linkNfly\.minReplication=2\./safe"),
    ],
)
def test_an_ambiguous_mount_table_path_is_refused_by_name(path: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        place(MOUNTS).resolve(f"viewfs://all{path}")


def test_mount_tables_of_other_kinds_and_names() -> None:
    whole = place(
        {"fs.viewfs.mounttable.a.b.linkMergeSlash": "hdfs://west/", "fs.viewfs.mounttable.default.name.key": "a.b"}
    )
    assert whole.resolve("viewfs://a.b/x*/y") == whole.resolve("viewfs:///x*/y") == "hdfs://west/x*/y"
    with pytest.raises(UsageError, match=r"has no mount table none \(fs\.viewfs\.mounttable\.none\.link\)"):
        whole.resolve("viewfs://none/x")
    only = place({f"{TABLE}.link./a": "hdfs://west/a"})
    with pytest.raises(UsageError, match=r"viewfs://all/b is below no mount point"):
        only.resolve("viewfs://all/b")
    patterns = place({f"{TABLE}.linkRegex.replaceresolveddstpath:_:-#.^/(?<x>\\w+)": "hdfs://west/${x}"})
    with pytest.raises(UsageError, match=r"dlapp does not follow fs\.viewfs\.mounttable\.all\.linkRegex"):
        patterns.resolve("viewfs://all/b")


def test_a_mount_table_may_be_the_default_file_system() -> None:
    found = place(MOUNTS, {"fs.defaultFS": "viewfs://all/"})
    assert (found.location, found.home, found.web[0]) == ("hdfs://west", "hdfs://west/home/tony", "http://w1:1234")
    assert [found.resolve(value) for value in ("run", "/data/logs/1", "viewfs:/data/logs/1", "hdfs://east/x")] == [
        "hdfs://west/home/tony/run",
        "hdfs://east/var/logs/1",
        "hdfs://east/var/logs/1",
        "hdfs://east/x",
    ]
    homes = place(MOUNTS, {"fs.defaultFS": "viewfs://all", f"{TABLE}.homedir": "/data/logs/homes"})
    assert (homes.location, homes.home) == ("hdfs://east", "hdfs://east/var/logs/homes/tony")
    with pytest.raises(ConfigError, match=r"here: .* has no mount table none"):
        place({"fs.defaultFS": "viewfs://none"})


def test_a_mount_table_by_the_name_of_hdfs_is_refused() -> None:
    overloaded = {"fs.hdfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"}
    assert place(overloaded).location == "hdfs://east"
    with pytest.raises(ConfigError, match=r"by fs\.hdfs\.impl hdfs://east is a mount table"):
        place(overloaded, {"fs.viewfs.mounttable.east.link./a": "hdfs://west/a"})
