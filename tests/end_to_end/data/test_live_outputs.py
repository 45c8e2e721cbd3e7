"""Live copies of outputs (``sync``) by whole applications. tests/storage/test_live_copies.py has the rest."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from dlapp.errors import NotFound
from tests.applications import ended, launch, properties, run, wait_for
from tests.engines import Engine, on_yarn_when_full


@on_yarn_when_full
@pytest.mark.slow
def test_live_copies_stay_after_a_kill_and_are_removed_at_the_commit(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        'mkdir -p output/deep; echo "first $CONTAINER_INDEX" >output/deep/log\n'
        f"until [ -e {go} ]; do sleep 0.05; done\n"
        'echo "second $CONTAINER_INDEX" >output/deep/log; echo last >output/last'
    )
    first = [("deep/log", "first 0\n"), ("deep/log", "first 1\n")]
    output = {"output_path": "output", "hdfs": f"{engine.root}/out", "sync": "1s"}
    file = properties(tmp_path, script, resources={"containers": 2}, to_hdfs=output)

    def copied(copies: str) -> list[tuple[str, str]]:
        """Name below the directory of its container, and content, of each file."""
        return sorted((name.partition("/")[2], content) for name, content in engine.tree(copies).items())

    def started() -> tuple[str, str]:
        """Start it, and wait for its live copies."""
        application = launch(file)
        copies = f"out.live/{application}.live"

        def is_copied() -> bool:
            with contextlib.suppress(NotFound, OSError):  # a copy gets its name
                return copied(copies) == first
            return False

        wait_for("the live copies", is_copied)
        return application, copies

    killed, kept_application = started()
    assert "out" not in engine.names(""), "the target is there before the end"
    done = run("dlapp-kill", killed)
    assert done.code == 0, done.err
    assert ended(killed)["state"] == "KILLED"
    wait_for("the end of its processes", lambda: not engine.processes(killed))
    assert copied(kept_application) == first

    finished, _ = started()
    go.touch()
    view = ended(finished)
    assert view["cause"] == "succeeded", view["diagnostics"]
    assert engine.tree("out") == {
        f"{index}/{name}": content
        for index in range(2)
        for name, content in (("deep/log", f"second {index}\n"), ("last", "last\n"))
    }
    # What was killed wrote is its user's to remove.
    assert engine.beside("out") == ["out.live"]
    assert engine.names("out.live") == [f"{killed}.live"]
    assert copied(kept_application) == first
