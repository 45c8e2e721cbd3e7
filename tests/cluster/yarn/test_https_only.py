"""A cluster whose web servers speak TLS alone, with a CA that no operating system knows."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.errors import DlappError
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import NODES, Hadoop, NoHadoop, free_ports
from tests.tiers import FULL

SECRET = "changeit"
TLS_ONLY = "HTTPS_ONLY"


def site(**values: str) -> str:
    text = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())
    return f"<configuration>{text}</configuration>"


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hadoop, Path]]:
    """Such a cluster, and the configuration of its clients: the CA is in the Java key store of ssl-client.xml."""
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("no keytool: install a JDK or JRE")
    own, trust, pem = (str(tmp_path / name) for name in ("own.p12", "trust.jks", "ca.pem"))
    names = ",".join(f"ip:{host}" for host in ("127.0.0.1", *NODES.values()))
    common = ["-storepass", SECRET, "-alias", "own"]
    for words in (
        ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=own", "-ext", f"san={names}", "-keystore", own],
        ["-exportcert", "-rfc", "-keystore", own, "-file", pem],
        ["-importcert", "-noprompt", "-storetype", "jks", "-keystore", trust, "-file", pem],
    ):
        subprocess.run([keytool, *words, *common], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    cluster, ports = tmp_path / "cluster", free_ports()
    server = {"location": own, "password": SECRET, "keypassword": SECRET, "type": "pkcs12"}
    for name in ("conf", *(f"conf-{part}" for part in NODES)):
        (cluster / name).mkdir(parents=True)
        text = site(**{f"ssl.server.keystore.{key}": value for key, value in server.items()})
        (cluster / name / "ssl-server.xml").write_text(text)
    settings = {
        "hdfs-site.xml": {
            "dfs.http.policy": "HTTP_AND_HTTPS",  # the service looks by HTTP whether HDFS is ready
            "dfs.namenode.https-address": f"127.0.0.1:{ports['nn2_http']}",
            "dfs.datanode.https.address": f"127.0.0.1:{ports['dn2_http']}",
        },
        "yarn-site.xml": {
            "yarn.http.policy": TLS_ONLY,
            "yarn.resourcemanager.webapp.https.address": f"127.0.0.1:{ports['dn3_http']}",
            "yarn.nodemanager.webapp.https.address": "${yarn.nodemanager.hostname}:" + str(ports["nm_http"]),
            "yarn.timeline-service.enabled": "false",
        },
    }
    try:
        with Hadoop.start(cluster, ports=ports, parts=("nn", "dn", "rm", "nm1"), settings=settings) as hadoop:
            conf = tmp_path / "conf"
            shutil.copytree(hadoop.configuration, conf)
            hdfs = conf / "hdfs-site.xml"
            hdfs.write_text(hdfs.read_text().replace("HTTP_AND_HTTPS", TLS_ONLY))
            (conf / "ssl-client.xml").write_text(site(**{"ssl.client.truststore.location": trust}))
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            yield hadoop, conf
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


if FULL:

    @pytest.mark.hadoop
    def test_an_application_runs_stores_and_shows_its_log_where_all_web_servers_speak_tls_alone(
        secured: tuple[Hadoop, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hadoop, conf = secured
        # Who tells a process of a proxy does not mean the cluster.
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
        options = {"cluster": "yarn", "yarn.conf_dir": str(conf), "yarn.python": sys.executable}
        go = tmp_path / "go"
        output = f"hdfs://127.0.0.1:{hadoop.ports['nn']}/user/{getpass.getuser()}/over-tls"
        file = properties(
            tmp_path,
            f"echo over tls; until [ -e {go} ]; do sleep 0.1; done; mkdir output; echo done >output/file",
            to_hdfs={"output_path": "output", "hdfs": output},
        )
        with Client(load_config(options, environ={})) as client:

            def nodes() -> bool:
                try:
                    return bool(client.engine.node_names())
                except DlappError:
                    return False

            until(nodes)
            one = client.submit(file)

            def shown() -> bool:
                try:
                    return "over tls" in client.application(str(one)).logs()
                except DlappError:
                    return False

            # The page of the NodeManager, while the program runs.
            until(shown)
            assert all(each.log_url.startswith("https://127.0.1.1:") for each in client.status(one).containers)
            go.touch()
            end = client.wait(one, timeout_s=240)
            assert end.cause is Cause.SUCCEEDED, end.diagnostics
        listed = hadoop.get(f"{hadoop.hdfs_url}/webhdfs/v1/user/{getpass.getuser()}/over-tls?op=LISTSTATUS")
        assert [each["pathSuffix"] for each in listed["FileStatuses"]["FileStatus"]] == ["file"]
