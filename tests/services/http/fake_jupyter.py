"""A stand-in for JupyterLab, for what does not depend on it: a server that answers with a token, and writes its port.

Real JupyterLab is in tests/beside.
"""

from __future__ import annotations

from pathlib import Path

_MAIN = """\
import http.server, json, os, signal, sys

class Section(dict):
    __getattr__, __setattr__ = dict.get, dict.__setitem__

class Config(dict):
    def __missing__(self, name):
        return self.setdefault(name, Section())
    __getattr__ = dict.__getitem__

# As jupyter_core: all directories for one name, then the next name; the first directory wins, and JSON over Python.
c = Config()
directories = [*filter(None, os.environ.get("JUPYTER_CONFIG_PATH", "").split(":"))]
directories.append(os.environ.get("JUPYTER_CONFIG_DIR") or os.path.expanduser("~/.jupyter"))
for name in ("jupyter_config", "jupyter_server_config", "jupyter_lab_config"):
    for directory in reversed(directories):
        path = os.path.join(directory, name)
        if os.path.exists(path + ".py"):
            exec(open(path + ".py").read(), {"c": c})
        if os.path.exists(path + ".json"):
            for section, values in json.load(open(path + ".json")).items():
                c[section].update(values)
for word in sys.argv[1:]:
    option, equals, value = word.removeprefix("--").partition("=")
    if equals:
        section, _, name = option.partition(".")
        c[section][name] = value
server, identity = c["ServerApp"], {**c["IdentityProvider"], **c["PasswordIdentityProvider"]}
token = identity.get("token", server.get("token")) or os.environ["JUPYTER_TOKEN"]
base = os.environ.get("ANSWERS_BELOW") or server.get("base_url") or "/"

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if server.get("certfile") or os.environ.get("SPEAKS_TLS"):
            self.wfile.write(bytes([21, 3, 3, 0, 2, 2, 10]))  # an alert of TLS
            return
        is_right = self.headers["Authorization"] == "token " + token and not identity.get("hashed_password")
        is_there = self.path == base + "api/status"
        self.send_response(404 if not is_there else 200 if is_right and not os.environ.get("DENIES") else 403)
        self.end_headers()

    def log_message(self, *_):
        print("GET", file=sys.stderr, flush=True)

if server.get("sock"):
    signal.pause()
ip = server.get("ip", "127.0.0.1")
listening = http.server.HTTPServer((ip, 0), Handler)
root = server["root_dir"]
for name in os.environ.get("TO_WRITE", "").split():
    os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
    with open(os.path.join(root, name), "w") as file:
        file.write("of the notebook")
print(*sys.argv[1:], flush=True)
if os.environ.get("FAILS"):
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], f"jpserver-{os.getpid()}.json"), "w") as file:
    json.dump({"port": listening.server_port}, file)
listening.serve_forever()
"""


def install(directory: Path) -> str:
    """Write the package `jupyterlab` into a directory, which is returned as a path for PYTHONPATH."""
    (directory / "jupyterlab").mkdir(parents=True)
    (directory / "jupyterlab" / "__init__.py").touch()
    (directory / "jupyterlab" / "__main__.py").write_text(_MAIN)
    return str(directory)
