"""Rules for every test: an environment of its own, complete runs where they are required, nothing left running."""

from __future__ import annotations

import contextlib
import gc
import getpass
import itertools
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from dlapp.values.program.submitter import is_well_known
from tests import seeds
from tests.closes import copy as closes
from tests.services import needs, users
from tests.services.containers.dockerd import dockerd
from tests.services.install import SEARCH, nvidia_devices, required
from tests.tiers import FULL

if TYPE_CHECKING:
    from tests.engines import Engine
    from tests.services.containers.dockerd import Dockerd
    from tests.services.hadoop import Hadoop
    from tests.services.zookeeper import ZooKeeper

__all__ = ["dockerd"]

# A machine under load makes no input in seconds, which is no fault of the test.
SLOW = [hypothesis.HealthCheck.too_slow]
for tier, examples in (("quick", 20), ("full", 200)):
    hypothesis.settings.register_profile(
        tier, deadline=None, print_blob=True, max_examples=examples, suppress_health_check=SLOW
    )
hypothesis.settings.load_profile("full" if FULL else "quick")

KEPT = ("DLAPP_REQUIRE",)
"""What a test still sees of the caller's DLAPP_*; the rest steers the run as a whole or would change what it tests."""

NEVER_REQUIRED = ("gpu",)
"""Marks of tests that may be skipped even where the run must be complete: no machine of ours always has a GPU."""

MAX_NAME = 200
"""Characters of a parameter's value that name a test."""

INTERNAL_ERRORS: list[str] = []

NUMBERS = itertools.count()
"""Numbers of directories of tests: for each that it numbers, pytest itself lists all that there are."""

SERVERS = pytest.StashKey[needs.Servers]()

HAS_FAILED = pytest.StashKey[bool]()

NOTHING_MISSING = "root may "
"""How the reason of a skip begins where being root leaves nothing to test; every other one says what is missing."""


# Where the tests run in the background SIGINT is ignored, and all that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    """Say what the tests run against."""
    docker = _first_line("dockerd", "--version")
    setpriv = _first_line("setpriv", "--version") if os.geteuid() == 0 else f"not root ({getpass.getuser()})"
    return [
        f"machine: {platform.system()} {platform.release()}, {os.cpu_count()} cores, {getpass.getuser()}",
        f"docker: {docker}; two users: {setpriv}; NVIDIA GPUs: {nvidia_devices()}",
        f"faults: {os.environ.get('DLAPP_FAULTS', 'quick')}; a skipped test is {_skipped_is()}",
        f"seeds: {seeds.VARIABLE}={seeds.FIRST}",
    ]


class _FailuresAtOnce:
    """Prints each failure as it happens: of a run that is cut short the summary is never seen."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._config.get_terminal_writer().line(f"\nfailed: {report.nodeid} ({report.when})\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    """Show failures at once where nobody watches the run, and give the workers the same seeds, also after midnight."""
    os.environ[seeds.VARIABLE] = str(seeds.FIRST)
    if "CI" in os.environ and not _is_worker(config):
        config.pluginmanager.register(_FailuresAtOnce(config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Set the marks before any plugin chooses by them, and the order of the workers when all have chosen."""
    needs.mark(items)
    if left_out := needs.left_out(items, by_group=_is_worker(config)):
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    if _is_worker(config):
        needs.mark_groups(items)
    yield
    if _is_worker(config):
        items.sort(key=needs.order)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long value by its argument: a name of 700,000 characters goes to each worker and into the environment."""
    return f"long {argname}" if isinstance(val, (str, bytes)) and len(val) > MAX_NAME else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Count what each server is needed for, and leave what was collected out of the sight of the garbage collector.

    Thousands of items would be looked through again and again, and copied into each child that is forked.
    """
    gc.freeze()
    session.stash[SERVERS] = needs.Servers(session.items, by_group=_is_worker(session.config))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what only root can do, and let a test start what it is marked for."""
    root = item.get_closest_marker("root")
    if root and os.geteuid() != 0:
        pytest.skip(f"needs root {root.args[0] if root.args else 'to become another user'}")
    needs.grant(item)


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Remember what brings a server up."""
    request.session.stash[SERVERS].started(fixturedef, request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """End the servers that no test needs after this one; fixtures of the session would keep them to its end."""
    yield
    item.session.stash[SERVERS].end_after(item)


def _is_worker(config: pytest.Config) -> bool:
    """Return whether this is one of several processes that share the tests."""
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session")
def hadoop() -> Iterator[Hadoop]:
    """A cluster with all parts running; a test that harms one brings it back."""
    from tests.services.hadoop import NoHadoop, cluster_for_tests

    try:
        with cluster_for_tests() as cluster:
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """One server, shared: each test has a root of its own, and one that harms the server brings it back."""
    from tests.services.zookeeper import zookeeper_for_tests

    with zookeeper_for_tests() as server:
        yield server


@pytest.fixture(scope="session")
def travel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of dlapp's archive for the nodes; to build it for each test would take a second."""
    return tmp_path_factory.mktemp("travel")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of this test alone, with its name."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{next(NUMBERS)}_{name}", numbered=False)


@pytest.fixture(autouse=True)
def _own_environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A home, a state directory and a GPU ledger of this test alone, and no configuration of the caller.

    What a test left running when it failed is ended, so that it makes no other test fail.
    """
    home, began_ms = tmp_path_factory.mktemp(f"{next(NUMBERS)}_home", numbered=False), time.time_ns() // 1_000_000
    if "hadoop" in request.fixturenames:
        (home / ".cache" / "dlapp").mkdir(parents=True)
        (home / ".cache" / "dlapp" / "travel").symlink_to(request.getfixturevalue("travel_cache"))
    for name in list(os.environ):
        is_ours = name.startswith("DLAPP_") and name not in KEPT
        if is_ours or name.startswith("XDG_") or is_well_known(name):  # the launcher notes or passes the last
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DLAPP_LOCAL_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(home / "gpus"))
    yield home
    if request.node.stash.get(HAS_FAILED, False):
        _end_what_is_left(home)
        if (dockerd := request.node.funcargs.get("dockerd")) is not None:
            _remove_containers(dockerd)
        if (hadoop := request.node.funcargs.get("hadoop")) is not None:
            _kill_applications(hadoop, began_ms)


def _end_what_is_left(home: Path) -> None:
    deadline = time.monotonic() + 10
    while (left := _processes_under(os.fsencode(home))) and time.monotonic() < deadline:
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _remove_containers(dockerd: Dockerd) -> None:
    if containers := dockerd.docker("ps", "-aq", check=False).stdout.decode().split():
        dockerd.docker("rm", "-f", *containers, check=False)


def _kill_applications(hadoop: Hadoop, since_ms: int) -> None:
    from dlapp.cluster.yarn.client.rest import YarnRest
    from dlapp.errors import DlappError
    from dlapp.login import Login

    # The test may have harmed the cluster itself.
    with contextlib.suppress(DlappError), YarnRest([hadoop.rm_url], Login(getpass.getuser())) as rest:
        for report in rest.reports(user=getpass.getuser()):
            if not report.state.ended and report.started_ms >= since_ms:
                print(f"{report.application_id} had not ended: {report.state.value}, {report.diagnostics}")
                rest.kill(report.application_id, timeout_s=60)


@pytest.fixture
def state_dir(_own_environment: Path) -> Path:
    """Return where the embedded engine keeps this test's applications; not made yet."""
    return _own_environment / "state"


@pytest.fixture(params=["local", pytest.param("yarn", marks=pytest.mark.hadoop)])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Each engine in turn, which the commands use in this test; nothing that it ran there outlives it."""
    from tests.engines import Engine

    hadoop: Hadoop | None = None
    if request.param == "yarn":
        hadoop = request.getfixturevalue("hadoop")
        cache = Path(os.environ["HOME"], ".cache", "dlapp")
        cache.mkdir(parents=True)
        (cache / "travel").symlink_to(request.getfixturevalue("travel_cache"))
        monkeypatch.setenv("DLAPP_YARN_CONF_DIR", str(hadoop.configuration))
        monkeypatch.setenv("DLAPP_YARN_PYTHON", sys.executable)
        monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    monkeypatch.setenv("DLAPP_CLUSTER", request.param)
    one = Engine(tmp_path, state_dir, hadoop)
    yield one
    one.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Return where the run must be complete, a test that was skipped has failed, with the reason of the skip.

    What was printed and logged is made text that can be sent: a worker ends at a name of a file that is not UTF-8.
    """
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
    report.sections = [(title, text.encode("utf-8", "replace").decode()) for title, text in report.sections]
    may_skip = any(item.get_closest_marker(mark) for mark in NEVER_REQUIRED)
    if report.skipped and required() and not may_skip and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if reason.removeprefix("Skipped: ").startswith(NOTHING_MISSING):
            return report
        report.outcome = "failed"
        report.longrepr = f"{reason}\n(CI or DLAPP_REQUIRE is set: this may not be skipped here)"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_internalerror(excrepr: object) -> None:
    """Keep the first error of pytest itself, most often one of a worker: others follow from it."""
    INTERNAL_ERRORS.append(str(excrepr))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Show the first error of pytest at the very end, where a log that was cut still has it."""
    if INTERNAL_ERRORS and not _is_worker(config):
        print(f"the first internal error:\n{INTERNAL_ERRORS[0][-3000:]}", file=sys.stderr)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look for processes that outlived the tests: one that still works under their temporary directory is a fault.

    Workers have theirs in that of the process that started them, which looks when all of them have ended.
    """
    users.remove_interpreter()
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is None or _is_worker(session.config):
        return
    base = os.fsencode(str(factory.getbasetemp()))
    deadline = time.monotonic() + 120
    while (left := _processes_under(base)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, command in left:
        session.config.get_terminal_writer().line(f"\nleft running: {pid} {command}", red=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    double_closes = _show_closes(session)
    if (left or double_closes) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _show_closes(session: pytest.Session) -> int:
    """Print the reports of `tests.closes.recorder`, each kind once; return their number."""
    directory = os.environ.get(closes.VARIABLE)
    texts = [path.read_text(errors="replace") for path in sorted(Path(directory).iterdir())] if directory else []
    for text, count in Counter(text.partition("\n")[2] for text in texts).items():
        example = next(item for item in texts if item.endswith(text)).partition("\n")[0]
        session.config.get_terminal_writer().line(f"\ndouble close, {count} times, as in {example}\n{text}", red=True)
    return len(texts)


def _processes_under(base: bytes) -> list[tuple[int, str]]:
    """Processes, but our own, whose command line or working directory lies in ``base``."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
            continue
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
            where = os.fsencode(os.readlink(f"/proc/{name}/cwd"))
        except OSError:
            continue  # it ended, or is another user's
        if base + b"/" in command or where == base or where.startswith(base + b"/"):
            found.append((int(name), command.replace(b"\0", b" ").decode(errors="replace")))
    return found


def _first_line(program: str, *args: str) -> str:
    path = shutil.which(program, path=SEARCH)
    if path is None:
        return "not installed"
    done = subprocess.run([path, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return (done.stdout or done.stderr).partition("\n")[0]


def _skipped_is() -> str:
    return "a failure, except for want of a GPU" if required() else "only skipped"
