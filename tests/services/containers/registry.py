"""A registry of images with one image, on a port of this machine: what dockerd asks for a pull, and no more.

It counts pulls, may want a name and a password, or a token for these, may be slow, and may break off a layer.

Source: OCI distribution specification, "Pull"; Docker Image Manifest V2, schema 2; distribution's "Token Authentication
Specification".
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry:
    """The registry, in a with block.

    Args:
        root: the image's only layer, a tar.
        login: ``name:password`` that it wants.
        by_token: it wants a token, which it gives for that login, as most public registries do.
        repository: of the image.
        slow_s: how long a layer takes.
        port: where it listens; 0: any.
    """

    def __init__(
        self,
        root: bytes,
        *,
        login: str = "",
        by_token: bool = False,
        slow_s: float = 0.0,
        repository: str = "it",
        port: int = 0,
    ) -> None:
        layer = gzip.compress(root, mtime=0)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(root)]},
                "history": [{"created_by": "a test"}],
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": _CONFIG, "size": len(config), "digest": _digest(config)},
                "layers": [{"mediaType": _LAYER, "size": len(layer), "digest": _digest(layer)}],
            }
        ).encode()
        self.digest = _digest(manifest)
        self.layers_sent = 0
        self.slow_s = slow_s
        """May be changed, also while a layer is on its way."""
        self.break_off = False
        """True: a layer ends in the middle."""
        self.is_busy = False
        """True: it answers 429 to all callers."""
        self.refused = 0
        """Requests with other credentials than it wants, or none."""
        self.authorizations: set[str] = set()
        """All that it was sent as credentials."""
        registry, blobs = self, {_digest(item): item for item in (layer, config)}
        basic = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        wanted = f"Bearer {os.urandom(8).hex()}" if by_token else basic
        manifests = [f"/v2/{repository}/manifests/{version}" for version in ("1", self.digest)]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                sent = self.headers.get("Authorization") or ""
                registry.authorizations |= {sent} - {""}
                if registry.is_busy:
                    self.answer(429, b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "too many requests"}]}')
                elif by_token and self.path.startswith("/token?"):
                    token = wanted.removeprefix("Bearer ") if sent == basic else "of-nobody"
                    self.answer(200, json.dumps({"token": token}).encode())
                elif wanted and sent != wanted:
                    registry.refused += 1
                    self.answer(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}')
                elif self.path == "/v2/":
                    self.answer(200, b"{}")
                elif self.path in manifests:
                    self.answer(200, manifest, MANIFEST)
                elif (blob := blobs.get(self.path.rpartition("/")[2])) is not None:
                    self.blob(blob)
                else:
                    self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')

            def blob(self, blob: bytes) -> None:
                if blob is layer:
                    registry.layers_sent += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(blob)))
                self.end_headers()
                parts = 10 if blob is layer else 1
                size = -(-len(blob) // parts)
                for number in range(parts):
                    if blob is layer:
                        began = time.monotonic()
                        while time.monotonic() < began + registry.slow_s / parts:
                            time.sleep(min(0.05, registry.slow_s / parts))
                        if registry.break_off and number == parts // 2:
                            self.close_connection = True
                            return
                    self.wfile.write(blob[number * size : (number + 1) * size])

            def answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
                self.send_response(code)
                self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Docker-Content-Digest", registry.digest)
                if code == 401:
                    by = f'Bearer realm="http://{registry.address}/token",service="test"' if by_token else None
                    self.send_header("WWW-Authenticate", by or 'Basic realm="test"')
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="registry", daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.image = f"{self.address}/{repository}:1"

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
