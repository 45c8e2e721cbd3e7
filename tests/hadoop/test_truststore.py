"""Certificates of the trust stores that clusters have."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from dlapp.errors import ConfigError
from dlapp.hadoop.configuration import read_configuration
from dlapp.hadoop.truststore import MAX_BYTES, read_certificates
from dlapp.login import Login

SECRET = ("-storepass", "changeit")


def keytool(*words: str) -> None:
    found = shutil.which("keytool")
    if found is None:
        pytest.skip("no keytool: install a JDK or JRE")
    subprocess.run([found, *words, *SECRET], check=True, capture_output=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a CA as PEM, and as a trusted certificate in stores of keytool that also have a key."""
    place = tmp_path_factory.mktemp("stores")
    own, ca = str(place / "own.jks"), str(place / "ca.pem")
    keytool("-genkeypair", "-keyalg", "RSA", "-dname", "CN=own", "-alias", "own", "-storetype", "jks", "-keystore", own,
            "-keypass", SECRET[1])  # fmt: skip
    other = str(place / "other.p12")
    keytool(
        "-genkeypair", "-keyalg", "RSA", "-dname", "CN=ca", "-alias", "ca", "-storetype", "pkcs12", "-keystore", other
    )
    keytool("-exportcert", "-rfc", "-alias", "ca", "-keystore", other, "-file", ca)
    for kind, store in (("jks", own), ("pkcs12", str(place / "trust.p12"))):
        keytool("-importcert", "-noprompt", "-alias", "the ca", "-storetype", kind, "-keystore", store, "-file", ca)
    return place


@pytest.mark.slow
def test_the_trusted_certificates_of_a_java_key_store_are_read_and_keys_passed_over(stores: Path) -> None:
    found = read_certificates(str(stores / "own.jks"), "ssl.client.truststore.location")
    assert found.count("BEGIN CERTIFICATE") == 1
    assert ssl.PEM_cert_to_DER_cert(found) == ssl.PEM_cert_to_DER_cert((stores / "ca.pem").read_text())
    pem = read_certificates(str(stores / "ca.pem"), "SSL_CERT_FILE")
    assert pem.split() == (stores / "ca.pem").read_text().split()


@pytest.mark.slow
def test_an_unsupported_trust_store_is_refused_by_name(stores: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^X: .*trust\.p12 is neither PEM nor a Java key store of type JKS"):
        read_certificates(str(stores / "trust.p12"), "X")
    with pytest.raises(ConfigError, match=r"^X: /nowhere: No such file or directory$"):
        read_certificates("/nowhere", "X")
    whole = (stores / "own.jks").read_bytes()
    broken = tmp_path / "broken"
    for data in (whole[:-25], whole[:40], whole[:4], whole[:4] + b"\xff" * 60, whole[:12] + b"\0\0\0\7" + whole[16:]):
        broken.write_bytes(data)
        with pytest.raises(ConfigError, match=r"broken (ends early|is a Java key store|has an entry)"):
            read_certificates(str(broken), "X")
    broken.write_bytes(bytes(MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="broken is larger than 4 MiB"):
        read_certificates(str(broken), "X")


def configuration(place: Path, policy: str, truststore: Path) -> Path:
    def site(name: str, **values: str) -> None:
        properties = "".join(
            f"<property><name>{key.replace('__', '.')}</name><value>{value}</value></property>"
            for key, value in values.items()
        )
        (place / name).write_text(f"<configuration>{properties}</configuration>")

    site("core-site.xml", fs__defaultFS="hdfs://node1:8020")
    site("yarn-site.xml", yarn__http__policy=policy)
    site("ssl-client.xml", ssl__client__truststore__location=str(truststore))
    return place


@pytest.mark.slow
def test_the_cas_of_a_cluster_are_those_of_the_user_else_those_of_hadoops_clients(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    https_site = configuration(tmp_path, "HTTPS_ONLY", stores / "own.jks")
    place = read_configuration(str(https_site)).hdfs(Login("tony"))
    assert place.certificates == read_certificates(str(stores / "own.jks"), "")
    monkeypatch.setenv("SSL_CERT_FILE", str(stores / "ca.pem"))
    assert read_configuration(str(https_site)).certificates().split() == (stores / "ca.pem").read_text().split()
    plain = configuration(tmp_path, "HTTP_ONLY", Path("/nowhere"))
    assert read_configuration(str(plain)).hdfs(Login("tony")).certificates == ""
