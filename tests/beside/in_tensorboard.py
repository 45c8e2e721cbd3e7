"""TensorBoard beside a program and over many, with PyPI's: `make test-beside`, which installs it beside us."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.applications import BIN, ended, launch, processes, run, status, wait_for
from tests.end_to_end.test_applications import END_S
from tests.engines import Engine
from tests.services.http.browser import Browser, browser

__all__ = ["browser"]
pytest.importorskip("tensorboard")

WRITES = """\
import os, sys, time
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer, step = EventFileWriter("output/run"), 0
while step < 3 or not os.path.exists(os.environ["PLACE"] + "/finish"):
    value = summary_pb2.Summary.Value(tag="loss", simple_value=1 / (step + 1))
    summary = summary_pb2.Summary(value=[value])
    writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
    writer.flush()
    step += 1
    time.sleep(0.1)
writer.close()
"""


def file_of(place: Path, engine: Engine, text: str, *, target: str = "out", memory: int = 700) -> Path:
    """Write the properties file of a program that writes events until the file ``finish`` appears."""
    (place / "w").mkdir(exist_ok=True)
    (place / "w/train.py").write_text(WRITES)
    file = place / f"{target}.properties"
    file.write_text(
        f"[application]\nappname=curves of {target}\nuser_dev_workspace_path=w\ncommand=python3 train.py\n"
        f"env.PLACE={place}\nenv.PATH={BIN}:/usr/bin:/bin\n{text}[resources]\nmemory={memory}\ngcores=0\n"
        f"[to_hdfs]\noutput_path=output\nhdfs={engine.root}/{target}\n"
    )
    return file


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def tags(url: str) -> dict[str, Any]:
    return dict(json.loads(get(f"{url}data/plugin/scalars/tags")))


def last_step(url: str, run_name: str) -> int:
    """Return the last step of the loss that TensorBoard shows; -1: there is none."""
    query = urllib.parse.urlencode({"run": run_name, "tag": "loss"})
    try:
        found = json.loads(get(f"{url}data/plugin/scalars/scalars?{query}"))
    except urllib.error.HTTPError:
        return -1
    return int(found[-1][1]) if found else -1


def board_url(application: str) -> str:
    def look() -> str:
        links = [link for link in status(application)["links"] if link["name"] == "tensorboard"]
        return str(links[0]["url"] or links[0]["problem"]) if links else ""

    url = wait_for("TensorBoard's address", look, END_S)
    assert url.startswith("http://"), url
    return url


def test_curves_grow_while_a_program_runs_behind_a_secret_path(engine: Engine, tmp_path: Path) -> None:
    application = launch(file_of(tmp_path, engine, "tensorboard=true\n"))
    url = board_url(application)
    assert f"url tensorboard : {url}\n" in run("dlapp-status", application).out
    assert b"<title>TensorBoard" in get(url)
    first = wait_for("a step", lambda: last_step(url, "run") + 1, END_S)
    wait_for("later steps", lambda: last_step(url, "run") + 1 > first + 10, END_S)
    assert {name: list(found) for name, found in tags(url).items()} == {"run": ["loss"]}
    root = url[: url.index("/", len("http://")) + 1]
    for other in (root, f"{root}data/runs", f"{url[:-2]}/data/runs"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(other)
    secret = url.rstrip("/").rpartition("/")[2].encode()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert secret not in Path("/proc", process, "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
    if engine.name == "yarn":
        page = str(status(application)["tracking_url"])
        assert secret not in get(page)
    (tmp_path / "finish").touch()
    end = ended(application, END_S)
    assert (end["final_status"], end["links"]) == ("SUCCEEDED", [])
    assert [output["committed"] for output in end["outputs"]] == [True]
    with pytest.raises(urllib.error.URLError):
        get(url)


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_the_board_ends_with_a_killed_program(engine: Engine, tmp_path: Path) -> None:
    application = launch(file_of(tmp_path, engine, "tensorboard=output/run\n"))
    url = board_url(application)
    assert run("dlapp-kill", application).code == 0
    wait_for("the end of all processes", lambda: not processes(engine.state_dir))
    with pytest.raises(urllib.error.URLError):
        get(url)


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_killed_board_is_restarted_and_the_program_continues(engine: Engine, tmp_path: Path) -> None:
    application = launch(file_of(tmp_path, engine, "tensorboard=true\n"))
    url = board_url(application)
    (board,) = [process for process in processes(engine.state_dir) if "tensorboard.main" in process.command]
    os.kill(board.pid, 9)
    problem = "TensorBoard ended with signal 9"
    wait_for("the line on its end", lambda: problem in run("dlapp-status", application).out)
    wait_for("its next start", lambda: problem not in run("dlapp-status", application).out, END_S)
    again = board_url(application)
    wait_for("its next curves", lambda: last_step(again, "run") > 0, END_S)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(url)  # who listened on the port meanwhile may know it
    (tmp_path / "finish").touch()
    assert ended(application, END_S)["final_status"] == "SUCCEEDED"


def test_one_board_shows_runs_that_have_ended_and_that_run(engine: Engine, tmp_path: Path) -> None:
    first = file_of(tmp_path, engine, "project=Curves\n", target="first")
    (tmp_path / "finish").touch()
    assert run("dlapp-launcher", "--wait", first, timeout_s=END_S).code == 0
    (tmp_path / "finish").unlink()
    second = file_of(tmp_path, engine, "project=Curves\n", target="second")
    application = launch(second)
    wait_for("its program", lambda: status(application)["phase"] == "running 1 of 1", END_S)
    command = [str(BIN / "dlapp-board"), "--project", "curves"]
    with (
        open(tmp_path / "stderr", "w") as output,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True) as board,
    ):
        try:
            assert board.stdout is not None
            line = board.stdout.readline()
            assert line.startswith("2 applications : http://127.0.0.1:"), line
            url = line.rpartition(" ")[2].strip()
            wait_for("both runs", lambda: len(tags(url)) == 2 or (tmp_path / "stderr").read_text(), END_S)
            assert (tmp_path / "stderr").read_text() == ""
            name = next(tag for tag in tags(url) if tag.startswith("curves-of-second"))
            step = wait_for("a step of the one that runs", lambda: last_step(url, name) + 1, END_S)
            wait_for("later steps", lambda: last_step(url, name) + 1 > step, END_S)
            (tmp_path / "finish").touch()
            assert ended(application, END_S)["final_status"] == "SUCCEEDED"
        finally:
            board.terminate()
            assert board.wait(60) == 0
    assert not list(Path(os.environ["DLAPP_LOCAL_STATE_DIR"]).glob("**/sessions/shell-*"))


@contextmanager
def forwarded_port(application: str, port: int) -> Iterator[int]:
    """Bring a port of its program here by dlapp-port; yield the local port."""
    command = [str(BIN / "dlapp-port"), application, "worker", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            assert line.startswith("127.0.0.1:"), "".join((line, *program.communicate()))
            yield int(line.removeprefix("127.0.0.1:").split()[0])
        finally:
            program.kill()


def test_a_browser_shows_it_and_by_dlapp_port_too(engine: Engine, tmp_path: Path, browser: Browser) -> None:
    application = launch(file_of(tmp_path, engine, "tensorboard=true\n"))
    url = urllib.parse.urlsplit(board_url(application))
    assert url.port is not None
    wait_for("a step", lambda: last_step(url.geturl(), "run") > 0, END_S)
    with forwarded_port(application, url.port) as local:
        pages = [f"http://127.0.0.1:{local}{url.path}"]
        if engine.name == "local":
            pages.append(url.geturl())
        for page in pages:
            browser.open(f"{page}#timeseries")
            wait_for("its page", lambda: "loss" in browser.text(), END_S)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"http://127.0.0.1:{local}/")
    if engine.name == "yarn":
        # YARN's proxy leads to the ApplicationMaster alone, and everybody reaches it: the page names no secret path.
        browser.open(status(application)["tracking_url"])
        wait_for("the application's page", lambda: "curves of out" in browser.text(), END_S)
        assert url.path.strip("/") not in str(browser.value("document.documentElement.outerHTML"))
    (tmp_path / "finish").touch()
    assert ended(application, END_S)["final_status"] == "SUCCEEDED"
