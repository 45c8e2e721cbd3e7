"""dlapp-run's two ends: the sh script inside, and the server outside, with a program in the place of the launcher."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dlapp.client.shell.server import MAX_REQUESTS, ShellRequestServer, install
from tests.applications import wait_for

LAUNCHER = """
case $1 in
--wait) echo "DL App ID = application_1_0001"; exec sleep 30 ;;
--cluster) printf 'one\\n\\n  two  \\\\n  \\nlast, cut'; echo oops >&2; exit 9 ;;
--json) i=0; while [ $i -lt 5000 ]; do echo "line $i ${LONG}"; i=$((i+1)); done ;;
esac
"""
Ask = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dlapp.client.shell.server.READER_TIMEOUT_S", 120.0)
    place = tmp_path / "room"
    place.mkdir()
    install(str(place))
    return place


@pytest.fixture
def server(room: Path) -> Iterator[ShellRequestServer]:
    with ShellRequestServer(
        str(room), ["/bin/sh", "-c", LAUNCHER, "sh"], {**os.environ, "LONG": "x" * 100}, "/"
    ) as server:
        yield server


@pytest.fixture(params=["dash", "bash", "busybox"])
def ask(request: pytest.FixtureRequest, room: Path) -> Ask:
    if (shell := shutil.which(request.param)) is None:
        pytest.skip(f"no {request.param} on this machine")
    shell_words = [shell, "sh"] if request.param == "busybox" else [shell]

    def ask(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*shell_words, room / "shared" / "bin" / "dlapp-run", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DLAPP_SHELL_DIR": str(room / "shared")},
        )

    return ask


@pytest.mark.usefixtures("server")
def test_both_streams_and_the_exit_code_arrive(ask: Ask) -> None:
    out, err = (one := ask("--cluster")).communicate()
    assert (out, err, one.returncode) == ("one\n\n  two  \\n  \nlast, cut\n", "oops\n", 9)


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_many_lines_arrive_whole_and_in_order_for_each_of_several_at_once(ask: Ask, room: Path) -> None:
    with contextlib.ExitStack() as ended:
        asked = [ended.enter_context(ask("--json")) for _ in range(3)]
        for item in asked:
            out, err = item.communicate()
            assert (err, item.returncode) == ("", 0)
            assert out.splitlines() == [f"line {number} {'x' * 100}" for number in range(5000)]
    wait_for(
        "the replies are cleared", lambda: sorted(os.listdir(room / "shared")) == ["bashrc", "bin", "life", "requests"]
    )


@pytest.mark.usefixtures("server")
def test_ctrl_c_inside_interrupts_outside(ask: Ask, room: Path) -> None:
    one = ask("--wait")
    assert one.stdout is not None
    assert one.stdout.readline() == "DL App ID = application_1_0001\n"
    # A shell that is about to read would look for signals after that only.
    wait_for("it reads", lambda: Path(f"/proc/{one.pid}/stat").read_text().rpartition(") ")[2].startswith("S"))
    one.send_signal(signal.SIGINT)
    _, err = one.communicate()
    assert one.returncode == 130
    assert err.startswith("Detached: application_1_0001 continues")
    assert err.index("dlapp-softkill application_1_0001") < err.index("dlapp-kill application_1_0001")
    wait_for(
        "the reply is cleared", lambda: sorted(os.listdir(room / "shared")) == ["bashrc", "bin", "life", "requests"]
    )


def test_a_closing_server_ends_its_waiting_clients(ask: Ask, room: Path) -> None:
    with ShellRequestServer(str(room), ["/bin/sh", "-c", LAUNCHER, "sh"], os.environ, "/"):
        one = ask("--wait")
        assert one.stdout is not None
        one.stdout.readline()
    _, err = one.communicate()
    assert (err, one.returncode) == ("Error: dlapp-shell ended before it could answer\n", 5)


def test_a_process_that_is_about_to_start_is_not_taken_for_the_reader(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starting() -> None:
        while not is_over.is_set():
            # Between fork and exec a process has all descriptors of this one; this makes that time longer.
            subprocess.run(["/bin/true"], preexec_fn=lambda: time.sleep(0.02), check=True)

    def changed_ns() -> int:
        return shared.stat().st_mtime_ns

    def is_withdrawn(before_ns: int) -> bool:
        return changed_ns() > before_ns and not list(shared.glob("reply.*"))

    monkeypatch.setattr("dlapp.client.shell.server.READER_TIMEOUT_S", 0.2)
    shared, is_over = room / "shared", threading.Event()
    threads = [threading.Thread(target=starting) for _ in range(2)]
    with ShellRequestServer(str(room), ["/bin/sh", "-c", 'touch "$0"', str(room / "served")], os.environ, "/"):
        for thread in threads:
            thread.start()
        try:
            for first in range(0, 40, MAX_REQUESTS):
                before = changed_ns()
                for number in range(first, first + MAX_REQUESTS):
                    (shared / "requests").write_bytes(b"%d\n" % number)
                wait_for(
                    "replies were offered and are withdrawn",
                    partial(is_withdrawn, before),
                )
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    assert not (room / "served").exists()


def test_words_arrive_as_they_are(ask: Ask, room: Path) -> None:
    words = ("a b", "", "x;y", "%", "%41", "*", "'", '"', "\\", "$HOME", "`", "--", "".join(map(chr, range(32, 127))))
    with ShellRequestServer(str(room), ["/bin/sh", "-c", 'printf "<%s>\\n" "$@"', "sh"], os.environ, "/"):
        out, err = (one := ask(*words)).communicate()
    assert (out.splitlines(), err, one.returncode) == ([f"<{word}>" for word in words], "", 0)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("word", "message"), [("한", "printable ASCII"), ("a\nb", "printable ASCII"), ("x" * 4000, "too long")]
)
def test_words_that_a_request_cannot_have_are_refused_inside(ask: Ask, word: str, message: str) -> None:
    one = ask(word)
    out, err = one.communicate()
    assert (out, one.returncode) == ("", 2)
    assert message in err


@pytest.mark.parametrize("text", [b"1 %0A", b"1 a\tb", b"1 %C3", b"1 a%", b"1 %a0", b"1 a;b", b"1x a", b"1 %7F"])
def test_a_request_with_a_wrong_secret_is_not_served(room: Path, text: bytes) -> None:
    with ShellRequestServer(str(room), ["/bin/sh", "-c", 'touch "$0"', str(room / "served")], os.environ, "/"):
        (room / "shared" / "requests").write_bytes(text + b"\n")
        # One after it is served, so the first one was passed over.
        os.mkfifo(room / "reply")
        (room / "shared" / "requests").write_bytes(b"7\n")
        wait_for("the answer to the next", (room / "shared" / "reply.7").exists)
        assert sorted(name for name in os.listdir(room / "shared") if name.startswith("reply")) == ["reply.7"]


def test_outside_of_a_shell_the_script_fails_with_a_message(ask: Ask, room: Path) -> None:
    (room / "shared" / "requests").unlink()
    one = ask()
    _, err = one.communicate()
    assert one.returncode == 2
    assert err == "Error: dlapp-run works inside dlapp-shell only (outside it is: dlapp-launcher FILE)\n"
