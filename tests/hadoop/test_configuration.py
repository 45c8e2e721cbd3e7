"""Hadoop's XML as Hadoop resolves it: each value is compared with the answer of its own ``hdfs getconf``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dlapp.errors import ConfigError
from dlapp.hadoop.configuration import read_configuration
from tests.services.hadoop import JAVA_OPTIONS, NoHadoop, java, library

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

VARIABLES = {"SET": "set", "EMPTY": ""}
CORE = """
<property><name>final</name><value>first</value><final>true</final></property>
<property><name>not.final</name><value>first</value><final> true </final></property>
<property name="attribute" value="first" final="true"/>
<property><name>no.value</name><final>true</final></property>
<property><name>stays</name><value>of core</value></property>
<property><name>stays.empty</name><value>of core</value></property>
<property><name>blank</name><value>of core</value></property>
<property><name>twice</name><value>1</value></property>
<property><name>twice</name><value>2</value></property>
<property><name> blanks </name><value> v </value></property>
<property><name>raw</name><value>${blanks}x</value></property>
<property><name>text</name><value>a<!-- b --><![CDATA[<c>]]>d&amp;<e>f</e></value></property>
<property><name>b</name><value>${c}${c}</value></property>
<property><name>c</name><value>${user.name}:${user.home}</value></property>
<property><name>nested</name><value>${${which}}</value></property>
<property><name>which</name><value>b</value></property>
<property><name>no.reference</name><value>${c d} ${} $c {c} $${which}</value></property>
<property><name>unbound</name><value>${which}-${no.such}-${which}</value></property>
<property><name>unset</name><value>x${env.UNSET}y${which}</value></property>
<property><name>itself</name><value>a${itself}</value></property>
<property><name>circle</name><value>a${circle2}</value></property>
<property><name>circle2</name><value>b${circle}</value></property>
<property><name>variables</name><value>${env.SET}|${env.UNSET:-a}|${env.EMPTY:-b}|${env.EMPTY-c}|${env.UNSET-d}</value>
</property>
<property><name>nineteen</name><value>NINETEEN</value></property>
<property><name>twenty</name><value>NINETEEN${which}</value></property>
<property><name>fs.default.name</name><value>hdfs://former:1</value></property>
<property><name>fs.defaultFS</name><value>hdfs://first:1</value></property>
<xi:include href="more/one.xml"><xi:fallback><property><name>fallback</name><value>no</value></property></xi:fallback>
</xi:include>
<xi:include href="none.xml"><xi:fallback><property><name>used</name><value>yes</value></property></xi:fallback>
</xi:include>
<xi:include href="none.xml"><xi:fallback><xi:include href="file:DIRECTORY/more/two.xml"/></xi:fallback></xi:include>
<include href="file://DIRECTORY/more/plain.xml"/>
<property><name>order</name><value>after</value></property>
"""
HDFS = """
<property><name>final</name><value>second</value></property>
<property><name>not.final</name><value>second</value></property>
<property><name>attribute</name><value>second</value></property>
<property><name>no.value</name><value>second</value></property>
<property><name>included.final</name><value>second</value></property>
<property><name>stays</name></property>
<property><name>stays.empty</name><value></value></property>
<property><name>blank</name><value> </value></property>
<property><name>fs.default.name</name><value>hdfs://last:1</value></property>
<property><name>dfs.federation.nameservices</name><value>x,y</value></property>
<property><name>dfs.http.address</name><value>h:1</value></property>
<property><name>dfs.https.address</name><value>h:2</value></property>
<property><name>dfs.umaskmode</name><value>027</value></property>
"""
MORE = {
    "one": "<property><name>included.final</name><value>one</value><final>true</final></property>\n"
    '<xi:include href="beside.xml"><xi:fallback><property><name>beside</name><value>none</value></property>'
    "</xi:fallback></xi:include>\n<property><name>order</name><value>included</value></property>",
    "beside": "<property><name>beside</name><value>one.xml</value></property>",
    "two": "<property><name>two</name><value>two</value></property>",
    "plain": "<property><name>plain</name><value>plain</value></property>",
}
TOGETHER = (
    *("final", "not.final", "attribute", "stays", "stays.empty", "twice", "raw", "text", "no.reference"),
    *("included.final", "beside", "used", "two", "plain", "order", "fs.defaultFS"),
)
ALONE = (
    *("b", "nested", "unbound", "unset", "itself", "variables", "nineteen", "blank", "no.value", "fallback"),
    *("dfs.nameservices", "dfs.namenode.http-address", "dfs.namenode.https-address", "fs.permissions.umask-mode"),
    *("circle", "twenty"),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("conf")
    together = "".join(
        f"<property><name>all{index}</name><value>"
        + "|".join(f"${{{item}}}" for item in TOGETHER[index::2])
        + "</value></property>"
        for index in range(2)
    )
    files = {"core-site": CORE + together, "hdfs-site": HDFS, **{f"more/{name}": text for name, text in MORE.items()}}
    (directory / "more").mkdir()
    for name, text in files.items():
        text = text.replace("DIRECTORY", str(directory)).replace("NINETEEN", "${which}" * 19)
        xml = f'<configuration xmlns:xi="http://www.w3.org/2001/XInclude">{text}</configuration>'
        (directory / f"{name}.xml").write_text(xml)
    return directory


@pytest.mark.parametrize("name", ["all0", "all1", *ALONE])
def test_values_agree_with_hadoops_own_reader(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    try:
        classes = f"{directory}:{library()}/*"
        command = [java(), *JAVA_OPTIONS, "-cp", classes, "org.apache.hadoop.hdfs.tools.GetConf", "-confKey", name]
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    monkeypatch.delenv("UNSET", raising=False)
    for variable, value in VARIABLES.items():
        monkeypatch.setenv(variable, value)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    found = read_configuration(str(directory))
    if done.returncode == 0:
        assert (found.get(name) or "") == done.stdout.removesuffix("\n")
    elif "is missing" in done.stderr + done.stdout:
        assert found.get(name) is None
    else:
        assert "Variable substitution depth too large" in done.stderr + done.stdout
        with pytest.raises(ConfigError, match="refers to itself, or 20 times to others"):
            found.get(name)


def test_the_values_of_the_comparison_are_those_that_are_meant(directory: Path) -> None:
    found = read_configuration(str(directory))
    together = f"{found.get('all0')}|{found.get('all1')}".split("|")
    assert set(together) >= {"first", "of core", "one", "none", "yes", "two", "plain", "after", "hdfs://last:1"}
    assert not [text for text in together if text.startswith("${") and text != "${c d} ${} $c {c} $b"]
