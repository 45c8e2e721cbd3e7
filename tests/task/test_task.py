"""Whole tasks: real processes, each with an ApplicationMaster of a few lines."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn.bundle import packed
from dlapp.gpuid.devices import Device
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.system import lock_files
from dlapp.system.owners import user_name
from dlapp.task.payload.factory import runs_as_submitter
from dlapp.value import replace
from dlapp.values.launch_spec import CacheSettings, DockerSettings
from dlapp.values.messages import Fault, Orders, Phase, Stop, TaskResult
from dlapp.values.spec import InputSpec, OnFailure, OutputSpec, PayloadCache, Resources
from tests.runtime.driver import USER, command_line, pids, wait_until
from tests.services.containers.dockerd import GPU_IMAGE, IMAGE, Dockerd
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.users import interpreter_for_everybody
from tests.task.fake_am import FakeAm, ledger_of, workspace_archive


def fake_am(place: Path, text: str, files: dict[str, str | bytes] | None = None, **assignment: Any) -> FakeAm:
    packed = workspace_archive(place, {"run.sh": text, **(files or {})})
    return FakeAm(place / "containers", **(packed | assignment))


def output_of(place: Path, path: str = "output") -> dict[str, Any]:
    target = place / "results"
    part = target.with_name("results.application_1700000000000_0001.tmp") / "container"
    return {
        "outputs": (OutputSpec(output_path=path, target=f"file://{target}"),),
        "parts": (f"file://{part}",),
    }


def part_of(place: Path) -> Path:
    return place / "results.application_1700000000000_0001.tmp" / "container"


def leftovers(am: FakeAm) -> list[str]:
    """Return what a task leaves in its directory, but for what was there before it."""
    return sorted(name for name in os.listdir(am.home) if name not in ("launch.json", "am.log"))


LOGS = ["dlapp.log", "dlapp.times", "stderr", "stdout"]
NEVER_ENDS = "echo ready; while :; do sleep 0.02; done"
ENDS = "cd $TMPDIR; echo ready; while [ ! -e finish ]; do sleep 0.02; done; exit 0"


# ---- all is well ----


def test_secrets_of_a_task_are_not_beside_its_program(place: Path) -> None:
    with fake_am(place, "ls ..") as am:
        am.start()
        assert am.result().fault is Fault.NONE
        names = am.printed().split()
        assert b"workspace" in names
        assert b"launch.json" not in names


def test_a_payload_runs_and_every_step_is_reported(place: Path) -> None:
    with fake_am(place, "echo hello $CONTAINER_INDEX of $NUM_CONTAINERS; echo oops >&2") as am:
        am.start()
        result = am.result()
        assert (result.fault, result.exit_code, result.signal, result.message) == (Fault.NONE, 0, None, "")
        assert am.printed() == b"hello 0 of 1\n"
        assert (am.home / "stderr").read_bytes() == b"oops\n"
        order = [Phase.UNPACKING, Phase.WAITING, Phase.RUNNING, Phase.RELEASING, Phase.ENDED]
        assert [phase for phase in am.phases if phase is not Phase.STARTING] == order
        assert leftovers(am) == LOGS


def test_a_task_lets_the_next_one_start_when_its_payload_runs(place: Path) -> None:
    reader, writer = os.pipe()
    with fake_am(place, ENDS) as am, open(reader, "rb") as starting:
        am.start(starting_fd=writer)
        os.close(writer)
        assert starting.read() == b""  # the end of the file
        am.wait_for(Phase.RUNNING)
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE


def test_input_is_available_and_output_is_stored_completely(place: Path) -> None:
    (place / "data" / "sub").mkdir(parents=True)
    (place / "data" / "sub" / "x").write_text("42")
    script = 'cp "$DLAPP_INPUT/data/sub/x" "$DLAPP_OUTPUT/y"; mkdir $DLAPP_OUTPUT/empty; ln -s y $DLAPP_OUTPUT/z'
    inputs = (InputSpec(sources=(f"file://{place}/data",), input_path="in/put"),)
    with fake_am(place, script, {"output/.keep": ""}, inputs=inputs, **output_of(place)) as am:
        am.start()
        result = am.result()
        assert result.fault is Fault.NONE, result
        (stored,) = result.outputs
        assert (stored.part, stored.name) == (am.assignment.parts[0], "")
        assert (part_of(place) / "y").read_text() == "42"
        assert (part_of(place) / "empty").is_dir()
        assert os.readlink(part_of(place) / "z") == "y"
        assert {Phase.FETCHING, Phase.STORING} <= set(am.phases)


def test_the_exchange_directory_is_private_to_the_payload(place: Path) -> None:
    with fake_am(place, 'echo $DLAPP_DIR; stat -c %a "$DLAPP_DIR"; ls -A "$DLAPP_DIR"; echo x > "$DLAPP_DIR/x"') as am:
        am.start()
        assert am.result().fault is Fault.NONE
        assert am.printed().decode().split() == [str(am.home / "run"), "700", "report"]
        assert leftovers(am) == LOGS


def test_secrets_reach_the_payload_and_no_log(place: Path) -> None:
    with fake_am(place, 'printf "%s" "$TOKEN" | wc -c; echo $LANG $DLAPP_ROLE $HOME $(cd $TMPDIR && pwd -P)') as am:
        am.start(env={"TOKEN": "a very secret word"})
        assert am.result().fault is Fault.NONE
        assert am.printed().decode().split() == ["18", "C.UTF-8", "worker", str(am.home), str(am.home / "tmp")]
        assert "very secret" not in am.log()
        assert am.secret not in am.log()


LISTENS = """#!{python}
import os
from multiprocessing.connection import Listener
listener = Listener(family="AF_UNIX")
print(os.environ["TMPDIR"], os.path.realpath(listener.address), flush=True)
"""


@pytest.mark.parametrize("as_uid", [None, pytest.param(USER, marks=pytest.mark.root("to become another user"))])
def test_a_plain_program_can_make_the_sockets_of_multiprocessing_in_its_tmpdir(place: Path, as_uid: int | None) -> None:
    place.chmod(0o777)
    script = LISTENS.format(python=interpreter_for_everybody())
    with FakeAm(place / "containers", **workspace_archive(place, {"run.sh": script}, modes={"run.sh": 0o755})) as am:
        am.start(as_uid=as_uid)
        assert am.result().fault is Fault.NONE, am.log()
        tmpdir, address = am.printed().decode().split()
        assert len(address) > 107
        assert address.startswith(f"{am.home}/tmp/pymp-")
        assert re.fullmatch("/tmp/dlapp-[0-9a-f]{10}/tmp", tmpdir)
        assert not os.path.lexists(os.path.dirname(tmpdir))
        assert leftovers(am) == LOGS


def test_the_tmpdir_that_a_user_sets_stays(place: Path) -> None:
    with fake_am(place, "echo $TMPDIR") as am:
        am.start(env={"TMPDIR": f"{place}/containers/mine"})
        assert am.result().fault is Fault.NONE
        assert am.printed().decode().strip() == f"{place}/containers/mine"


def test_without_a_usable_tmp_the_tmpdir_is_long_and_the_log_gives_the_reason(place: Path) -> None:
    begins = "import dlapp.system.short_tmpdir as it; it.ShortTmpdir.__init__.__defaults__ = ('/nowhere',)"
    with fake_am(place, "echo $TMPDIR") as am:
        am.start(begins_with=begins)
        assert am.result().fault is Fault.NONE
        assert am.printed().decode().strip() == f"{am.home}/tmp"
        assert "TMPDIR has no short path for Unix sockets: " in am.log()


def test_the_short_tmpdir_that_a_killed_task_leaves_is_removed_by_the_next_one(place: Path) -> None:
    with fake_am(place, "echo $TMPDIR; while :; do sleep 0.02; done") as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        am.wait_until(lambda: am.printed().endswith(b"\n"))
        assert am.task is not None
        am.task.kill()
        am.task.wait(timeout=120)
        tmpdir = am.printed().decode().strip()
    with FakeAm(place / "others", **workspace_archive(place, {"run.sh": "true"})) as am:
        am.start()
        assert am.result().fault is Fault.NONE
    assert not os.path.lexists(os.path.dirname(tmpdir))


@pytest.mark.root
def test_a_task_of_an_ordinary_user_does_the_same(place: Path) -> None:
    place.chmod(0o777)
    with fake_am(place, "id -u; echo x > output/x", {"output/.keep": ""}, **output_of(place)) as am:
        am.start(as_uid=USER)
        result = am.result()
        assert result.fault is Fault.NONE, result
        assert am.printed().split() == [str(USER).encode()]
        assert (part_of(place) / "x").stat().st_uid == USER
        assert leftovers(am) == LOGS


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed(str(tmp_path_factory.mktemp("bundle")))[0]


@pytest.mark.root
@pytest.mark.parametrize(
    "script", [NEVER_ENDS, "echo ready; while echo x > checkpoint; do sleep 0.02; done; exit 1", ENDS]
)
def test_a_payload_whose_directory_is_removed_is_ended_uncounted(place: Path, bundle: str, script: str) -> None:
    place.chmod(0o777)
    localized = place / "dlapp.pyz"
    shutil.copyfile(bundle, localized)
    with fake_am(place, script, {"output/x": "from before"}, **output_of(place)) as am:
        am.start(as_uid=USER, am_file="hdfs://somewhere/addresses", bundle=localized)
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        localized.unlink()  # what is not loaded yet is lost, too
        deleted = am.home.with_name("usercache_DEL")
        am.home.rename(deleted)
        (deleted / "tmp" / "finish").touch()
        result = am.result()
        assert (result.fault, result.lost, result.outputs) == (Fault.NODE, True, ())
        assert "its NodeManager was restarted without recovery" in result.message
        assert not part_of(place).exists()


def test_gpus_are_leased_for_the_payload_and_given_back(place: Path) -> None:
    devices = tuple(Device(f"GPU-{n}", n, n + 4) for n in range(4))
    ledger = MachineLedger(str(place / "locks"), discover=lambda: devices)
    env = with_devices(place, [StubDevice(uuid=device.uuid, minor=device.minor) for device in devices])
    script = "echo $NV_GPU $CUDA_VISIBLE_DEVICES; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done"
    with (
        ledger.reserve("the application", 2),
        fake_am(place, script, resources=Resources(gcores=2)) as am,
    ):
        am.start(process_env=env, ledger=ledger_of(place))
        am.wait_until(lambda: (am.home / "stdout").exists() and bool(am.printed()))
        indices, uuids = am.printed().decode().split()
        assert uuids.split(",") == [f"GPU-{index}" for index in indices.split(",")]
        with pytest.raises(NotEnough):
            ledger.lease(LeaseRequest("the application", "next", "tony", 1))
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE
        assert [report.gpus for report in am.reports if report.phase is Phase.RUNNING][-1] == tuple(
            int(index) for index in indices.split(",")
        )
        with ledger.lease(LeaseRequest("the application", "next", "tony", 2)):
            pass


def test_gpus_that_are_not_to_be_had_are_the_nodes_fault(place: Path) -> None:
    device = Device("GPU-0", 0, 0)
    ledger = MachineLedger(str(place / "locks"), discover=lambda: (device,))
    env = with_devices(place, [StubDevice(uuid=device.uuid)])
    with ledger.reserve("another", 1), fake_am(place, "echo ran", resources=Resources(gcores=1)) as am:
        am.start(process_env=env, ledger=ledger_of(place, application="nobody's"), lease_timeout_s=0.1)
        result = am.result()
        assert result.fault is Fault.NODE
        assert "GPUs could not be leased" in result.message


# ---- whose fault ----


def test_an_exit_code_is_a_user_fault_and_output_is_still_stored(place: Path) -> None:
    with fake_am(place, "echo half > output/x; exit 3", {"output/.keep": ""}, **output_of(place)) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.exit_code, result.message) == (Fault.USER, 3, "")
        assert len(result.outputs) == 1
        assert (part_of(place) / "x").read_text() == "half\n"


CACHES = (PayloadCache("models", "/models"), PayloadCache("pip-packages", "/cache/pip"))
KEEP = (
    'for one in "$DLAPP_CACHE_MODELS" "$DLAPP_CACHE_PIP_PACKAGES"; do '
    '[ -e "$one/x" ] && echo "there: $one"; echo x >"$one/x" || exit 1; done'
)


def test_processes_killed_after_the_script_are_named_in_the_result(place: Path) -> None:
    script = "sleep 1000 </dev/null >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do sleep 0.02; done"
    with fake_am(place, script) as am:
        am.start()
        result = am.result()
    assert (result.fault, result.exit_code) == (Fault.NONE, 0)
    assert result.message == "ended with the script: 1 process, sleep"
    assert result.left == "1 process, sleep"


def caches_of(place: Path, limit_bytes: int = 1 << 30) -> CacheSettings:
    return CacheSettings(0, 86_400.0, payload_limit_bytes=limit_bytes, payload_directory=str(place / "payload"))


def test_a_plain_payload_finds_its_caches_by_variables_and_the_next_reuses_them(place: Path) -> None:
    for run, expected in (
        ("first", []),
        ("second", [f"there: {place}/payload/caches/{cache.name}" for cache in CACHES]),
    ):
        (place / run).mkdir()
        with fake_am(place / run, KEEP, caches=CACHES) as am:
            am.start(cache=caches_of(place))
            assert am.result().fault is Fault.NONE, am.log()
            assert am.printed().decode().splitlines() == expected


def test_a_cache_in_use_is_locked_by_the_payload_itself(place: Path) -> None:
    with fake_am(place, "echo x >$DLAPP_CACHE_MODELS/x; " + NEVER_ENDS, caches=CACHES) as am:
        am.start(cache=caches_of(place, 1))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        assert lock_files.acquire(str(place / "payload" / "locks" / "models"), shared=False) is None
        am.stop(Stop.NOW)
        am.result()
    assert os.listdir(place / "payload" / "caches") == ["pip-packages"], "the limit is a byte"


def test_caches_that_are_not_allowed_end_the_application_with_a_line(place: Path) -> None:
    with fake_am(place, "echo ran", caches=CACHES) as am:
        am.start(cache=caches_of(place, 0))
        result = am.result()
        assert (result.fault, Phase.RUNNING in am.phases) == (Fault.DATA, False)
        assert result.message == "the caches cannot be used: cache.models: storage.payload_cache_limit is 0"


def test_a_signal_is_distinguished_from_an_exit_code(place: Path) -> None:
    with fake_am(place, "kill -SEGV $$") as am:
        am.start()
        result = am.result()
        assert (result.exit_code, result.signal) == (None, signal.SIGSEGV)


def test_an_output_that_was_never_made_is_the_users_loss(place: Path) -> None:
    with fake_am(place, "true", **output_of(place)) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.outputs) == (Fault.DATA, ())
        assert result.message == (
            "the script made no 'output' in its workspace (to_hdfs); nothing is new or changed there"
        )


def test_with_a_missing_output_all_new_and_changed_files_are_kept(place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "x").write_text("input")
    script = "mkdir -p output/deep empty; echo 1 >output/deep/ck; cp -p in/x output/; echo more >>changed; rm removed"
    files: dict[str, str | bytes] = {"changed": "", "unchanged": "", "removed": "", "src/lib.py": ""}
    inputs = (InputSpec(sources=(f"file://{place}/data/*",), input_path="in"),)
    with fake_am(place, script, files, inputs=inputs, **output_of(place, "outptu")) as am:
        am.start()
        result = am.result()
        assert result.fault is Fault.DATA
        assert result.message == (
            "the script made no 'outptu' in its workspace (to_hdfs); new or changed there: 'changed', 'output' "
            "(2 files); the nearest name is 'output'; all of it is kept"
        )
        (stored,) = result.outputs
        assert (stored.stray, stored.files) == (True, 3)
        kept_output = sorted(
            str(path.relative_to(part_of(place))) for path in part_of(place).rglob("*") if path.is_file()
        )
        assert kept_output == ["changed", "output/deep/ck", "output/x"]
        assert leftovers(am) == LOGS


def test_stray_files_of_a_failed_script_are_kept(place: Path) -> None:
    script = "mkdir -p ckpt src/__pycache__; echo 1 >ckpt/1; echo >src/__pycache__/lib.pyc; exit 3"
    with fake_am(place, script, {"src/lib.py": ""}, **output_of(place)) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.USER, 3)
        assert result.message == (
            "exit code 3; the script made no 'output' in its workspace (to_hdfs); new or changed there: 'ckpt' "
            "(1 file); all of it is kept"
        )
        assert [output.stray for output in result.outputs] == [True]
        assert [str(path.relative_to(part_of(place))) for path in part_of(place).rglob("*")] == ["ckpt", "ckpt/1"]


def test_a_failed_script_without_files_keeps_its_exit_code(place: Path) -> None:
    script = "mkdir -p src/__pycache__ empty; echo >src/__pycache__/lib.pyc; exit 3"
    with fake_am(place, script, **output_of(place)) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.message, result.outputs) == (Fault.USER, "", ())


def test_stray_files_of_a_failed_script_are_dropped_if_configured(place: Path) -> None:
    output = output_of(place)
    output["outputs"] = (replace(output["outputs"][0], on_failure=OnFailure.DROP),)
    with fake_am(place, "echo 1 >ckpt; exit 3", **output) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.message, result.outputs) == (Fault.USER, "", ())


def test_changes_are_kept_once_beside_the_existing_outputs(place: Path) -> None:
    script = "mkdir model; echo 1 >model/weights; echo 2 >log.txt"
    both: dict[str, Any] = {
        "outputs": (
            OutputSpec(name="model", output_path="model", target=f"file://{place}/model"),
            OutputSpec(name="logs", output_path="logs", target=f"file://{place}/logs"),
            OutputSpec(name="more", output_path="more", target=f"file://{place}/more"),
        ),
        "parts": tuple(f"file://{place}/{name}.tmp/container" for name in ("model", "logs", "more")),
    }
    with fake_am(place, script, **both) as am:
        am.start()
        result = am.result()
        assert [(output.name, output.stray) for output in result.outputs] == [("model", False), ("logs", True)]
        assert "'logs' in its workspace (to_hdfs logs); the script made no 'more'" in result.message
        assert os.listdir(place / "logs.tmp" / "container") == ["log.txt"]
        assert os.listdir(place / "model.tmp" / "container") == ["weights"]


def test_output_to_be_dropped_on_failure_is_not_kept(place: Path) -> None:
    output = output_of(place, "outptu")
    output["outputs"] = (replace(output["outputs"][0], on_failure=OnFailure.DROP),)
    with fake_am(place, "echo 1 >output", **output) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.outputs) == (Fault.DATA, ())
        assert result.message.endswith("new or changed there: 'output'; the nearest name is 'output'")


def test_a_script_that_ended_well_on_a_soft_kill_has_its_changes_kept(place: Path) -> None:
    script = "trap 'echo saved >output; exit 0' TERM; " + NEVER_ENDS
    with fake_am(place, script, **output_of(place, "outptu")) as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and b"ready" in am.printed())
        am.order(stop=Stop.SOFT, why="soft-killed by tony", grace_s=20.0)
        result = am.result()
        assert (result.fault, [output.stray for output in result.outputs]) == (Fault.STOPPED, [True])
        assert result.message.startswith("soft-killed by tony; the script made no 'outptu'")


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of 2 MiB, and nearly all of it taken by the file ``much``."""
    disk = place / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "dlapp-test", str(disk)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("root may mount a small file system; this user may not")
    (disk / "much").write_bytes(bytes(1_500_000))
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_output_waits_for_free_space(place: Path, small_disk: Path) -> None:
    script = "head -c 1000000 /dev/zero > output/model"
    with fake_am(place, script, {"output/.keep": ""}, **output_of(small_disk)) as am:
        am.start()
        wait = re.compile(rf"waits for [34]\d\d\.\d KiB on {small_disk} since .+, until .+")
        am.wait_until(lambda: any(wait.fullmatch(report.detail) for report in list(am.reports)))
        (small_disk / "much").unlink()
        result = am.result()
        assert (result.fault, len(result.outputs)) == (Fault.NONE, 1)
        assert (part_of(small_disk) / "model").stat().st_size == 1_000_000


def test_output_without_space_in_time_stays_on_the_machine(place: Path, small_disk: Path) -> None:
    script = "head -c 1000000 /dev/zero > output/model"
    with fake_am(place, script, {"output/.keep": ""}, output_patience_s=0, **output_of(small_disk)) as am:
        am.start(unstored=str(place / "unstored"))
        result = am.result()
        assert (result.fault, result.outputs) == (Fault.DATA, ())
        kept_output = place / "unstored" / str(am.container_id) / "output"
        assert "the output could not be stored: the output has" in result.message
        assert result.message.endswith(f"it stays on {socket.gethostname()} in {kept_output}")
        assert result.unstored == (str(kept_output.parent),)
        assert (kept_output / "model").stat().st_size == 1_000_000
        assert leftovers(am) == LOGS


def test_an_exit_code_takes_precedence_over_a_storage_error(place: Path, small_disk: Path) -> None:
    script = "head -c 1000000 /dev/zero > output/model; exit 3"
    with fake_am(place, script, {"output/.keep": ""}, output_patience_s=0, **output_of(small_disk)) as am:
        am.start(unstored=str(place / "unstored"))
        result = am.result()
        assert result.exit_code == 3
        assert result.message.startswith("exit code 3; the output could not be stored: ")


def test_output_that_cannot_be_moved_stays_in_its_workspace(place: Path, small_disk: Path) -> None:
    script = "head -c 1000000 /dev/zero > output/model"
    with fake_am(place, script, {"output/.keep": ""}, output_patience_s=0, **output_of(small_disk)) as am:
        am.start(unstored=str(small_disk / "unstored"))
        result = am.result()
        assert result.message.endswith(f"in {am.home}/workspace/output")
        assert result.unstored == (f"{am.home}/workspace/output",)
        assert (am.home / "workspace" / "output" / "model").stat().st_size == 1_000_000


@pytest.mark.root
def test_on_yarn_output_that_cannot_be_moved_is_not_reported_as_kept(place: Path) -> None:
    place.chmod(0o777)
    (place / "results.application_1700000000000_0001.tmp").write_text("in the way")
    (place / "unstored").write_text("in the way, too")
    with fake_am(place, "echo 1 >output/x", {"output/.keep": ""}, **output_of(place)) as am:
        am.start(as_uid=USER, unstored=str(place / "unstored"), am_file="hdfs://nowhere/addresses")
        result = am.result()
        assert (result.fault, result.unstored) == (Fault.DATA, ())
        assert result.message.startswith("the output could not be stored: ")
        kept_output = place / "unstored" / str(am.container_id) / "output"
        lost = f"; it could not be renamed to {kept_output} (Not a directory): YARN deletes it with its container"
        assert result.message.endswith(lost)


def test_an_output_that_fits_is_stored_though_another_does_not(place: Path, small_disk: Path) -> None:
    outputs = {
        "outputs": (
            OutputSpec(name="large", output_path="large", target=f"file://{small_disk}/large"),
            OutputSpec(name="small", output_path="small", target=f"file://{place}/small"),
        ),
        "parts": (f"file://{small_disk}/large.tmp/container", f"file://{place}/small.tmp/container"),
    }
    script = "head -c 1000000 /dev/zero > large; echo 1 >small"
    with fake_am(place, script, None, output_patience_s=0, **outputs) as am:
        am.start(unstored=str(place / "unstored"))
        result = am.result()
        assert (result.fault, [output.name for output in result.outputs]) == (Fault.DATA, ["small"])
        assert (place / "small.tmp" / "container").read_text() == "1\n"
        assert (place / "unstored" / str(am.container_id) / "large").stat().st_size == 1_000_000


def test_output_refused_by_the_target_stays_on_the_machine(place: Path) -> None:
    (place / "results.application_1700000000000_0001.tmp").write_text("in the way")
    with fake_am(place, "echo 1 >output/x", {"output/.keep": ""}, **output_of(place)) as am:
        am.start(unstored=str(place / "unstored"))
        assert am.result().fault is Fault.DATA
        assert (place / "unstored" / str(am.container_id) / "output" / "x").read_text() == "1\n"


def test_missing_input_is_a_data_fault_and_no_program_runs(place: Path) -> None:
    inputs = (InputSpec(sources=(f"file://{place}/none/*",), input_path="in"),)
    with fake_am(place, "echo ran", inputs=inputs) as am:
        am.start()
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.DATA, None)
        assert f"file://{place}/none/*: nothing is there" in result.message
        assert leftovers(am) == ["dlapp.log"]


def test_a_missing_script_is_the_users_fault(place: Path) -> None:
    with fake_am(place, "", script="none.sh") as am:
        am.start()
        result = am.result()
        assert (result.fault, result.message) == (Fault.USER, "none.sh: there is no such script in the workspace")


def test_a_missing_workspace_is_a_node_fault(place: Path) -> None:
    with fake_am(place, "true", workspace_archive=f"file://{place}/none.tar.gz") as am:
        am.start()
        assert am.result().fault is Fault.NODE


@pytest.mark.proves("output-links")
def test_a_link_that_leads_out_of_the_workspace_is_no_output(place: Path) -> None:
    (place / "secret").mkdir()
    with fake_am(place, f"ln -s {place}/secret output", **output_of(place)) as am:
        am.start()
        result = am.result()
        assert result.fault is Fault.DATA
        assert "leads out of the workspace" in result.message


def test_output_beyond_the_log_cap_is_dropped_and_reported(place: Path) -> None:
    with fake_am(place, "head -c 3000000 /dev/zero; sleep 0.2; echo end", log_limit_bytes=1_000_000) as am:
        am.start()
        result = am.result()
        assert result.fault is Fault.NONE
        assert result.message.startswith("stdout cut to 1000000 bytes")
        assert am.printed() == b"\0" * 1_000_000


@pytest.mark.slow
def test_the_cap_holds_against_a_payload_that_prints_much_at_once(place: Path) -> None:
    # Where many wait for the processor, the task has its turn when the payload has written for a while: it goes on when
    # it was cut.
    prints = f'head -c 100000000 /dev/zero; until [ $(stat -c %s "$HOME/stdout") -le {1 << 20} ]; do sleep 0.02; done; '
    script = f"sleep 1.2; {prints * 3}"
    with fake_am(place, script, log_limit_bytes=1 << 20) as am:
        am.start()
        path = am.home / "stdout"
        am.wait_until(lambda: path.exists() and path.stat().st_size > 0)
        most, deadline = 0, time.monotonic() + 120
        while (am.home / "dlapp.log").read_text().count("stdout cut to") < 2:
            most = max(most, path.stat().st_size)
            assert time.monotonic() < deadline
            time.sleep(0.005)  # the task needs the processor
        assert am.result().message.startswith("stdout cut to 1048576 bytes")
        assert path.stat().st_size == 1 << 20
        assert most < 250_000_000, most


# ---- stopping ----


def test_a_soft_kill_stores_output_and_is_no_fault(place: Path) -> None:
    script = "trap 'echo saved > output/x; exit 7' TERM; " + NEVER_ENDS
    with fake_am(place, script, {"output/.keep": ""}, **output_of(place)) as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.stop(Stop.SOFT)
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.STOPPED, 7)
        assert len(result.outputs) == 1
        assert (part_of(place) / "x").read_text() == "saved\n"


def test_a_soft_kill_ends_the_shell_of_a_script_after_its_programs(place: Path) -> None:
    script = "echo so far > output/x; echo ready; while :; do sleep 0.02; done"
    with fake_am(place, script, {"output/.keep": ""}, **output_of(place)) as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.stop(Stop.SOFT, grace_s=600)
        result = am.result()
        assert (result.fault, result.signal, len(result.outputs)) == (Fault.STOPPED, signal.SIGTERM, 1)


def test_after_the_grace_time_a_soft_kill_kills_and_stores(place: Path) -> None:
    script = "echo so far > output/x; trap '' TERM; " + NEVER_ENDS
    with fake_am(place, script, {"output/.keep": ""}, **output_of(place)) as am:
        am.start()
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.stop(Stop.SOFT, grace_s=0.3)
        result = am.result()
        assert (result.fault, result.signal, len(result.outputs)) == (Fault.STOPPED, signal.SIGKILL, 1)


def test_a_kill_stores_no_output(place: Path) -> None:
    with fake_am(place, NEVER_ENDS, {"output/x": ""}, **output_of(place)) as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        am.stop(Stop.NOW)
        result = am.result()
        assert (result.fault, result.outputs) == (Fault.STOPPED, ())
        assert not part_of(place).exists()
        assert leftovers(am) == LOGS


def test_sigterm_to_the_task_is_a_kill(place: Path) -> None:
    with fake_am(place, NEVER_ENDS) as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        assert am.task is not None
        am.task.terminate()
        result = am.result()
        assert (result.fault, result.message) == (Fault.STOPPED, "the container was stopped")


@pytest.mark.parametrize("how", [Stop.SOFT, Stop.NOW])
def test_a_task_that_waits_at_the_gate_can_be_stopped(place: Path, how: Stop) -> None:
    with fake_am(place, "echo ran") as am:
        am.order(go=False)
        am.start()
        am.wait_for(Phase.WAITING)
        am.stop(how)
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.STOPPED, None)
        assert leftovers(am) == ["dlapp.log"]


def test_a_task_waits_until_the_gate_opens(place: Path) -> None:
    with fake_am(place, "echo ran") as am:
        am.order(go=False)
        am.start()
        am.wait_for(Phase.WAITING)
        time.sleep(0.2)
        assert Phase.RUNNING not in am.phases
        am.order(go=True)
        assert am.result().fault is Fault.NONE


def test_a_long_fetch_can_be_stopped(place: Path) -> None:
    (place / "large").write_bytes(os.urandom(64 << 20))
    inputs = tuple(InputSpec(name=f"n{n}", sources=(f"file://{place}/large",), input_path=f"d{n}") for n in range(4))
    # Each piece takes a minute, so that it is not over before this test goes on.
    slow = (
        "import time\nfrom dlapp.storage.local import LocalFiles\nfetch = LocalFiles.fetch\n"
        "LocalFiles.fetch = lambda self, targets, done: fetch(self, targets, lambda n: (done(n), time.sleep(60)))"
    )
    with fake_am(place, "echo ran", inputs=inputs) as am:
        am.start(begins_with=slow)
        am.wait_for(Phase.FETCHING)
        am.stop(Stop.NOW)
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.STOPPED, None)
        assert leftovers(am) == ["dlapp.log"]


# ---- the ApplicationMaster ----


SAVES = "save() { mkdir -p output; echo saved >output/x; exit 0; }; trap save TERM; " + NEVER_ENDS


def ready(am: FakeAm) -> None:
    am.wait_until(lambda: (am.home / "stdout").exists() and am.printed().startswith(b"ready"))


def test_without_a_new_am_the_payload_ends_softly_in_time_and_its_output_is_kept(place: Path) -> None:
    with fake_am(place, SAVES, **output_of(place)) as am:
        am.start(alone_s=0.5)
        ready(am)
        am.die()
        assert am.task is not None
        assert am.task.wait(timeout=120) == 1
        assert payload_processes(am) == []
        assert leftovers(am) == LOGS
        assert (part_of(place) / "x").read_text() == "saved\n"
        assert "there was no ApplicationMaster for 0.5 s: SIGTERM, and SIGKILL in 60 s" in am.log()


def test_a_task_that_has_no_work_yet_ends_in_time_without_an_am(place: Path) -> None:
    with fake_am(place, "echo ran") as am:
        am.start(alone_s=0.5)
        am.die()
        assert am.task is not None
        assert am.task.wait(timeout=120) == 1
        assert not (am.home / "stdout").exists()


def test_the_payload_runs_on_and_its_result_reaches_the_next_am(place: Path) -> None:
    with fake_am(place, "echo ready $$; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done; exit 4") as am:
        am.start()
        ready(am)
        am.die()
        (am.home / "tmp" / "finish").touch()
        am.wait_until(lambda: "exit code 4" in am.log())
        am.restart()
        assert am.result().exit_code == 4
        assert am.printed().count(b"ready") == 1


def test_an_unresponsive_applicationmaster_ends_no_payload(place: Path) -> None:
    with fake_am(place, "while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done; exit 4") as am:
        am.start(alone_s=0.05)
        am.wait_for(Phase.RUNNING)
        am.restart_server(lambda: am.wait_until(lambda: am.log().count("report not delivered") > 2))
        (am.home / "tmp" / "finish").touch()
        assert am.result().exit_code == 4


def test_a_task_that_is_ended_when_its_last_am_is_dead_leaves_the_output_so_far(place: Path) -> None:
    with fake_am(place, f"mkdir output; echo so far >output/x; {NEVER_ENDS}", **output_of(place)) as am:
        am.start()
        ready(am)
        am.die()
        assert am.task is not None
        am.task.terminate()
        assert am.task.wait(timeout=120) == 1
        assert payload_processes(am) == []
        assert (am.home / "workspace" / "output" / "x").read_text() == "so far\n"


def test_orders_of_a_lower_attempt_are_refused(place: Path) -> None:
    with fake_am(place, "while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done", attempt=3) as am:
        am.order(attempt=3)
        am.start()
        am.wait_for(Phase.RUNNING)
        am.order(attempt=2, stop=Stop.NOW)
        am.wait_until(lambda: "orders of attempt 2 refused" in am.log())
        am.order(attempt=3, stop=Stop.NO)
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE


def test_an_am_that_does_not_answer_for_a_while_gets_the_result_later(place: Path) -> None:
    with fake_am(place, "while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done; exit 4") as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        am.restart_server(lambda: (am.home / "tmp" / "finish").touch())
        assert am.result().exit_code == 4


def test_an_am_that_does_not_know_the_task_ends_it(place: Path) -> None:
    with fake_am(place, NEVER_ENDS) as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        am.secret = "00" * 32
        am.order()
        assert am.task is not None
        am.task.wait(timeout=120)
        assert payload_processes(am) == []
        assert "not your token" in am.log()


def test_a_task_without_work_ends_at_once(place: Path) -> None:
    with fake_am(place, "echo ran") as am:
        am.start(token="11" * 32)
        assert am.task is not None
        assert am.task.wait(timeout=120) == 1
        assert "no work: not your token" in am.log()


def test_no_process_outlives_a_sigkill_of_the_task(place: Path) -> None:
    with fake_am(place, "(setsid sh -c 'while :; do sleep 0.02; done' &); " + NEVER_ENDS) as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        assert am.task is not None
        am.task.kill()
        am.task.wait()
        wait_until(lambda: payload_processes(am) == [], "nothing of the payload is left")


def payload_processes(am: FakeAm) -> list[int]:
    """Live processes that have the container's id in their environment, or its directory on their command line."""
    wanted = f"DLAPP_CONTAINER_ID={am.container_id}".encode()
    found = []
    for pid in pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        mine = wanted in environ.split(b"\0")
        # Ids of test applications are all the same, so the directory counts as well.
        if (mine and str(am.home).encode() in environ) or str(am.home) in command_line(pid):
            found.append(pid)
    return found


# ---- Docker ----


def test_on_a_node_a_task_runs_as_the_submitter_only_if_the_node_manager_names_the_tasks_user() -> None:
    me = user_name(os.getuid())
    assert runs_as_submitter({}, on_a_node=False)
    assert runs_as_submitter({"USER": me}, on_a_node=True)
    assert not runs_as_submitter({"USER": f"{me}2"}, on_a_node=True)
    assert not runs_as_submitter({}, on_a_node=True)


def test_a_payload_in_docker_has_the_same_phases(place: Path, dockerd: Dockerd) -> None:
    script = (
        "pwd; echo $DLAPP_OUTPUT $CONTAINER_INDEX $HOME $DLAPP_DIR; echo x > $DLAPP_OUTPUT/x;"
        "ln -s $PWD/output/x output/y"
    )
    more = output_of(place) | {"resources": Resources(memory_mib=64)}
    with fake_am(place, script, {"output/.keep": ""}, docker_image=IMAGE, **more) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"))
        result = am.result()
        assert result.fault is Fault.NONE, result
        assert am.printed().decode().split() == ["/workspace", "/workspace/output", "0", "/dlapp/home", "/dlapp/run"]
        assert (part_of(place) / "x").read_text() == "x\n"
        assert os.readlink(part_of(place) / "y") == "x"
        assert Phase.PULLING in am.phases
        assert am.last.image.startswith("sha256:")
        assert leftovers(am) == LOGS
        assert dockerd.containers() == []


def test_a_container_waits_for_the_namenode_of_its_input(place: Path) -> None:
    hdfs = HdfsPlace("hdfs://127.0.0.1:1", ("http://127.0.0.1:1",), Login("tony"))
    inputs = (InputSpec(sources=("hdfs://127.0.0.1:1/data",), input_path="data"),)
    with fake_am(place, "true", inputs=inputs) as am:
        am.start(hdfs=hdfs)
        am.wait_until(lambda: any(report.waits_for for report in am.reports))
        assert am.last.waits_for == "hdfs://127.0.0.1:1"
        am.stop(Stop.NOW)
        assert am.result().fault is Fault.STOPPED


@pytest.mark.slow
def test_a_wait_for_a_silent_namenode_is_reported(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        hdfs = HdfsPlace("hdfs://nn", (f"http://{address}",), Login("tony"))
        inputs = (InputSpec(sources=("hdfs://nn/data",), input_path="data"),)
        with fake_am(place, "true", inputs=inputs) as am:
            am.start(hdfs=hdfs)
            am.wait_until(lambda: any(report.detail.startswith("waits ") for report in am.reports))
            wait = am.last
            assert re.fullmatch(rf"waits for HDFS at {address} since \S+ \S+, until \S+ \S+", wait.detail)
            assert (wait.phase, wait.waits_for) == (Phase.STARTING, "")
            am.stop(Stop.NOW)
            assert am.result().fault is Fault.STOPPED


@pytest.mark.slow
def test_a_wait_for_gpus_that_others_hold_is_reported(place: Path) -> None:
    ledger = MachineLedger(str(place / "locks"), discover=lambda: (Device("GPU-0", 0, 0),))
    env = with_devices(place, [StubDevice(uuid="GPU-0")])
    with (
        ledger.reserve("the application", 1),
        fake_am(place, "echo $NV_GPU", resources=Resources(gcores=1)) as am,
    ):
        with ledger.lease(LeaseRequest("the application", "the container before", "tony", 1)):
            am.start(process_env=env, ledger=ledger_of(place), lease_timeout_s=3600.0)
            am.wait_until(lambda: any(report.detail.startswith("waits ") for report in am.reports))
            detail = am.last.detail
            assert re.fullmatch(r"waits for 1 free GPU of this node since \S+ \S+, until \S+ \S+", detail)
        assert am.result().fault is Fault.NONE


def test_a_wait_for_a_silent_registry_is_reported(place: Path, dockerd: Dockerd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        image = f"127.0.0.1:{silent.getsockname()[1]}/it:1"
        with fake_am(place, "true", docker_image=image) as am:
            am.start(docker=DockerSettings(dockerd.host, "none"))
            am.wait_until(lambda: any(report.detail.startswith("waits for image") for report in am.reports))
            assert am.last.detail.startswith(f"waits for image {image} from its registry since ")
            am.stop(Stop.NOW)
            assert am.result().fault is Fault.STOPPED


def test_a_container_waits_for_a_registry_without_gpus_until_it_is_stopped(place: Path, dockerd: Dockerd) -> None:
    image, one = "127.0.0.1:1/it:1", Resources(gcores=1)
    with fake_am(place, "true", docker_image=image, resources=one) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"), ledger=ledger_of(place))
        am.wait_until(lambda: sum(bool(report.waits_for) for report in am.reports) > 1)
        assert {report.waits_for for report in am.reports} == {"", f"the registry of image {image}"}
        am.stop(Stop.NOW)
        assert am.result().fault is Fault.STOPPED
        assert Phase.LEASING not in am.phases


def test_an_unavailable_image_leases_no_gpus(place: Path, dockerd: Dockerd) -> None:
    with fake_am(place, "true", docker_image="Not A Name", resources=Resources(gcores=1)) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"), ledger=ledger_of(place))
        result = am.result()
        assert result.fault is Fault.USER
        assert "not an image name" in result.message
        assert Phase.LEASING not in am.phases


def test_a_payload_in_docker_finds_its_caches_at_their_paths(place: Path, dockerd: Dockerd) -> None:
    for run, expected in (("first", []), ("second", [f"there: {cache.path}" for cache in CACHES])):
        (place / run).mkdir()
        with fake_am(place / run, KEEP, caches=CACHES, docker_image=IMAGE) as am:
            am.start(docker=DockerSettings(dockerd.host, "none"), cache=caches_of(place))
            assert am.result().fault is Fault.NONE, am.log()
            assert am.printed().decode().splitlines() == expected
    assert (place / "payload" / "caches" / "models" / "x").read_text() == "x\n"
    assert (place / "payload" / "caches" / "models" / "x").stat().st_uid == os.geteuid()


def test_a_soft_kill_in_docker_stores_output(place: Path, dockerd: Dockerd) -> None:
    script = "trap 'echo saved > output/x; exit 7' TERM; " + NEVER_ENDS
    with fake_am(place, script, {"output/.keep": ""}, docker_image=IMAGE, **output_of(place)) as am:
        am.start(docker=DockerSettings(dockerd.host, "none"))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.stop(Stop.SOFT)
        result = am.result()
        assert (result.fault, result.exit_code, len(result.outputs)) == (Fault.STOPPED, 7, 1)


def test_a_payload_in_docker_gets_its_devices_and_a_device_that_was_used_is_free_again(
    place: Path, dockerd: Dockerd
) -> None:
    env = with_devices(place, [StubDevice(), StubDevice(), StubDevice()])
    ledger = MachineLedger(str(place / "locks"), discover=lambda: devices)
    devices = tuple(Device(f"GPU-0000000{n}-aaaa-bbbb-cccc-000000000000", n, n) for n in range(3))
    script = "echo $NV_GPU $CUDA_DEVICE_ORDER [$CUDA_VISIBLE_DEVICES]; nvidia-smi -L | wc -l; ls /dev/nvidia*"
    resources = Resources(memory_mib=64, gcores=2)
    with (
        ledger.reserve("the application", 2),
        fake_am(place, script, docker_image=GPU_IMAGE, resources=resources) as am,
    ):
        docker = DockerSettings(dockerd.host, "none", "gpus", str(place / "locks"))
        am.start(
            process_env=env,
            ledger=ledger_of(place, dockerd.host),
            docker=docker,
        )
        result = am.result()
        assert result.fault is Fault.NONE, (result, am.log())
        assert am.printed().decode().split() == ["0,1", "PCI_BUS_ID", "[]", "2", "/dev/nvidia0", "/dev/nvidia1"]
        with ledger.lease(LeaseRequest("the application", "next", "tony", 2)):
            pass


def test_the_devices_of_a_docker_task_that_was_killed_are_leased_to_the_next_one(place: Path, dockerd: Dockerd) -> None:
    env = with_devices(place, [StubDevice()])
    devices = (Device("GPU-00000000-aaaa-bbbb-cccc-000000000000", 0, 0),)
    probes = LivenessProbes(docker_host=dockerd.host)
    ledger = MachineLedger(str(place / "locks"), discover=lambda: devices, probes=probes)
    resources = Resources(memory_mib=64, gcores=1)
    with (
        ledger.reserve("the application", 1),
        fake_am(place, NEVER_ENDS, docker_image=GPU_IMAGE, resources=resources) as am,
    ):
        docker = DockerSettings(dockerd.host, "none", "gpus", str(place / "locks"))
        am.start(process_env=env, ledger=ledger_of(place, dockerd.host), docker=docker)
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        assert am.task is not None
        am.task.kill()
        am.task.wait()
        assert dockerd.containers(), "nobody has removed it"
        with ledger.lease(LeaseRequest("the application", "next", "tony", 1), timeout_s=120):
            assert dockerd.containers() == []


def test_a_task_whose_gang_is_restarted_ends_its_payload_and_starts_the_next_one(place: Path) -> None:
    script = 'trap "echo term >&2; exit 0" TERM\necho "$DLAPP_GENERATION: $(ls)"\ntouch made\n'
    script += "while :; do sleep 0.05; done\n"
    with FakeAm(place, in_gang=True, **workspace_archive(place, {"run.sh": script})) as am:
        am.start()
        am.wait_for(Phase.RUNNING)
        am.wait_until(lambda: b"run.sh" in am.printed())
        am.order(generation=1, go=False)
        am.wait_until(lambda: am.last.phase is Phase.WAITING and am.last.generation == 1)
        assert (am.home / "stdout.gen0").read_text() == "0: run.sh\n"
        assert (am.home / "stderr.gen0").read_text().endswith("term\n")
        assert not (am.home / "stdout").exists()
        am.order(go=True)
        am.wait_until(lambda: (am.home / "stdout").exists() and b"run.sh" in am.printed())
        assert am.printed() == b"1: run.sh\n", "the workspace is unpacked again"
        am.stop(Stop.SOFT)
        assert am.result().fault is Fault.STOPPED
    assert {report.generation for report in am.reports if report.phase is Phase.RELEASING} == {1}


def test_a_task_that_waits_at_the_gate_waits_for_the_next_generation(place: Path) -> None:
    script = 'echo "$DLAPP_GENERATION"\n'
    with FakeAm(place, in_gang=True, generation=3, **workspace_archive(place, {"run.sh": script})) as am:
        am.orders = Orders(attempt=1, number=1, generation=3)
        am.start()
        am.wait_for(Phase.WAITING)
        am.order(generation=5)
        am.wait_until(lambda: am.last.generation == 5)
        assert {report.phase for report in am.reports if report.generation == 5} == {Phase.WAITING}
        am.order(go=True)
        assert am.result().fault is Fault.NONE
        assert am.printed() == b"5\n"


def test_a_gang_task_with_a_failed_payload_continues_in_the_next_generation(place: Path) -> None:
    script = 'echo "$DLAPP_GENERATION"; exit 3\n'
    with FakeAm(place, in_gang=True, **workspace_archive(place, {"run.sh": script})) as am:
        am.start()
        am.wait_until(lambda: bool(am.reports) and am.last.failure is not None)
        assert am.last.failure == TaskResult(fault=Fault.USER, exit_code=3)
        assert am.last.phase is Phase.RUNNING
        am.order(generation=1, go=True)
        am.wait_until(lambda: am.last.failure is not None and am.last.generation == 1)
        assert (am.home / "stdout.gen0").read_text() == "0\n"
        am.stop(Stop.SOFT)
        last = am.result()
        assert (last.fault, last.exit_code) == (Fault.USER, 3)
        assert am.printed() == b"1\n"


def test_a_task_of_a_gang_names_the_cause_of_a_failure_before_the_gang_is_restarted(place: Path) -> None:
    script = "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\n"
    with FakeAm(place, in_gang=True, **workspace_archive(place, {"run.sh": script})) as am:
        am.start()
        am.wait_until(lambda: bool(am.reports) and am.last.failure is not None)
        failure = am.last.failure
        assert failure is not None
        assert failure.diagnosis is not None
        assert (failure.diagnosis.rule, failure.diagnosis.retry) == ("module_missing", False)
        am.stop(Stop.SOFT)
        assert am.result().exit_code == 1


def test_a_gang_task_with_a_failed_payload_stores_its_output_at_the_end(place: Path) -> None:
    script = "mkdir output; echo half >output/x; exit 3\n"
    packed = workspace_archive(place, {"run.sh": script})
    with FakeAm(place, in_gang=True, **packed, **output_of(place)) as am:
        am.start()
        am.wait_until(lambda: bool(am.reports) and am.last.failure is not None)
        am.stop(Stop.SOFT)
        assert am.result().exit_code == 3
    assert (part_of(place) / "x").read_text() == "half\n"
