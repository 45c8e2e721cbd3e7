"""Following the output of an application whose ApplicationMaster and ResourceManager are killed and come back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.applications import BIN, launch, properties, run, status, wait_for
from tests.engines import Engine

END_S = 120.0


@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.slow
def test_a_follower_reads_each_line_once_over_restarts_of_both_managers(engine: Engine, tmp_path: Path) -> None:
    """The NodeManagers collect logs of running applications each 3 s, of those that ask for it, and then remove them:
    dlapp does not ask. When the application has ended, its collected log has each line once, too."""
    hadoop, go = engine.hadoop, tmp_path / "go"
    assert hadoop is not None
    script = f"i=0; until [ -e {go} ]; do echo $i; i=$((i+1)); sleep 0.2; done; echo end $i"
    application = launch(properties(tmp_path, script))
    out = tmp_path / "out"
    words = [str(BIN / "dlapp-logs"), "-f", "--stdout", application]
    with open(out, "wb") as file, open(tmp_path / "err", "wb") as errors:
        follower = subprocess.Popen(words, stdout=file, stderr=errors, stdin=subprocess.DEVNULL)

    def lines() -> list[str]:
        return out.read_text().splitlines()

    def grows() -> None:
        count = len(lines())

        def is_more() -> bool:
            assert follower.poll() is None, (tmp_path / "err").read_text()
            return len(lines()) > count

        wait_for("more lines", is_more, END_S)

    try:
        grows()
        engine.kill_master(application)
        grows()
        wait_for("the next attempt", lambda: status(application)["attempt"] == 2, END_S)
        hadoop.kill_part("rm")
        try:
            grows()
        finally:
            # The cluster is shared: whatever happened, the next test finds it whole.
            hadoop.start_part("rm")
            hadoop.wait_until_ready()
        grows()
        assert follower.poll() is None
        go.touch()
        assert follower.wait(END_S) == 0, (tmp_path / "err").read_text()
    finally:
        follower.kill()
        follower.wait()
    *seen, last = lines()
    assert seen == [f"[0] {number}" for number in range(len(seen))]
    assert last == f"[0] end {len(seen)}"
    assert "succeeded" in (tmp_path / "err").read_text()
    assert "The logs will be aggregated every 3 seconds" in hadoop.log("nm1")
    report = f"{hadoop.rm_url}/ws/v1/cluster/apps/{application}"
    wait_for("its collected log", lambda: hadoop.get(report)["app"]["logAggregationStatus"] == "SUCCEEDED", END_S)
    assert run("dlapp-logs", "--stdout", application).out.splitlines() == lines()
