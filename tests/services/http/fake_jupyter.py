"""A stand-in for JupyterLab, for what does not depend on it: a server that answers with a token, and writes its port.

Real JupyterLab is in tests/beside.
"""

from __future__ import annotations

from pathlib import Path

_MAIN = """\
import http.server, json, os, signal, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_right = self.headers["Authorization"] == "token " + os.environ["JUPYTER_TOKEN"]
        self.send_response(200 if is_right and self.path == "/api/status" else 403)
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
root = next(word.partition("=")[2] for word in sys.argv if word.startswith("--ServerApp.root_dir="))
for name in os.environ.get("TO_WRITE", "").split():
    os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
    with open(os.path.join(root, name), "w") as file:
        file.write("of the notebook")
print(*sys.argv[1:], flush=True)
if os.environ.get("FAILS"):
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], f"jpserver-{os.getpid()}.json"), "w") as file:
    json.dump({"port": server.server_port}, file)
server.serve_forever()
"""


def install(directory: Path) -> str:
    """Write the package `jupyterlab` into a directory, which is returned as a path for PYTHONPATH."""
    (directory / "jupyterlab").mkdir(parents=True)
    (directory / "jupyterlab" / "__init__.py").touch()
    (directory / "jupyterlab" / "__main__.py").write_text(_MAIN)
    return str(directory)
