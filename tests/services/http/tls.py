"""A server that speaks TLS in front of one that does not; its certificate is for 127.0.0.1, signed by itself."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUGkAwJegE5LAa5I64SjKVqmRgpYMwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMTA2MjYxNloYDzIxMjYxMDI4
MDYyNjE2WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATnsd23nmm4xrXFhX3jacxp+isHJrv0K1aDH53juHJXlm/4ns3Lsq/5
aCnfpm9SODMslYS/xuyd9tKQzicZmDkso2QwYjAdBgNVHQ4EFgQUzxDloqoV3bcW
RrzK3ccyVqZLa/0wHwYDVR0jBBgwFoAUzxDloqoV3bcWRrzK3ccyVqZLa/0wDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDiAuPP6B7PnNdbISxCwjwSDclV1j/FRrxYUh6ayVVIcwIhALSMa9KwM+r29eBh
v/owYfh2Vinteq3ks3Y6TvxHXphK
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgGwq01ilsKUuxw7nv
gehWwZc724DKPKDJ1s/jX0lx3lWhRANCAATnsd23nmm4xrXFhX3jacxp+isHJrv0
K1aDH53juHJXlm/4ns3Lsq/5aCnfpm9SODMslYS/xuyd9tKQzicZmDks
-----END PRIVATE KEY-----
"""


@contextlib.contextmanager
def tls_in_front(directory: Path, address: tuple[str, int]) -> Iterator[str]:
    """``host:port`` of the server; its certificate is ``directory``/certificate.pem."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener, context, address), daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _serve(listener: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            link, _ = listener.accept()
            threading.Thread(target=_pass_on, args=(link, context, address), daemon=True).start()


def _pass_on(plain: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    plain.settimeout(120)
    with (
        contextlib.suppress(OSError),
        plain,
        context.wrap_socket(plain, server_side=True) as client,
        socket.create_connection(address, timeout=120) as server,
    ):
        up = threading.Thread(target=_copy, args=(server, client), daemon=True)
        up.start()
        _copy(client, server)
        up.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RDWR)
