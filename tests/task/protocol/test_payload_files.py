"""Tasks whose payloads use the files in DLAPP_DIR: real processes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault, PayloadStatus, Phase, Stop
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.task.fake_am import FakeAm, workspace_archive

WAITS = "\nwhile [ ! -e $TMPDIR/finish ]; do sleep 0.02; done\n"


def fake_am(place: Path, text: str, **assignment: Any) -> FakeAm:
    return FakeAm(place / "containers", **(workspace_archive(place, {"run.sh": text}) | assignment))


def last(am: FakeAm) -> PayloadStatus:
    """Return what was reported last of the payload."""
    reports = [report for report in sorted(am.reports, key=lambda one: one.number) if report.payload is not None]
    return reports[-1].payload or PayloadStatus() if reports else PayloadStatus()


REPORTS = """
echo '{"progress": 0.25}' >> "$DLAPP_REPORT"
echo '{"metrics": {"loss": 0.5}, "step": 3}' >> "$DLAPP_REPORT"
echo '{"ready": true}' >> "$DLAPP_REPORT"
"""


def test_reports_of_a_payload_reach_the_applicationmaster(place: Path) -> None:
    with fake_am(place, f"{REPORTS}{WAITS}echo '{{\"progress\": 1}}' >> $DLAPP_REPORT") as am:
        am.start()
        am.wait_until(lambda: last(am).ready)
        report = next(report for report in am.reports if report.payload is not None)
        assert (report.phase, report.progress) == (Phase.RUNNING, 0.25)
        assert last(am) == PayloadStatus(progress=0.25, metrics={"loss": 0.5}, step=3, ready=True, lines=3)
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE
        assert last(am) == PayloadStatus(progress=1.0, metrics={"loss": 0.5}, step=3, ready=True, lines=4)
        assert not (am.home / "run").exists()


@pytest.mark.docker
def test_in_docker_too(place: Path, dockerd: Dockerd) -> None:
    with fake_am(place, REPORTS, docker_image=IMAGE) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"))
        assert am.result().fault is Fault.NONE, am.log()
        assert last(am) == PayloadStatus(progress=0.25, metrics={"loss": 0.5}, step=3, ready=True, lines=3)


def test_a_payload_without_reports_has_no_status(place: Path) -> None:
    with fake_am(place, "true") as am:
        am.start()
        assert am.result().fault is Fault.NONE
        assert all(report.payload is None for report in am.reports)


ATTACKS = {
    "fifo": "rm $DLAPP_REPORT; mkfifo $DLAPP_REPORT",
    "link": "ln -sf /etc/shadow $DLAPP_REPORT",
    "directory": "rm $DLAPP_REPORT; mkdir $DLAPP_REPORT",
    "sparse file": "truncate -s 10G $DLAPP_REPORT",
    "no directory": "rm -r $DLAPP_DIR",
    "other directory": "cd $HOME; mv $DLAPP_DIR $TMPDIR/away; mkdir other; touch other/file; ln -s other $DLAPP_DIR",
    "closed directory": "chmod 0 $DLAPP_DIR",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_payload_that_spoils_its_files_only_loses_its_reports(place: Path, attack: str) -> None:
    with fake_am(place, f"{ATTACKS[attack]}; echo done{WAITS}") as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"done\n")
        am.wait_until(lambda: "directory" in attack or "$DLAPP_REPORT: " in am.log())
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE
        assert last(am) == PayloadStatus()
        assert "root:" not in am.log()
        assert attack != "other directory" or (am.home / "other" / "file").exists()
        assert len([line for line in am.log().splitlines() if "$DLAPP_REPORT" in line]) <= 3


@pytest.mark.slow
def test_a_payload_of_100_000_lines_a_second_loads_its_task_little(place: Path) -> None:
    text = "python3 -c '\n" + (
        "import os, time\n"
        'out = open(os.environ["DLAPP_REPORT"], "ab", 0)\n'
        "began = time.monotonic()\n"
        "for n in range(300):\n"
        '    out.write(b"".join(b"{\\"step\\": %d}\\n" % (1000 * n + k) for k in range(1000)))\n'
        "    time.sleep(max(0, began + (n + 1) / 100 - time.monotonic()))\n'"
    )
    with fake_am(place, text + WAITS) as am:
        began_s = time.monotonic()
        am.start()
        am.wait_until(lambda: last(am).step == 299_999)
        assert am.task is not None
        fields = Path(f"/proc/{am.task.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        assert cpu_s < 2.0, f"the task used {cpu_s} s"
        assert len(am.reports) < 20 + 10 * (time.monotonic() - began_s)
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE


LOOKS_FOR_STOP = """
trap '' TERM
echo ready
until [ -e "$DLAPP_STOP" ]; do sleep 0.02; done
cat "$DLAPP_STOP"
"""


def test_a_stopped_payload_gets_the_reason_and_the_deadline(place: Path) -> None:
    with fake_am(place, LOOKS_FOR_STOP) as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        before_ms = time.time() * 1000
        am.order(stop=Stop.SOFT, grace_s=30.0, why="soft-killed by tony", reason="soft_killed")
        assert am.result().fault is Fault.STOPPED
        content = json.loads(am.printed().decode().removeprefix("ready\n"))
        assert before_ms + 29_000 < content.pop("deadline_ms") < time.time() * 1000 + 30_000
        assert content == {"reason": "soft_killed", "message": "soft-killed by tony"}


@pytest.mark.docker
def test_in_docker_a_stopped_payload_gets_reason_and_deadline_too(place: Path, dockerd: Dockerd) -> None:
    with fake_am(place, LOOKS_FOR_STOP, docker_image=IMAGE) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.order(stop=Stop.SOFT, grace_s=30.0, why="soft-killed by tony", reason="soft_killed")
        assert am.result().fault is Fault.STOPPED
        assert json.loads(am.printed().decode().removeprefix("ready\n"))["reason"] == "soft_killed"


@pytest.mark.parametrize("spoil", ["mkdir $DLAPP_STOP", "ln -s $HOME/victim $DLAPP_STOP", "rm -r $DLAPP_DIR"])
def test_a_payload_that_replaces_the_stop_file_is_stopped_too(place: Path, spoil: str) -> None:
    with fake_am(place, f"{spoil}; trap 'exit 3' TERM; echo ready{WAITS}") as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.stop(Stop.SOFT, grace_s=30.0)
        assert (am.result().fault, am.result().exit_code) == (Fault.STOPPED, 3)
        assert not (am.home / "victim").exists()


USES_CONTEXT = """
import dlapp_context
assert dlapp_context.__file__.endswith("python/dlapp_context.py"), dlapp_context.__file__
dlapp_context.metrics(step=7, loss=0.5)
dlapp_context.progress(0.75)
dlapp_context.ready()
print(dlapp_context.should_stop(), dlapp_context.resume_from(), dlapp_context.roster())
"""


def test_a_python_program_imports_the_module_and_its_own_modules_come_first(place: Path) -> None:
    files: dict[str, str | bytes] = {"run.sh": f"python3 -c '{USES_CONTEXT}'; echo $PYTHONPATH"}
    with FakeAm(place / "containers", **workspace_archive(place, files)) as am:
        am.start(env={"PYTHONPATH": "/mine:/other"})
        assert am.result().fault is Fault.NONE
        assert am.printed().decode() == f"False None None\n/mine:/other:{am.home}/python\n"
        assert last(am) == PayloadStatus(progress=0.75, metrics={"loss": 0.5}, step=7, ready=True, lines=3)
        assert not (am.home / "python").exists()


@pytest.mark.docker
def test_the_module_is_in_a_container_read_only(place: Path, dockerd: Dockerd) -> None:
    text = "echo $PYTHONPATH; cat /dlapp/python/dlapp_context.py | head -1; echo x >> /dlapp/python/dlapp_context.py"
    with fake_am(place, text, docker_image=IMAGE) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"))
        assert am.result().exit_code != 0
        first = Path("dlapp/context.py").read_text().splitlines()[0]
        assert am.printed().decode() == f"/dlapp/python\n{first}\n"
        assert b"ead-only file system" in (am.home / "stderr").read_bytes()


HANGS = """
import threading, time
def waits_for_ever(): time.sleep(600)
threading.Thread(target=waits_for_ever, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_payload_that_hangs_dumps_its_stacks_and_has_failed(place: Path) -> None:
    with fake_am(place, f"ulimit -S -c; python3 -c '{HANGS}'; echo after", hang_timeout_s=60.0) as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"0\nready\n")
        am.order(abort="no report for 60 s (hang_timeout)")
        ended = am.result()
        assert (ended.fault, ended.signal) == (Fault.USER, 6)
        assert ended.message == "no report for 60 s (hang_timeout); stderr has the stacks of its Python threads"
        assert "in waits_for_ever" in (am.home / "stderr").read_text()
        assert ended.diagnosis is not None
        assert ended.diagnosis.rule == "hang"


KEEPS_SIGABRT = """
import faulthandler, os, signal, time
faulthandler.disable()
signal.signal(signal.SIGABRT, lambda *_: os._exit(9))
def waits_in(name):
    os.write(1, b"ready\\n")  # in one piece, beside the other process
    time.sleep(600)
waits_in("parent" if os.fork() else "child")
"""


def test_py_spy_shows_the_stacks_of_all_processes_before_sigabrt(place: Path) -> None:
    with fake_am(place, f"exec python3 -c '{KEEPS_SIGABRT}'", hang_timeout_s=60.0) as am:
        am.start()  # by the Python of the tests, which has py-spy
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\nready\n")
        am.order(abort="no report for 60 s (hang_timeout)")
        assert (am.result().fault, am.result().exit_code) == (Fault.USER, 9)
        printed = (am.home / "stderr").read_text()
        if "no stacks of process" in (am.home / "dlapp.log").read_text():
            pytest.skip("this process may not trace others here")
        assert printed.count("waits_in (<string>") == 2
        assert "SIGABRT" in (am.home / "dlapp.log").read_text()


@pytest.mark.docker
def test_in_docker_a_payload_that_hangs_is_ended_by_sigabrt(place: Path, dockerd: Dockerd) -> None:
    text = "trap 'echo aborted; exit 9' ABRT; echo ready; while :; do sleep 0.1; done"
    with fake_am(place, text, docker_image=IMAGE, hang_timeout_s=60.0) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.order(abort="no report for 60 s (hang_timeout)")
        ended = am.result()
        assert (ended.fault, ended.exit_code) == (Fault.USER, 9)
        assert am.printed() == b"ready\naborted\n"
