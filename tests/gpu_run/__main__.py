"""The prepared run on a machine with GPUs: python3 -m tests.gpu_run [WHEEL ...], or make test-gpu.

It needs Python 3.11, this source tree and dlapp's libraries, installed or as wheels, which are unpacked for the run
alone; no pytest, no network, no Docker, not root. It uses one idle GPU, which it leases in the machine's own ledger
where there is one, and takes at most six minutes. It changes no mode, clock, limit or layout, and resets nothing.

    --stub         against the stub of NVML (needs a C compiler); so also where NVML shows no GPU
    --only IDS     these checks alone, as B03,B07 (and the first and the last one)
    --without IDS  all but these
    --limit S      less time than 330 s for the checks
    --results DIR  where results.json and results.md are written; by default .cache/test-gpu
    --record FILE  also write NVML's raw answers (tests/gpu_run/nvml_answers.py has the format)

One line for each check. The exit code is 1 if a check has failed, and 2 if the run cannot begin.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.gpu_run.results import (
    CHECKS_S,
    FAIL,
    SKIP,
    Budget,
    Check,
    Entry,
    Failed,
    Result,
    Skipped,
    exit_code,
    results_json,
    results_table,
    summary,
    without_cuda,
)
from tests.gpu_run.workplace import VARIABLE, Workplace, environment, stub_device

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("click", "h11", "pathspec", "yaml", "rich", "pynvml")
"""What dlapp imports for an application on one machine; the others are for clusters and Docker."""
HOLD_S = 60.0
"""Time limit of the search for an idle GPU: initialising eight without persistence mode takes ten seconds and more."""
CLEAN_S = 15.0
"""Time limit of each command after a failed check: the driver may hang [s]."""
NO_CUDA_OF_STUB = "the stub of NVML answers"


class CannotBegin(Exception):
    """Reason why the run cannot begin; the text says what to do."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="make test-gpu", description="Check dlapp on a machine with NVIDIA GPUs.")
    parser.add_argument("wheels", nargs="*", type=Path, help="wheels of libraries that are not installed")
    parser.add_argument("--stub", action="store_true", help="use the stub of NVML")
    parser.add_argument("--only", default="", metavar="IDS", help="run these checks alone")
    parser.add_argument("--without", default="", metavar="IDS", help="leave these checks out")
    parser.add_argument("--limit", type=float, default=CHECKS_S, metavar="S", help="time for the checks [s]")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache" / "test-gpu", help="directory of results")
    parser.add_argument("--record", type=Path, default=None, metavar="FILE", help="write NVML's raw answers")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Prepare the run and become it, or do it where that is done already."""
    asked = arguments(argv)
    try:
        if place := os.environ.get(VARIABLE):
            return run(asked, Path(place))
        begin(asked, argv)
    except CannotBegin as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


# ---- the beginning ----


def begin(asked: argparse.Namespace, argv: Sequence[str]) -> NoReturn:
    """Make the directory of the run, and execute this program again in its environment.

    The loader of libraries reads its variables once, when a process starts, so a process cannot change what NVML is.
    """
    directory = Path(tempfile.mkdtemp(prefix="dlapp-gpu-run-"))
    try:
        directory.chmod(0o755)
        for name in ("state", "home", "tmp", "site", "stub"):
            (directory / name).mkdir()
        for name in ("dlapp", "tests"):
            (directory / "site" / name).symlink_to(ROOT / name)
        for wheel in asked.wheels:
            unpack(wheel, directory / "site")
        stub = asked.stub or not has_nvml(directory)
        if stub:
            os.environ["TMPDIR"] = tempfile.tempdir = str(directory / "tmp")
            make_stub(directory)
        (directory / "run.json").write_text(json.dumps({"stub": stub}))
        words = [sys.executable, "-m", "tests.gpu_run", *argv]
        os.execve(sys.executable, words, environment(directory, os.environ, stub=stub))
    except BaseException:
        shutil.rmtree(directory)
        raise


def unpack(wheel: Path, site: Path) -> None:
    """Unpack a wheel beside dlapp. Raises CannotBegin."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    except (OSError, zipfile.BadZipFile) as error:
        raise CannotBegin(f"{wheel}: {error}") from error
    for data in site.glob("*.data"):
        for library in ("purelib", "platlib"):
            if (data / library).is_dir():
                shutil.copytree(data / library, site, dirs_exist_ok=True)


def has_nvml(directory: Path) -> bool:
    """Return whether NVML shows a GPU; a library without a driver shows none. A process of its own: it may hang."""
    program = "import pynvml; pynvml.nvmlInit(); raise SystemExit(not pynvml.nvmlDeviceGetCount())"
    python = {"PYTHONPATH": os.pathsep.join([str(directory / "site"), os.environ.get("PYTHONPATH", "")])}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], capture_output=True, env=os.environ | python, timeout=HOLD_S
        )
        # A driver that does not work, or a missing library of Python, is for the run to say.
        return done.returncode == 0 or any(name.startswith("nvidia") for name in os.listdir("/dev"))
    return True


def make_stub(directory: Path) -> None:
    """Make the stub of NVML, with one GPU. Raises CannotBegin."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise CannotBegin("NVML shows no GPU here, and there is no C compiler for the stub of NVML: install gcc")
    from tests.services.containers.nvml_stub import seen_by_all

    seen_by_all(directory / "stub", [stub_device()])


# ---- the run ----


def run(asked: argparse.Namespace, directory: Path) -> int:
    """Run the checks; return the exit code."""
    # What is started in the background by make ignores SIGINT; a person's Ctrl-C ends the run, and what it started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_ms = time.time_ns() // 1_000_000
    stub = bool(json.loads((directory / "run.json").read_text())["stub"])
    budget = Budget(asked.limit, time.monotonic)
    place = Workplace(directory, stub=stub, device={"uuid": "", "index": -1, "mig": -1}, root=ROOT)
    try:
        check_libraries(place)
        load(place)
        with leased_device(place) as device:
            place.device |= device
            print(first_line(place), flush=True)
            entries = list(checked(place, selected(asked), budget))
        if asked.record is not None:
            record(place, asked.record)
        store(asked.results, entries, place, began_ms=began_ms, seconds=budget.passed_s, limit_s=asked.limit)
        print(summary(entries), flush=True)
        return exit_code(entries)
    finally:
        place.kill_processes()
        remove(directory)


def check_libraries(place: Workplace) -> None:
    """Refuse to begin where dlapp's processes do not find their libraries. Raises CannotBegin."""
    program = (
        "import sys; sys.path.append(sys.argv[1]); from dlapp.system.processes.late_site import add_late; add_late()\n"
        "import importlib\n"
        "for name in sys.argv[2:]:\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as error: print(name)\n"
    )
    words = [sys.executable, "-I", "-S", "-c", program, str(place.directory / "site"), *LIBRARIES]
    missing = subprocess.run(words, capture_output=True, text=True, timeout=HOLD_S, check=True).stdout.split()
    if missing:
        raise CannotBegin(
            f'{sys.executable} has no {", ".join(missing)}: give wheels, make test-gpu WHEELS="a.whl b.whl", or '
            "another Python, PYTHON=.venv/bin/python"
        )


def load(place: Workplace) -> None:
    """Import what the checks use, once: each is a fork of this process, which never opens NVML itself."""
    import pynvml  # noqa: F401

    from dlapp.gpuid.health import inspection, nvml  # noqa: F401
    from dlapp.gpuid.stores import machine  # noqa: F401

    place.set_stub()


@contextlib.contextmanager
def leased_device(place: Workplace) -> Iterator[dict[str, Any]]:
    """Yield the GPU of the run, which is leased in the machine's ledger for a block, where it has a ledger.

    Raises:
        CannotBegin: no GPU is idle.
    """
    words = [sys.executable, "-m", "tests.gpu_run.holder", str(place.lock_dir), *(["stub"] if place.stub else [])]
    # Without the marks of the run: a check that kills all its processes must not end this one.
    unmarked = {name: value for name, value in os.environ.items() if name != "XDG_STATE_HOME"} | {"HOME": "/"}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=unmarked)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not select.select([process.stdout], [], [], HOLD_S)[0]:
            raise CannotBegin(f"NVML does not answer in {HOLD_S:g} s: the driver hangs (see nvidia-smi)")
        answer = json.loads(process.stdout.readline() or '{"error": "the search for an idle GPU ended"}')
        if "error" in answer:
            raise CannotBegin(answer["error"])
        yield answer
    finally:
        process.stdin.close()
        try:
            process.wait(HOLD_S / 6)
        except subprocess.TimeoutExpired:
            process.kill()


def first_line(place: Workplace) -> str:
    """Return the line above the checks."""
    device = place.device
    whose = "the stub of NVML" if place.stub else "this machine"
    return (
        f"{whose}: {device['count']} GPU{'s' * (device['count'] != 1)}; {place.label}, {device['name']}, {place.uuid}"
    )


def selected(asked: argparse.Namespace) -> list[Check]:
    """Return the checks to run, the first and the last one always. Raises CannotBegin: there is no such check."""
    from tests.gpu_run.checks import CHECKS

    known = [check.id for check in CHECKS]
    only, without = ([word for word in text.split(",") if word] for text in (asked.only, asked.without))
    if unknown := [word for word in (*only, *without) if word not in known]:
        raise CannotBegin(f"{', '.join(unknown)}: there is no such check; there are {', '.join(known)}")
    chosen = [check for check in CHECKS[1:-1] if (not only or check.id in only) and check.id not in without]
    return [CHECKS[0], *chosen, CHECKS[-1]]  # the last one compares with the first


def checked(place: Workplace, checks: Sequence[Check], budget: Budget) -> Iterator[Entry]:
    """Run checks one after another, print their lines, and yield the results. The last one runs whatever is left."""
    for check in checks:
        began_s = time.monotonic()
        if check is checks[-1]:
            result = in_child(place, check, check.limit_s)
        else:
            try:
                skipped = without_cuda(check, NO_CUDA_OF_STUB if place.stub else "")
                result = skipped or in_child(place, check, budget.allowed_s(check))
            except Skipped as reason:
                result = Result(SKIP, f"no time: {reason}")
        place.values[check.id] = result.values
        entry = Entry(check, result, time.monotonic() - began_s)
        print(entry.line, flush=True)
        if result.verdict == FAIL:
            clean(place)
        yield entry


def in_child(place: Workplace, check: Check, limit_s: float) -> Result:
    """Return the result of a check that runs in a fork of this process: it may hang in the driver, and is left then."""
    end, mine = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(end)
            os.setsid()
            data = json.dumps(outcome(lambda: check.run(place))).encode()
            while data:
                data = data[os.write(mine, data) :]
        os._exit(0)
    os.close(mine)
    try:
        data, deadline_s = b"", time.monotonic() + limit_s
        while select.select([end], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            if not (more := os.read(end, 1 << 16)):
                os.waitpid(pid, 0)
                return Result(*json.loads(data)) if data else Result(FAIL, "internal error: its process died")
            data += more
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return Result(FAIL, f"no end in {limit_s:g} s")
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        raise
    finally:
        os.close(end)


def outcome(call: Callable[[], Result]) -> tuple[str, str, dict[str, Any]]:
    """Return the fields of what a check returns, or of what its exception means."""
    found = _outcome(call)
    return found.verdict, found.found, dict(found.values)


def _outcome(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except Skipped as reason:
        return Result(SKIP, str(reason))
    except Failed as error:
        return Result(FAIL, str(error), error.values)
    except Exception as error:
        return Result(FAIL, f"{type(error).__name__}: {error}", {"traceback": traceback.format_exc()})


def clean(place: Workplace) -> None:
    """End what a failed check has left: it must not hold the GPU in a later one."""
    place.set_stub()
    with contextlib.suppress(subprocess.TimeoutExpired):
        place.end_applications(timeout_s=CLEAN_S)
    place.kill_processes()
    with contextlib.suppress(subprocess.TimeoutExpired):
        place.tool("gpu", "heal", place.label, timeout_s=CLEAN_S)


def record(place: Workplace, file: Path) -> None:
    """Write NVML's raw answers on the GPU of the run."""
    from tests.gpu_run.nvml_answers import recorded

    def written() -> Result:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(recorded(place.uuid), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return Result("", str(file))

    result = in_child(place, Check("", "record", lambda _: written(), 0, HOLD_S), HOLD_S)
    print(f"answers of NVML: {result.found}", flush=True)


def store(directory: Path, entries: Sequence[Entry], place: Workplace, **facts: Any) -> None:
    """Write the results as JSON and as a table."""
    directory.mkdir(parents=True, exist_ok=True)
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    machine = dict(place.values.get("B01", {}))
    values = results_json(entries, commit=commit, stub=place.stub, machine=machine, device=place.device, **facts)
    (directory / "results.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    driver, kernel = (machine.get(name, "unknown") for name in ("driver", "kernel"))
    whose = " Against the stub of NVML." if place.stub else f" {place.device['name']}, driver {driver}, Linux {kernel}."
    title = f"### gpu\n\n{f'Commit `{commit}`' if commit else 'Commit unknown'}.{whose}"
    (directory / "results.md").write_text(results_table(entries, title), encoding="utf-8")
    print(f"results: {directory / 'results.json'}, {directory / 'results.md'}", flush=True)


def remove(directory: Path) -> None:
    """Remove the directory of the run; a process that has just been killed can still write in it."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.1)
    print(f"{directory}: could not be removed", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
