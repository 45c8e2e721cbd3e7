"""The certificates of a trust store: PEM, or the Java key stores that Hadoop's clients have.

Of a Java key store (JKS, JCEKS) the entries of trusted certificates are read; they are not encrypted. A PKCS12 store,
which keytool creates by default, is encrypted as a whole, and Python cannot read it.

Source: sun.security.provider.JavaKeyStore (engineLoad).
"""

from __future__ import annotations

import struct

from dlapp.errors import ConfigError

MAX_BYTES = 4 << 20
_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM = b"-----BEGIN "
_KEY, _TRUSTED = 1, 2
_MAX_ENTRIES = 4096


def read_certificates(path: str, setting: str) -> str:
    """Return the certificates in a file that a setting names, as PEM.

    Raises:
        ConfigError: it cannot be read, or is no trust store that Python can read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: {path}: {error.strerror}") from error
    try:
        if len(data) > MAX_BYTES:
            raise ValueError("is larger than 4 MiB")
        if _PEM in data:
            return data.decode("ascii", "replace")
        if data[:4] in _MAGIC:
            return _java_certificates(data)
        raise ValueError("is neither PEM nor a Java key store of type JKS (SSL_CERT_FILE may name a file of PEM)")
    except (ValueError, struct.error) as error:
        why = "ends early" if isinstance(error, struct.error) else error
        raise ConfigError(f"{setting}: {path} {why}") from error


def _java_certificates(data: bytes) -> str:
    import ssl

    at = 4

    def number(form: str) -> int:
        nonlocal at
        (found,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(found)

    def block(form: str) -> bytes:
        nonlocal at
        size = number(form)
        if at + size > len(data):
            raise ValueError("ends early")
        at += size
        return data[at - size : at]

    def certificate() -> bytes:
        if version == 2:
            block(">H")  # its type, always X.509
        return block(">I")

    version, count = number(">I"), number(">I")
    if version not in (1, 2) or count > _MAX_ENTRIES:
        raise ValueError(f"is a Java key store of version {version} with {count} entries")
    found = []
    for _ in range(count):
        kind = number(">I")
        block(">H")  # the alias
        number(">q")  # when it was made
        if kind == _TRUSTED:
            found.append(ssl.DER_cert_to_PEM_cert(certificate()))
        elif kind == _KEY:
            block(">I")
            for _ in range(number(">I")):
                certificate()
        else:
            raise ValueError(f"has an entry of kind {kind}")
    return "".join(found)
