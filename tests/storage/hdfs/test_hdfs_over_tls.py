"""A real HDFS whose NameNode and DataNode speak TLS, with certificates that Java's keytool made."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dlapp.errors import Unreachable
from dlapp.locations import AUTO, WEBHDFS, HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from tests.applications import ended, launch, processes, properties, wait_for
from tests.services.hadoop import Hadoop, NoHadoop, free_ports
from tests.storage.fetching import fetch_entries

pytestmark = pytest.mark.slow

SECRET = "changeit"
SSL_SERVER = "".join(
    f"<property><name>ssl.server.keystore.{name}</name><value>{value}</value></property>"
    for name, value in (("location", "{store}"), ("password", SECRET), ("keypassword", SECRET), ("type", "pkcs12"))
)


class Secured(NamedTuple):
    """An HDFS and the certificate that its servers have."""

    hadoop: Hadoop
    place: HdfsPlace
    ca: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("no keytool: install a JDK or JRE")
    directory = tmp_path_factory.mktemp("tls")
    store, ca = directory / "store.p12", directory / "ca.pem"
    common = ["-keystore", str(store), "-storepass", SECRET, "-alias", "hdfs"]
    made = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1"]
    for words in ([*made, "-storetype", "pkcs12"], ["-exportcert", "-rfc", "-file", str(ca)]):
        subprocess.run([keytool, *words, *common], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    cluster = directory / "cluster"
    (cluster / "conf").mkdir(parents=True)
    (cluster / "conf" / "ssl-server.xml").write_text(f"<configuration>{SSL_SERVER.format(store=store)}</configuration>")
    ports = free_ports()
    web = f"127.0.0.1:{ports['nn2_http']}"
    settings = {
        "dfs.http.policy": "HTTP_AND_HTTPS",
        "dfs.namenode.https-address": web,
        "dfs.datanode.https.address": f"127.0.0.1:{ports['dn2_http']}",
    }
    try:
        with Hadoop.start(cluster, ports=ports, parts=("nn", "dn"), settings={"hdfs-site.xml": settings}) as hadoop:
            location = f"hdfs://127.0.0.1:{hadoop.ports['nn']}"
            place = HdfsPlace(location, (f"https://{web}",), Login(getpass.getuser()), ca=str(ca), protocol=AUTO)
            yield Secured(hadoop, place, ca)
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


def content(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def test_trees_are_stored_and_fetched_over_tls(secured: Secured, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "of many").mkdir(parents=True)
    (source / "empty").write_bytes(b"")
    (source / "large").write_bytes(os.urandom(5 << 20))
    for number in range(60):  # enough for the DataNode to be asked straight
        (source / "of many" / f"{number} 100%").write_bytes(os.urandom(number * 100))
    files = HdfsFiles(secured.place)
    asked: list[str] = []
    real = files.web._connections.request

    def ask(method: str, server: str, *rest: object, **options: object) -> object:
        asked.append(server)
        return real(method, server, *rest, **options)  # type: ignore[arg-type]

    files.web._connections.request = ask  # type: ignore[method-assign, assignment]
    location = f"{secured.place.location}/tests/tls"
    files.store(str(source), location)
    fetch_entries(files, files.matches(location), str(tmp_path / "got"))
    assert content(tmp_path / "got" / "tls") == content(source)
    assert {server.partition("://")[0] for server in asked} == {"https"}
    assert len(set(asked)) == 2


def test_a_server_that_is_not_trusted_is_named_at_once(secured: Secured) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable) as refusal:
        HdfsFiles(secured.place._replace(ca=None)).exists(f"{secured.place.location}/")
    assert time.monotonic() - began < 45  # it would be asked again for a minute
    (web,) = secured.place.web
    assert str(refusal.value) == (
        f"{web} has a certificate that is not trusted (self-signed certificate); SSL_CERT_FILE names the file of your "
        "cluster's CA"
    )
    with pytest.raises(Unreachable, match=r"/nowhere\.pem: no such file or directory; SSL_CERT_FILE names the file"):
        HdfsFiles(secured.place._replace(ca="/nowhere.pem")).exists(f"{secured.place.location}/")


def test_tls_on_one_side_alone_is_named_at_once_with_the_policy(secured: Secured) -> None:
    ports = secured.hadoop.ports
    for web, words in (
        (f"https://127.0.0.1:{ports['nn_http']}", "uses plain HTTP, not TLS; set dfs.http.policy to HTTP_ONLY"),
        (
            secured.place.web[0].replace("https://", "http://"),
            "uses TLS, not plain HTTP; set dfs.http.policy to HTTPS_ONLY",
        ),
    ):
        began = time.monotonic()
        with pytest.raises(Unreachable) as refusal:
            # With auto, a web address without TLS leaves the way by RPC, which needs no web port.
            HdfsFiles(secured.place._replace(web=(web,), protocol=WEBHDFS)).exists(f"{secured.place.location}/")
        assert str(refusal.value) == f"{web} {words}"
        assert time.monotonic() - began < 45  # it would be asked again for a minute


def test_a_local_application_uses_the_submitters_ca(
    secured: Secured, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, location = HdfsFiles(secured.place), f"{secured.place.location}/tests/app"
    files.make_directory(location)
    files.write_atomic(f"{location}/in", b"over tls\n")
    conf = tmp_path / "conf"
    shutil.copytree(secured.hadoop.configuration, conf)
    site = conf / "hdfs-site.xml"
    site.write_text(site.read_text().replace("HTTP_AND_HTTPS", "HTTPS_ONLY"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.ca))
    file = properties(
        tmp_path,
        "mkdir output; cp data/in output/out",
        from_hdfs={"hdfs": "hdfs:/tests/app/in", "input_path": "data"},
        to_hdfs={"output_path": "output", "hdfs": f"{location}/result"},
    )
    end = ended(launch(file))
    assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
    assert files.read_bytes(f"{location}/result/out", 1 << 28) == b"over tls\n"
    wait_for("the end of all processes", lambda: not processes(state_dir))
