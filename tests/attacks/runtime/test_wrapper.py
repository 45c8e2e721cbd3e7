"""A program in a container that kills the wrapper's watcher, so that the lifeline's end is heard by nobody.

It has the same user and sees the same processes, so this cannot be kept from it. What then holds: its task ends it by
Docker; without its task it lives on, its container says whose it is, and the next one of this user here removes it.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.runtime.driver import Driven, has_holder, place, wait_until
from tests.services.containers.dockerd import IMAGE, Dockerd, dockerd

__all__ = ["dockerd", "place"]

pytestmark = pytest.mark.docker

KILL_THE_WATCHER = """
for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    case $pid in 1 | $PPID | $$) ;; *) kill -9 $pid && echo killed the watcher ;; esac
done
exec 3<&-
sleep MARKER
"""


@pytest.fixture
def hostile(place: Path, dockerd: Dockerd) -> Generator[Driven, None, None]:
    """A payload that has killed its watcher, and closed what it had of the lifeline."""
    driven = Driven(place, as_user=False)
    try:
        driven.run(KILL_THE_WATCHER, image=IMAGE, docker_host=dockerd.host, docker_lock_dir=str(place))
        driven.hear("started")
        driven.wait_for_out(b"killed the watcher\n")
        wait_until(lambda: bool(driven.payload_pids()), "it goes on")
        yield driven
    finally:
        driven.close()


@pytest.mark.proves("wrapper")
def test_its_task_ends_it_by_docker(hostile: Driven, dockerd: Dockerd) -> None:
    hostile.order("kill")
    assert hostile.end()["signal"] == signal.SIGKILL
    assert hostile.payload_pids() == []
    assert dockerd.containers() == []


@pytest.mark.proves("wrapper")
def test_without_its_task_there_is_evidence_of_it_until_the_next_container_here_ends_it(
    hostile: Driven, dockerd: Dockerd, tmp_path: Path
) -> None:
    assert hostile.process is not None
    hostile.process.kill()
    hostile.process.wait()
    assert hostile.payload_pids(), "nobody ends it at once"
    # Its GPUs stay its own: the wrapper reads the lifeline, and the container has its label.
    assert has_holder(str(hostile.home / "life"))
    assert len(dockerd.containers("label=dlapp.container", "status=running")) == 1
    (tmp_path / "next").mkdir()
    after = Driven(tmp_path / "next", as_user=False)
    try:
        after.run("exit 0", image=IMAGE, docker_host=dockerd.host, docker_lock_dir=str(tmp_path))
        assert after.end()["code"] == 0
    finally:
        after.close()
    assert hostile.payload_pids() == []
    assert dockerd.containers() == []
