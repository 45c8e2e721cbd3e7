"""dlapp-cache, on a cache with three entries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dlapp.client.machine.input_cache import cache_directory
from dlapp.config import load_config
from dlapp.doctor.run import checks
from dlapp.storage.cache.entry import CacheKeySource, CacheLocation
from dlapp.storage.cache.payload import PayloadCaches
from dlapp.storage.cache.store import CacheHold, InputCache
from dlapp.storage.values import Progress, TreeNode
from tests.applications import run
from tests.services.users import interpreter_for_everybody

ROOT = Path(__file__).parents[2]
SOURCES = [f"hdfs://nn/data/{name}" for name in ("train", "test", "labels")]


class Machine:
    """A machine with a cache, and three entries in it, used in this order."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        now_s = 1_700_000_000
        self.cache = InputCache(CacheLocation(self.directory, 1 << 30, 86400.0), clock_ns=lambda: now_s * 10**9)
        self.keys = {}
        for number, source in enumerate(SOURCES):
            now_s += 1
            name = source.rpartition("/")[2]
            wanted = CacheKeySource(source, ((name, [TreeNode(source, "", 0o100644, 10 * number, 5)]),))

            def fetch(into: str, _: Progress | None, name: str = name, size: int = 10 * number) -> None:
                Path(into, name).write_bytes(bytes(size))
                os.utime(Path(into, name), ns=(5, 5))

            held = self.cache.hold(wanted, fetch)
            assert held is not None
            held.close()
            self.keys[source] = held.key
            self._last = wanted, fetch

    def hold_last(self) -> CacheHold:
        """Hold the last entry."""
        held = self.cache.hold(*self._last)
        assert held is not None
        return held

    def run(self, *words: str, python: str = sys.executable, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "dlapp.tools", "cache", *words, "--directory", self.directory]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=ROOT, **options)

    def sources(self) -> list[str]:
        return [entry.source for entry in self.cache.entries()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "cache")


def test_list_shows_entries_least_recently_used_first(machine: Machine) -> None:
    machine.cache.pin(machine.keys[SOURCES[1]])
    held = machine.hold_last()
    done = machine.run("list")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["ENTRY", "SIZE", "FILES", "LAST", "USED", "STATE", "SOURCE"]
    assert [line.split()[-1] for line in lines] == SOURCES
    assert "pinned" in lines[1]
    assert "in use" in lines[2]
    assert lines[2].startswith(machine.keys[SOURCES[2]][:12])
    assert "20 bytes" in lines[2]
    assert done.stderr.startswith("3 entries, ")
    held.close()


def test_list_as_json_has_every_field(machine: Machine) -> None:
    content = json.loads(machine.run("list", "--json").stdout)
    assert (content["directory"], content["limit_bytes"]) == (machine.directory, 20 << 30)
    fields = ["key", "source", "size_bytes", "room_bytes", "files", "fetched_ms", "used_ms", "pinned", "use"]
    assert list(content["entries"][0]) == fields
    page = (ROOT / "docs" / "json.md").read_text()
    assert [name for name in fields if f"`{name}`" not in page] == []


def test_clear_keeps_pinned_and_used_entries_with_a_message(machine: Machine) -> None:
    machine.cache.pin(machine.keys[SOURCES[0]])
    held = machine.hold_last()
    done = machine.run("clear")
    assert done.returncode == 0
    assert "hdfs://nn/data/test: removed, 10 bytes" in done.stdout
    assert "train: kept, it is pinned" in done.stderr
    assert "labels: kept, it is in use" in done.stderr
    assert machine.sources() == [SOURCES[0], SOURCES[2]]
    held.close()


def test_clear_of_named_entries_removes_pinned_ones_and_fails_for_used_ones(machine: Machine) -> None:
    machine.cache.pin(machine.keys[SOURCES[0]])
    held = machine.hold_last()
    done = machine.run("clear", SOURCES[0], machine.keys[SOURCES[2]][:12], "--json")
    assert done.returncode == 1
    content = json.loads(done.stdout)
    assert content["removed"] == [machine.keys[SOURCES[0]]]
    assert [item["why"] for item in content["kept"]] == ["in use"]
    assert machine.sources() == SOURCES[1:]
    held.close()


def test_pin_and_unpin(machine: Machine) -> None:
    key = machine.keys[SOURCES[1]]
    assert machine.run("pin", SOURCES[1]).stdout == f"{key[:12]}  {SOURCES[1]}: pinned\n"
    assert [entry.pinned for entry in machine.cache.entries()] == [False, True, False]
    assert json.loads(machine.run("unpin", key, "--json").stdout) == {"directory": machine.directory, "entries": [key]}
    assert not any(entry.pinned for entry in machine.cache.entries())


def test_caches_of_programs_are_listed_and_removed_by_name(state_dir: Path) -> None:
    assert "programs" not in json.loads(run("dlapp-cache", "list", "--json").out)
    (machine,) = state_dir.iterdir()
    caches = PayloadCaches(CacheLocation(str(machine / "cache" / str(os.geteuid()) / "payload"), 1 << 30, 86400.0))
    for name in ("models", "pip"):
        (Path(caches.hold(name)) / "x").write_bytes(bytes(5000))
    shown = run("dlapp-cache", "list")
    assert [line.split()[0] for line in shown.out.splitlines()] == ["ENTRY", "cache.models", "cache.pip"]
    assert shown.out.count("  -      ") == shown.out.count("in use  programs") == 2
    assert f" of 50.0 GiB, in {caches.place.directory}\n" in shown.err
    content = json.loads(run("dlapp-cache", "list", "--json").out)["programs"]
    assert (content["directory"], content["limit_bytes"]) == (caches.place.directory, 50 << 30)
    fields = ["name", "size_bytes", "used_ms", "in_use"]
    assert [list(cache) for cache in content["caches"]] == [fields, fields]
    page = (ROOT / "docs" / "json.md").read_text()
    assert [name for name in fields if f"`{name}`" not in page] == []
    cleared = run("dlapp-cache", "clear", "cache.pip")
    assert (cleared.code, cleared.out, cleared.err) == (1, "", "cache.pip  programs: kept, it is in use\n")
    caches.close()
    assert run("dlapp-cache", "clear").code == 0
    assert [entry.name for entry in caches.entries()] == ["models", "pip"]
    removed = run("dlapp-cache", "clear", "cache.pip")
    assert (removed.code, removed.out.partition(",")[0]) == (0, "cache.pip  programs: removed")
    assert [entry.name for entry in caches.entries()] == ["models"]
    for words, code, message in (
        (("clear", "cache.pip"), 3, "cache.pip: there is no such cache (dlapp-cache list shows them)"),
        (("pin", "cache.models"), 2, "cache.models: only input can be pinned"),
    ):
        refused = run("dlapp-cache", *words)
        assert (refused.code, refused.err) == (code, f"Error: {message}\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("pin", "hdfs://nn/nothing"), 3, "no such entry"),
        (("pin",), 2, "dlapp-cache list shows"),
        (("list", "x"), 2, "takes no ENTRY"),
        (("list", "--directory", "/nowhere"), 3, "no cache of input"),
    ],
)
def test_invalid_requests_give_one_line_and_an_exit_code(
    machine: Machine, words: tuple[str, ...], code: int, message: str
) -> None:
    command = [sys.executable, "-m", "dlapp.tools", "cache", "--directory", machine.directory, *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=ROOT)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.root
def test_another_users_cache_is_denied(machine: Machine, tmp_path: Path) -> None:
    top = Path(tempfile.gettempdir())
    ours = [path for path in tmp_path.parents if top in path.parents]
    for path in (*ours, tmp_path, Path(machine.directory)):
        path.chmod(0o755)
    os.chmod(Path(machine.directory, "entries"), 0o755)
    home = tmp_path / "nobody"
    home.mkdir()
    os.chown(home, 65534, 65534)
    done = machine.run(
        "list",
        python=str(interpreter_for_everybody()),
        env={**os.environ, "HOME": str(home), "DLAPP_LOCAL_STATE_DIR": str(home / "state"), "PYTHONPATH": str(ROOT)},
        user=65534,
        group=65534,
    )
    assert done.returncode == 4, done
    assert "cannot be used as a cache" in done.stderr


@pytest.mark.parametrize(("limit", "verdict"), [("1m", "pass"), ("900000g", "warn")])
def test_the_doctor_reports_cache_size_and_space_for_the_limit(tmp_path: Path, limit: str, verdict: str) -> None:
    config = load_config({"local.state_dir": str(tmp_path), "storage.cache_limit": limit})
    (found,) = [item for check in checks(config) if check.subject == "storage.cache" for item in check.run()]
    assert found.verdict == verdict
    assert found.found.startswith("0 entries, 0 bytes of ")


def test_without_a_directory_the_cache_of_this_machine_is_used(tmp_path: Path) -> None:
    config = load_config({"local.state_dir": str(tmp_path)})
    assert cache_directory(config, str(tmp_path / "id")) == str(tmp_path / "id" / "cache" / str(os.geteuid()) / "input")
