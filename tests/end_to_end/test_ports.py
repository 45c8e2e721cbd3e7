"""Ports of programs on every engine: dlapp-port, both ways to a port, and what is left when one side dies."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.client.streams.ports import PortForward
from dlapp.errors import TimedOut
from dlapp.system.processes.proc import descendants
from tests.applications import BIN, ended, launch, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import IMAGE, Dockerd

PATIENCE_S = 120.0
SERVER = """
import http.server, os, socketserver, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            # All that a proxy could spoil: after the 101 both sides send what they like.
            self.connection.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n\\r\\n")
            while data := self.connection.recv(65536):
                self.connection.sendall(bytes(reversed(data)))
            self.close_connection = True
            return
        self.answer(b"index " + os.environ["CONTAINER_INDEX"].encode())

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])).upper())

    def answer(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
"""


def serving(place: Path) -> tuple[str, int]:
    """Start an application that serves; return its id and its port."""
    file = properties(place, f"exec {sys.executable} -I serve.py {place}/port")
    (place / "test_workspace/serve.py").write_text(SERVER)
    application = launch(file)
    port = wait_for("the program serves", lambda: (place / "port").exists() and (place / "port").read_text(), 240.0)
    return application, int(port)


def talk(local: int) -> None:
    """Ask by GET and POST, and by a connection that becomes another protocol."""
    connection = http.client.HTTPConnection("127.0.0.1", local, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"index 0"
        body = b"text" * 100_000
        connection.request("POST", "/", body)
        assert connection.getresponse().read() == body.upper()
    with socket.create_connection(("127.0.0.1", local), timeout=PATIENCE_S) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        assert one.recv(65536).startswith(b"HTTP/1.1 101 ")
        for text in (b"abc", b"defg"):
            one.sendall(text)
            assert one.recv(100) == text[::-1]


def helpers(engine: Engine, application: str) -> list[int]:
    """Return the processes of streams, of the ApplicationMaster and of the task."""
    found = []
    for process in engine.processes(application):
        for pid in descendants(process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().rpartition(b"\0")[0].endswith((b"\0relay", b"\0streams")):
                    found.append(pid)
    return sorted(set(found))


def kill_master(engine: Engine, application: str, forward: PortForward) -> None:
    """See that its streams die with an ApplicationMaster, and no more, and that the next one is found."""
    stream = socket.create_connection(("127.0.0.1", forward.local_port), timeout=PATIENCE_S)
    stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nindex 0"):  # the server sends head and body each by itself
        data = stream.recv(65536)
        assert data, answer
        answer += data
    assert answer.startswith(b"HTTP/1.1 200 OK")
    engine.kill_master(application)
    with contextlib.suppress(ConnectionResetError):
        assert stream.recv(1) == b""
    stream.close()

    def is_back() -> bool:
        assert forward.poll() == ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            talk(forward.local_port)
            return True
        return False

    wait_for("the next ApplicationMaster", is_back, 240.0)
    assert status(application)["attempt"] == 2


@pytest.mark.slow
@on_yarn_when_full
def test_a_port_is_forwarded_in_both_ways_and_closed_without_leftovers(engine: Engine, tmp_path: Path) -> None:
    application, port = serving(tmp_path)
    messages: list[str] = []
    with contextlib.closing(engine.client()) as client:
        application_id = client.resolve(application)
        # The way of another machine: by the ApplicationMaster and the task.
        with PortForward(client, application_id, 0, port, say=messages.append, direct=False) as forward:
            forward.wait_open(PATIENCE_S)
            talk(forward.local_port)
            assert forward.route == "through the ApplicationMaster"
            assert len(helpers(engine, application)) == 2
            if engine.hadoop is None:  # on YARN it takes half a minute, and the code is the same
                kill_master(engine, application, forward)
        # The command goes directly here. Killed, it leaves nothing.
        with subprocess.Popen(
            [BIN / "dlapp-port", application, "worker", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            assert command.stdout is not None
            assert command.stderr is not None
            first = command.stdout.readline()
            assert first.endswith(f" : port {port} of worker:0 of {application}\n"), first + command.stderr.read()
            local = int(first.split(":")[1].split()[0])
            talk(local)
            assert "worker:0 go directly at 127.0.0.1" in "".join(command.stderr.readline() for _ in range(2))
            open_connection = socket.create_connection(("127.0.0.1", local), timeout=PATIENCE_S)
            command.kill()
            with contextlib.suppress(ConnectionResetError):
                assert open_connection.recv(1) == b""
            open_connection.close()
        with PortForward(client, application_id, 0, port, say=messages.append, direct=False) as forward:
            talk(forward.local_port)
            left = helpers(engine, application)
            assert len(left) == 2
            assert run("dlapp-softkill", application).code == 0
            ended(application)
            assert forward.run().startswith(f"{application} has ended (")
        wait_for("the end of what served streams", lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    for words, line in (
        ("worker:1", "has no container worker_1: the role has 1, from 0"),
        ("ps", "has no role ps, it has worker"),
        ("worker:", "'worker:' is not ROLE or ROLE:INDEX, as in worker:0"),
    ):
        wrong = run("dlapp-port", application, words, port)
        assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2 if words == "worker:" else 3, "", 1), wrong.err
        assert wrong.err.endswith(f"{line}\n")
    late = run("dlapp-port", application, "worker:0", port)
    assert late.code == 3
    assert late.err.count("\n") == 1
    assert late.err.startswith(f"Error: {application} has ended (")


@pytest.mark.slow
def test_a_loopback_port_in_a_network_of_docker_is_reached(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    keys = {"docker_image": IMAGE, "network": "none"}
    application = launch(properties(tmp_path, f"exec busybox httpd -f -p 127.0.0.1:{port} -h .", application=keys))
    with (
        contextlib.closing(Client()) as client,
        PortForward(client, client.resolve(application), 0, port) as forward,
    ):
        forward.wait_open(PATIENCE_S)
        with socket.create_connection(("127.0.0.1", forward.local_port), timeout=PATIENCE_S) as one:
            one.sendall(b"GET /start.sh HTTP/1.0\r\n\r\n")
            assert one.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert forward.route == "through the ApplicationMaster"
        with pytest.raises(TimedOut), PortForward(client, client.resolve(application), 0, port + 1) as other:
            other.wait_open(0.0)
    assert run("dlapp-kill", application).code == 0
