"""Services of applications on every engine: their addresses, their restarts and their ends."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.applications import ended, launch, run, status, wait_for
from tests.end_to_end.test_applications import END_S
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.services.containers.host_images import PYTHON_IMAGE, import_python_image

SERVER = """\
import http.server, os, sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/stop":
            os._exit(3)
        self.send_response(200 if self.path in ("/pid", "/ready") else 404)
        self.end_headers()
        self.wfile.write(TOKEN)

    def log_message(self, *_):
        pass


TOKEN = os.urandom(8).hex().encode()
assert sys.argv[1:] == [os.environ["DLAPP_ADDRESS"], os.environ["DLAPP_PORT"]]
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
API = "[service api]\ncommand=python3 server.py {address} {port}\nready=http:/ready\n"


def file_of(place: Path, text: str, **scripts: str) -> Path:
    """Write a properties file, and a workspace with the server and scripts."""
    (place / "w").mkdir()
    (place / "w/server.py").write_text(SERVER)
    for name, script in scripts.items():
        (place / f"w/{name}.sh").write_text(script)
    head = "[application]\nappname=served\nuser_dev_workspace_path=w\n"
    (place / "served.properties").write_text(f"{head}{text}")
    return place / "served.properties"


def ready_url(application: str, name: str) -> str:
    """Return the URL of a link as soon as what it leads to is ready."""

    def look() -> str | None:
        found = [link for link in status(application)["links"] if link["name"] == name and link["ready"]]
        return str(found[0]["url"]) if found else None

    return wait_for(f"{name} of {application}", look, END_S)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@on_yarn_when_full
def test_a_service_is_started_again_and_ends_with_its_application(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        f"user_shell_script=work.sh\nenv.PLACE={tmp_path}\nlink.pid=api:port/pid\n"
        f"[resources]\nmemory=64\ngcores=0\n{API}[to_hdfs]\noutput_path=out\nhdfs={engine.root}/out\n",
        work='until [ -e "$PLACE/finish" ]; do sleep 0.1; done\nmkdir out; echo "$NUM_CONTAINERS" >out/n\n',
    )
    application = launch(file)
    url, pid = ready_url(application, "api 0"), get(f"{ready_url(application, 'api 0')}pid")
    shown = run("dlapp-status", application).out
    assert f"url api 0 : {url}\n" in shown
    assert "url pid : http://" in shown
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(f"{url}stop")
    wait_for("the end of the first server", lambda: status(application)["containers"][1]["attempt"] == 2, END_S)
    assert get(f"{ready_url(application, 'api 0')}pid") != pid
    (tmp_path / "finish").touch()
    end = ended(application, END_S)
    assert (end["final_status"], end["diagnostics"], end["links"]) == ("SUCCEEDED", "", [])
    assert engine.tree("out") == {"n": "1\n"}
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(url)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_an_application_of_services_ends_without_connections(engine: Engine, tmp_path: Path) -> None:
    file = file_of(tmp_path, f"kind=service\n{API}memory=64\ngcores=0\nmax_idle=1s\n")
    end = ended(launch(file), END_S)
    assert (end["state"], end["final_status"]) == ("FINISHED", "SUCCEEDED")
    assert end["diagnostics"] == "nobody was connected for 1 s (max_idle)"


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_without_tensorboard_a_program_runs_and_the_status_gives_the_reason(engine: Engine, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        f"user_shell_script=work.sh\nenv.PLACE={tmp_path}\nenv.PATH=/usr/bin:/bin\ntensorboard=logs\n"
        "[resources]\nmemory=200\ngcores=0\n",
        work='until [ -e "$PLACE/finish" ]; do sleep 0.1; done\n',
    )
    application = launch(file)
    line = "url tensorboard : tensorboard is not installed on this node (python3 of PATH)\n"
    wait_for("the line", lambda: line in run("dlapp-status", application).out, END_S)
    (tmp_path / "finish").touch()
    assert ended(application, END_S)["final_status"] == "SUCCEEDED"


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_in_docker_a_service_is_in_the_network_of_the_host_and_a_soft_kill_ends_it(
    engine: Engine, tmp_path: Path, dockerd: Dockerd
) -> None:
    serve = "[service api]\ncommand=httpd -f -p {address}:{port} -h .\nready=http:/server.py\nmax_idle=1h\n"
    text = f"kind=service\ndocker_image={IMAGE}\n{serve}memory=64\ngcores=0\n"
    application = launch(file_of(tmp_path, text), DLAPP_RUNTIME_DOCKER_HOST=dockerd.host)
    assert get(f"{ready_url(application, 'api 0')}server.py") == SERVER
    assert run("dlapp-softkill", application).code == 0
    end = ended(application, END_S)
    assert (end["state"], end["final_status"], end["cause"]) == ("FINISHED", "KILLED", "soft-killed")
    assert dockerd.containers(f"label=dlapp.app={application}") == []


STANDS_IN = """\
import os, socket, sys


def run_main():
    given = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
    with socket.create_server((given["host"], int(given["port"]))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                path = connection.recv(65536).split()[1].decode()
                is_right = path == given["path_prefix"] + "/"
                try:
                    open(given["logdir"] + "/new", "w").close()
                    found = "can be written"
                except OSError:
                    found = " ".join(sorted(os.listdir(given["logdir"])))
                status = "200 OK" if is_right else "404 Not Found"
                connection.sendall(("HTTP/1.0 %s\\r\\n\\r\\n%s" % (status, found)).encode())
"""
"""In the place of TensorBoard, which the image does not have: it shows what it sees of the directory."""


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_in_docker_tensorboard_is_a_read_only_container_of_the_programs_life(
    engine: Engine, tmp_path: Path, dockerd: Dockerd
) -> None:
    import_python_image(dockerd)
    file = file_of(
        tmp_path,
        f"user_shell_script=work.sh\ndocker_image={PYTHON_IMAGE}\nnetwork=none\ntensorboard=true\n"
        "env.PYTHONPATH=/workspace/watched/lib\n[resources]\nmemory=64\ngcores=0\n"
        f"[to_hdfs]\noutput_path=out\nhdfs={engine.root}/out\n",
        work="mkdir out; touch out/one; while [ ! -e out/finish ]; do sleep 0.1; done; rm out/finish\n",
    )
    (tmp_path / "w/lib/tensorboard").mkdir(parents=True)
    (tmp_path / "w/lib/tensorboard/__init__.py").touch()
    (tmp_path / "w/lib/tensorboard/main.py").write_text(STANDS_IN)
    application = launch(file, DLAPP_RUNTIME_DOCKER_HOST=dockerd.host)

    def look() -> str:
        links = status(application)["links"]
        assert not links or not links[0]["problem"], links
        return str(links[0]["url"]) if links else ""

    def shows_one() -> bool:
        with contextlib.suppress(OSError):
            return get(url) == "one"
        return False

    url = wait_for("its address", look, END_S)
    wait_for("the file of the program", shows_one, END_S)
    names = dockerd.containers(f"label=dlapp.app={application}")
    assert len(names) == 2
    (name,) = [item for item in names if "board" in item]
    assert name.endswith(".board")
    home = str(status(application)["containers"][0]["log_url"]).removeprefix("file://")
    Path(home, "workspace/out/finish").touch()
    end = ended(application, END_S)
    assert (end["final_status"], engine.tree("out")) == ("SUCCEEDED", {"one": ""})
    assert dockerd.containers(f"label=dlapp.app={application}") == []
    assert run("dlapp-logs", "--own", application).out.count("TensorBoard") == 0
