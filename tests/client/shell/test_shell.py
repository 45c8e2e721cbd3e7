"""dlapp-shell's input by way of the node's cache."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.applications import BIN, Done, properties, run


def shell(file: Path, script: str, *args: str) -> Done:
    """Run ``script`` in a shell without a terminal."""
    command: list[str | Path] = [BIN / "dlapp-shell", *args, file]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=120)
    return Done(done.returncode, done.stdout, done.stderr)


def cache_entries() -> list[dict[str, object]]:
    return list(json.loads(run("dlapp-cache", "list", "--json").out)["entries"])


@pytest.mark.slow
def test_input_fetched_by_a_shell_is_shared_read_only_with_later_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    source = tmp_path / "data"
    source.write_text("the old\n")
    # A file of this machine by way of fsspec, which takes the path as relative to "/": as good as one from elsewhere.
    location = f"local:/{source}"
    section = {"hdfs": location, "input_path": "in"}
    first, second, third = (
        properties(tmp_path, "cat in/data", name=name, from_hdfs=section) for name in ("first", "second", "third")
    )
    done = shell(first, "cat in/data; echo mine > in/data\n")
    assert (done.code, done.out) == (0, "the old\n"), done.err
    assert [(item["source"], item["use"]) for item in cache_entries()] == [(location, "")]
    time_ns = source.stat().st_mtime_ns
    source.write_text("changed\n")
    os.utime(source, ns=(time_ns, time_ns))  # looks the same, so whoever has the old one did not fetch
    done = shell(second, "cat in/data\n")
    assert (done.code, done.out) == (0, "the old\n"), done.err
    assert "of that, on this node already: 1 files, 8 bytes" in done.err
    waited = run("dlapp-launcher", "--wait", third)
    assert waited.code == 0, waited.err
    assert run("dlapp-logs", "--container", "0", "--stdout").out == "the old\n"
