"""`make test-gpu`: its time, its lines, its comparisons, its CUDA program, and the run against the stub of NVML."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from tests.documented.pages import ROOT
from tests.gpu_run import cuda_program
from tests.gpu_run.__main__ import in_child
from tests.gpu_run.checks import CHECKS
from tests.gpu_run.inventory import unequal
from tests.gpu_run.nvml_answers import anonymous, unusual
from tests.gpu_run.readings import (
    DEVICE_FIELDS,
    SAMPLE_FIELDS,
    Sample,
    bus_id,
    differences,
    energy_difference,
    links_of,
    overlap_s,
    rows_of,
    sample_of,
)
from tests.gpu_run.results import (
    CHECKS_S,
    FAIL,
    NOTE,
    OK,
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
from tests.gpu_run.sharing import foreign_values, pids_in
from tests.gpu_run.workplace import Workplace, environment
from tests.services.containers.nvml_stub import MIB, StubDevice, with_devices

NEED_CUDA = {item.id for item in CHECKS if item.needs_cuda}
SHORT = "B02,B03,B05,B06,B08,B11,B13,B16,B18,B18b,B19,B20,B21,B22,B23,B24"
"""The checks that run no application, and those that the stub of NVML leaves out."""
FAKE_CUDA = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static unsigned long long used;
static int attribute_of(int which) { return which == 16 ? 132 : which == 75 ? 9 : which == 76 ? 0 : -1; }
int cuInit(unsigned flags) { return getenv("FAKE_NONE") ? 100 : flags; }
int cuDeviceGetCount(int *out) { *out = 1; return 0; }
int cuDeviceGet(int *out, int place) { *out = 40 + place; return place != 0; }
int cuDeviceGetUuid(unsigned char *out, int device) {
    for (int n = 0; n < 16; n++) out[n] = n * 16 + device - 40;
    return 0;
}
int cuDeviceGetAttribute(int *out, int which, int device) { *out = attribute_of(which); return device != 40; }
int cuDevicePrimaryCtxRetain(void **out, int device) { *out = (void *)8; return device != 40; }
int cuCtxSetCurrent(void *context) { return context != (void *)8; }
int cuModuleLoadData(void **out, const char *ptx) { *out = (void *)16; return strstr(ptx, ".target sm_75\n") == NULL; }
int cuModuleGetFunction(void **out, void *module, const char *name) {
    *out = (void *)(strcmp(name, "store") ? 24L : 32L);
    return module != (void *)16;
}
static int pending;
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    unsigned long long first = *(unsigned long long *)arguments[0];
    if (y * z * ty * tz != 1 || shared || stream || extra) return 1;
    if (function == (void *)32) pending = first == 16 ? 700 : 1;
    else dprintf(1, "kernel %llu ns, %u blocks of %u, result at %llu\n", first, x, tx,
                 *(unsigned long long *)arguments[1]);
    return 0;
}
int cuCtxSynchronize(void) { return pending; }
int cuMemAlloc_v2(unsigned long long *out, size_t size) {
    if (used + size > (3ull << 30)) return 2;
    *out = 4096 + used;
    used += size;
    return 0;
}
int cuGetErrorName(int code, const char **out) {
    *out = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return *out == NULL;
}
int cuGetErrorString(int code, const char **out) {
    *out = code == 2 ? "out of memory" : code == 700 ? "an illegal memory access was encountered" : NULL;
    return *out == NULL;
}
"""
"""A GPU of 3 GiB for the CUDA program: it checks arguments, and computes nothing."""


def check(id: str = "B07", estimate_s: float = 10, limit_s: float = 40, *, needs_cuda: bool = False) -> Check:
    return Check(id, "name", lambda _: Result(OK, ""), estimate_s, limit_s, needs_cuda)


# ---- time, lines and files ----


def test_a_check_gets_its_limit_or_the_remaining_time_or_is_skipped() -> None:
    now_s = [0.0]
    budget = Budget(330, lambda: now_s[0])
    assert budget.allowed_s(check()) == 40
    now_s[0] = 310
    assert budget.allowed_s(check()) == 20
    now_s[0] = 325
    with pytest.raises(Skipped, match="it takes 10 s, 5 of 330 s are left"):
        budget.allowed_s(check())


def test_estimates_of_all_checks_fit_the_run_and_limits_fit_six_minutes() -> None:
    assert sum(check.estimate_s for check in CHECKS) <= CHECKS_S
    assert all(check.estimate_s < check.limit_s for check in CHECKS)
    assert CHECKS_S + CHECKS[-1].limit_s <= 360
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert {f"B{number:02d}" for number in range(1, 27)} <= {check.id for check in CHECKS}


def test_a_line_has_verdict_number_name_finding_and_time_and_is_never_longer_than_one_line() -> None:
    entry = Entry(check(), Result(FAIL, "it is\nlate " + "x" * 1000), 1.26)
    assert entry.line.startswith("FAIL  B07   name: it is late xxx")
    assert entry.line.endswith("x … (1.3 s)")
    assert len(entry.line) < 340


def test_only_a_failed_check_makes_the_exit_code_nonzero() -> None:
    entries = [Entry(check(), Result(verdict, ""), 1) for verdict in (OK, SKIP, NOTE)]
    assert exit_code(entries) == 0
    assert summary(entries) == "1 ok, 1 note, 1 skip, 0 FAIL"
    assert exit_code([*entries, Entry(check(), Result(FAIL, ""), 1)]) == 1


def test_the_files_of_results_have_all_values_and_a_table_that_markdown_can_show() -> None:
    entry = Entry(check(), Result(OK, "a | b\nc", {"ms": [1, 2]}), 1.234)
    (one,) = json.loads(json.dumps(results_json([entry], stub=True)))["checks"]
    assert one == {
        "id": "B07",
        "name": "name",
        "verdict": "ok",
        "found": "a | b\nc",
        "seconds": 1.23,
        "values": {"ms": [1, 2]},
    }
    assert results_table([entry], "Title.").splitlines()[-1] == "| B07 name | ok | a \\| b c | 1.2 |"


def test_with_the_stub_a_check_of_cuda_is_skipped_and_another_runs() -> None:
    assert without_cuda(check(needs_cuda=True), "the stub answers") == Result(SKIP, "no CUDA: the stub answers")
    assert without_cuda(check(), "the stub answers") is None
    assert without_cuda(check(needs_cuda=True), "") is None


def ends(run: Callable[[Workplace], Result], limit_s: float = 60.0) -> Result:
    """Return the result of a check that does this, in a process of its own."""
    place = Workplace(Path("/"), stub=False, device={}, root=ROOT)
    return in_child(place, Check("B07", "name", run, 0, limit_s), limit_s)


def test_a_hanging_dying_or_raising_check_fails_alone() -> None:
    def hang(_: Workplace) -> Result:
        while True:
            signal.pause()

    def die(_: Workplace) -> Result:
        os._exit(3)

    def fail(_: Workplace) -> Result:
        raise Failed("too much", {"mib": 5})

    def skip(_: Workplace) -> Result:
        raise Skipped("no card")

    assert ends(hang, 0.3) == Result(FAIL, "no end in 0.3 s")
    assert ends(die) == Result(FAIL, "internal error: its process died")
    assert ends(fail) == Result(FAIL, "too much", {"mib": 5})
    assert ends(skip) == Result(SKIP, "no card", {})
    broken = ends(lambda place: Result(OK, str(1 // len(place.values))))
    assert (broken.verdict, broken.found) == (FAIL, "ZeroDivisionError: integer division or modulo by zero")
    assert "1 // len(place" in broken.values["traceback"]
    assert ends(lambda _: Result(NOTE, "text", {"a": [1]})) == Result(NOTE, "text", {"a": [1]})


# ---- nvidia-smi ----


def test_rows_of_nvidia_smi_are_read_and_an_error_that_it_prints_is_one() -> None:
    (row,) = rows_of("97, 12030, 651.20, [N/A]\n", SAMPLE_FIELDS)
    assert sample_of(row) == Sample(0.97, 12030, 651.2, None)
    with pytest.raises(ValueError, match="No devices were found"):
        rows_of("No devices were found\n", SAMPLE_FIELDS)
    assert rows_of("", SAMPLE_FIELDS) == []


def test_the_links_between_gpus_are_read_without_network_adapters_and_affinities() -> None:
    text = (
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
        "GPU0\t X \tNV18\tPIX\t0-47\t0\n"
        "GPU1\tNV18\t X \tSYS\t48-95\t1\n"
        "NIC0\tPIX\tSYS\t X \n"
        "\nLegend:\n\n  X    = Self\n"
    )
    assert links_of(text) == [("X", "NV18"), ("NV18", "X")]


def test_bus_ids_of_nvml_and_nvidia_smi_are_equal_in_one_form() -> None:
    assert bus_id("00000000:3B:00.0") == bus_id("0000:3b:00.0") != bus_id("00000001:3B:00.0")


def test_a_device_that_differs_from_nvidia_smi_or_is_missing_is_named_with_both_values() -> None:
    row = ("GPU-a", "0", "00000000:3B:00.0", "81559", "Exclusive_Process", "Enabled", "Disabled")
    rows = [dict(zip(DEVICE_FIELDS, row, strict=True))]
    one = Device("GPU-a", 0, 3, "", 81559, "00000000:3b:00.0", "exclusive")
    assert unequal([one], rows) == []
    assert unequal([Device("GPU-a", 1, 3, "", 81559, "00000000:3b:00.0", "default")], rows) == [
        "gpu1: index is 1, not 0",
        "gpu1: mode is default, not exclusive",
    ]
    assert unequal([Device("GPU-b", 0, 0)], rows) == ["GPU-a: not discovered", "GPU-b: nvidia-smi does not show it"]


@pytest.mark.parametrize(
    ("name", "near", "far"),
    [("utilisation", 0.91, 0.88), ("memory_mib", 10_600, 10_800), ("power_w", 620, 630), ("power_w", 380, 370)],
)
def test_a_report_may_differ_from_the_measurement_by_its_tolerance(name: str, near: float, far: float) -> None:
    theirs = [Sample(0.98, 9_900, 480, 60), Sample(1.0, 10_100, 520, 60), Sample(None, None, None, None)]
    ours = {"utilisation": 1.0, "memory_mib": 10_000, "power_w": 500}
    assert differences(ours | {name: near}, theirs) == []
    (found,) = differences(ours | {name: far}, theirs)
    assert found.startswith(f"{name} is {far:.2f}, ")
    assert differences(ours | {name: None}, theirs)[0].startswith(f"{name} is not known, ")
    assert differences({}, theirs[2:]) == []


def test_an_energy_is_compared_with_the_mean_power_over_the_time() -> None:
    assert energy_difference(10_000, 500, 20) == energy_difference(4_100, 500, 20) == ""
    assert energy_difference(3_900, 500, 20) == "the energy is 3900 J, 0.39 of 500 W over 20 s"
    assert energy_difference(15_000, 500, 20) != ""
    assert energy_difference(None, 500, 20) == energy_difference(10, None, 20) == ""


def test_two_times_on_one_gpu_overlap_or_have_a_gap() -> None:
    assert overlap_s((1, 4), (3, 9)) == 1
    assert overlap_s((5, 9), (1, 3)) == -2


# ---- what dlapp says ----


def test_foreign_processes_are_found_wherever_a_status_has_them() -> None:
    status = {"containers": [{"usage": {"devices": [{"foreign": [{"pid": 4711}]}]}}], "foreign_gpu_mib": 0}
    assert foreign_values(status) == [[{"pid": 4711}]]
    assert foreign_values({"containers": [{"foreign": []}]}) == []
    assert pids_in([[{"pid": 4711, "host": "a"}, {"children": [{"pid": 5}]}], {"pid": None}, "6"]) == {4711, 5}


def test_the_environment_of_a_run_drops_the_callers_settings_and_hidden_gpus(tmp_path: Path) -> None:
    base = {"DLAPP_LOCAL_GCORES": "0", "CUDA_VISIBLE_DEVICES": "", "HOME": "/root", "PATH": "/bin", "PYTHONPATH": "/x"}
    found = environment(tmp_path, base, stub=False)
    assert "DLAPP_LOCAL_GCORES" not in found
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert (found["HOME"], found["PATH"]) == (f"{tmp_path}/home", "/bin")
    assert found["PYTHONPATH"] == f"{tmp_path}/site:/x"


# ---- the CUDA program ----


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a libcuda.so.1 that checks its arguments."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler: the library in the place of CUDA cannot be made")
    directory = tmp_path_factory.mktemp("cuda")
    source = directory / "cuda.c"
    source.write_text(FAKE_CUDA)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / cuda_program.LIBRARY, source], check=True)
    return directory


def ran(library: Path, *words: str, **env: str) -> tuple[int, list[str], str]:
    """Return exit code, events (or lines that are none) and errors of the CUDA program."""
    done = subprocess.run(
        [sys.executable, "-I", cuda_program.__file__, *words],
        env=os.environ | {"LD_LIBRARY_PATH": str(library)} | env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [json.loads(line)["event"] if line.startswith("{") else line for line in done.stdout.splitlines()]
    return done.returncode, lines, done.stderr.strip()


def test_the_cuda_program_counts_gpus_and_reports_none_without_cuda(fake_cuda: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", cuda_program.__file__, "devices"],
        env=os.environ | {"LD_LIBRARY_PATH": str(fake_cuda)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["count"], found["uuids"]) == (1, ["GPU-00102030-4050-6070-8090-a0b0c0d0e0f0"])
    assert ran(fake_cuda, "devices", FAKE_NONE="1")[:2] == (0, ["devices"])
    assert ran(fake_cuda, "burn", "0", FAKE_NONE="1")[0] == 1


def test_the_cuda_program_fills_the_gpu_with_kernels_of_twenty_milliseconds_or_one_thread(fake_cuda: Path) -> None:
    code, lines, _ = ran(fake_cuda, "burn", "0.01", "--mib", "1")
    kernels = [line for line in lines if line.startswith("kernel ")]
    assert code == 0
    assert [line for line in lines if line not in kernels] == ["context", "memory", "busy", "end"]
    assert set(kernels) == {f"kernel 20000000 ns, 528 blocks of 256, result at {4096 + (1 << 20)}"}
    assert "kernel 20000000 ns, 1 blocks of 1, result at 4096" in ran(fake_cuda, "burn", "0.01", "--one-thread")[1]


def test_the_cuda_program_ends_with_the_names_of_cuda_for_which_dlapp_has_a_cause(fake_cuda: Path) -> None:
    code, lines, error = ran(fake_cuda, "memory")
    assert (code, lines) == (1, ["context"])
    assert error == "CUDA error: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    code, lines, error = ran(fake_cuda, "store")
    assert (code, lines) == (1, ["context"])
    assert error == (
        "CUDA error: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    )


def test_the_cuda_program_holds_memory_without_a_kernel(fake_cuda: Path) -> None:
    assert ran(fake_cuda, "hold", "0", "--mib", "64")[:2] == (0, ["context", "memory", "end"])


# ---- NVML's raw answers ----

RECORDINGS = sorted((ROOT / "tests" / "gpu_run" / "recordings").glob("*.json"))
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.gpu_run.nvml_answers import recorded
print(json.dumps(recorded(sys.argv[2])))
"""


def stub_answers(place: Path, device: StubDevice) -> Any:
    """Return the answers of the stub of NVML that shows a device, as --record writes them."""
    variables = with_devices(place, [device])
    words = [sys.executable, "-I", "-c", ASK, str(ROOT), device.uuid]
    done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def value_of(answers: dict[str, Any], name: str, field: str | int | None = None) -> Any:
    """Return a value of a recording, or a field or item of it; None: the GPU does not report it."""
    value = answers.get(name, {}).get("value")
    return value if field is None or value is None else value[field]


def stub_of(recording: dict[str, Any]) -> StubDevice:
    """Return the device of the stub that answers as a recorded GPU does."""
    answers = recording["answers"]
    memory = "nvmlDeviceGetMemoryInfo(nvmlMemory_v2)"
    remapped = "nvmlDeviceGetRemappedRows"
    return StubDevice(
        uuid="GPU-recorded",
        name=recording["card"],
        memory_bytes=value_of(answers, "nvmlDeviceGetMemoryInfo", "total"),
        used=value_of(answers, memory, "used"),
        reserved=value_of(answers, memory, "reserved"),
        mode=value_of(answers, "nvmlDeviceGetComputeMode"),
        minor=value_of(answers, "nvmlDeviceGetMinorNumber"),
        temperature=value_of(answers, "nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)"),
        slowdown=value_of(answers, "nvmlDeviceGetTemperatureThreshold(NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)"),
        utilization=value_of(answers, "nvmlDeviceGetUtilizationRates", "gpu"),
        milliwatts=value_of(answers, "nvmlDeviceGetPowerUsage"),
        millijoules=value_of(answers, "nvmlDeviceGetTotalEnergyConsumption"),
        ecc=value_of(answers, "nvmlDeviceGetTotalEccErrors(NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)"),
        pages_pending=value_of(answers, "nvmlDeviceGetRetiredPagesPendingStatus"),
        remap_pending=value_of(answers, remapped, 2),
        remap_failed=value_of(answers, remapped, 3),
        recovery=value_of(answers, "nvmlDeviceGetFieldValues(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)"),
    )


COMPARED = (
    *("nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetComputeMode", "nvmlDeviceGetPowerUsage"),
    *("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetRetiredPagesPendingStatus"),
    "nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)",
    "nvmlDeviceGetTemperatureThreshold(NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)",
    "nvmlDeviceGetTotalEccErrors(NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)",
    "nvmlDeviceGetFieldValues(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)",
)
"""Answers that the stub gives from one number, and so as a recorded GPU gave them."""


def compare(recording: dict[str, Any], place: Path) -> dict[str, Any]:
    """Return the answers in which the stub differs from a recording: name -> both codes and values."""
    now = stub_answers(place, stub_of(recording))["answers"]
    found = {}
    for name in COMPARED:
        theirs = [recording["answers"][name][value] for value in ("code", "value")]
        if (mine := [now[name][value] for value in ("code", "value")]) != theirs:
            found[name] = (mine, theirs)
    memory = "nvmlDeviceGetMemoryInfo(nvmlMemory_v2)"
    if recording["answers"][memory]["code"] == 0:
        for part in ("total", "used", "reserved"):
            if now[memory]["value"][part] != recording["answers"][memory]["value"][part]:
                found[f"{memory}.{part}"] = (now[memory]["value"], recording["answers"][memory]["value"])
    return found


if RECORDINGS:

    @pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)
    def test_the_stub_answers_as_each_recorded_gpu(file: Path, tmp_path: Path) -> None:
        recording = json.loads(file.read_text(encoding="utf-8"))
        assert recording["version"] == 1
        assert compare(recording, tmp_path) == {}


def test_a_recording_matches_the_stub_and_a_changed_one_does_not(tmp_path: Path) -> None:
    odd = StubDevice(
        uuid="GPU-recorded",
        minor=3,
        name="Odd Card",
        used=77 * MIB,
        mode=3,
        temperature=41,
        slowdown=None,
        milliwatts=123,
        ecc=None,
        recovery=2,
    )
    recording = stub_answers(tmp_path, odd)
    assert recording["card"] == "Odd Card"
    assert compare(recording, tmp_path) == {}
    recording["answers"]["nvmlDeviceGetPowerUsage"] = {"code": 3, "value": None, "ms": 0.1}
    recording["answers"]["nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)"]["code"] = 999
    assert set(compare(recording, tmp_path)) == {"nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)"}


def test_a_recording_names_no_gpu_and_no_process() -> None:
    value = {"pid": 4711, "usedGpuMemory": 5, "busId": "00000000:3B:00.0", "inner": [{"clusterUuid": [1, 2]}]}
    assert anonymous(value) == {
        "pid": 0,
        "usedGpuMemory": 5,
        "busId": "removed",
        "inner": [{"clusterUuid": ["removed", "removed"]}],
    }
    assert anonymous("GPU-1", "nvmlDeviceGetUUID") == "removed"


def test_codes_of_a_driver_that_lacks_a_question_are_usual_and_others_are_named() -> None:
    codes = {"a": 0, "b": 3, "c": 13, "d": 999, "e": None, "f": 4}
    assert unusual({name: {"code": code} for name, code in codes.items()}) == {"d": 999}


# ---- the whole run ----


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory that other users can read, which pytest's are not: the run asks the stub as nobody, too."""
    with tempfile.TemporaryDirectory(prefix="dlapp-test-gpu-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def prepared_run(place: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, list[str], str]:
    """Run `python -m tests.gpu_run` against the stub; return the exit code, the lines and the errors."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_run", "--stub", "--results", str(place / "results"), *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=550,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def verdicts(lines: Sequence[str]) -> dict[str, str]:
    """Return the verdict of each line of a check, by its number."""
    words = [line.split() for line in lines]
    return {line[1]: line[0] for line in words if len(line) > 1 and line[0] in (OK, FAIL, SKIP, NOTE)}


def test_the_prepared_run_reports_each_check_and_leaves_no_files(place: Path) -> None:
    code, lines, errors = prepared_run(place, "--only", SHORT)
    assert code == 0, "\n".join([*lines, errors])
    assert lines[0] == ("the stub of NVML: 1 GPU; gpu0, NVIDIA Test Card, GPU-00000000-aaaa-bbbb-cccc-000000000000")
    found = verdicts(lines)
    assert list(found) == [check.id for check in CHECKS if check.id in (*SHORT.split(","), "B01", "B26")]
    assert {id for id, verdict in found.items() if verdict == SKIP} - {"B06"} == NEED_CUDA
    assert all("no CUDA: the stub of NVML answers" in line for line in lines if line.split()[1] in NEED_CUDA)
    assert [found[id] for id in ("B01", "B02", "B03", "B05", "B18b", "B26")] == [NOTE, OK, OK, OK, OK, OK]
    assert "gpu0 application_1_0001" in next(line for line in lines if " B05 " in line)
    assert "asked for 2 gcores, this machine has 1 gcore" in next(line for line in lines if " B18b " in line)
    results = json.loads((place / "results/results.json").read_text())
    assert {check["id"]: check["verdict"] for check in results["checks"]} == found
    assert (results["stub"], results["machine"]["driver"]) == (True, "550.54.15")
    assert (place / "results/results.md").read_text().count("\n| B") == len(found)
    assert [path.name for path in place.iterdir() if path.name.startswith("dlapp-gpu-run")] == []


def test_checks_over_the_time_limit_are_skipped_except_the_last(place: Path) -> None:
    code, lines, errors = prepared_run(place, "--only", "B03,B17", "--limit", "0", "--record", f"{place}/raw.json")
    assert code == 0, "\n".join([*lines, errors])
    assert verdicts(lines) == {"B01": SKIP, "B03": SKIP, "B17": SKIP, "B26": OK}
    assert "no time: it takes 42 s, 0 of 0 s are left" in next(line for line in lines if " B17 " in line)
    assert json.loads((place / "raw.json").read_text())["answers"]["nvmlDeviceGetUUID"]["value"] == "removed"


def test_a_check_that_does_not_exist_and_a_file_that_is_no_wheel_are_refused(place: Path) -> None:
    code, _, errors = prepared_run(place, "--only", "B99")
    assert (code, errors.splitlines()[-1][:34]) == (2, "Error: B99: there is no such check")
    (place / "a.whl").write_text("no archive")
    code, _, errors = prepared_run(place, f"{place}/a.whl")
    assert code == 2
    assert errors.startswith(f"Error: {place}/a.whl: ")
    assert [path.name for path in place.iterdir() if path.name.startswith("dlapp-gpu-run")] == []


def test_a_python_without_the_libraries_is_refused_with_their_names_and_wheels_bring_them(place: Path) -> None:
    import click
    import pynvml

    # Without site-packages, as the Python of a machine on which nothing is installed.
    bare = place / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)

    def words(*wheels: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bare / "bin/python", "-m", "tests.gpu_run", "--stub", "--only", "B03", *wheels],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(place)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    refused = words()
    assert refused.returncode == 2
    assert "has no click, h11, pathspec, yaml, rich, pynvml: give wheels" in refused.stderr
    wheel = place / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(pynvml.__file__, "pynvml.py")
        for file in Path(click.__file__).parent.glob("*.py"):
            archive.write(file, f"click/{file.name}")
    assert "has no h11, pathspec, yaml, rich: give wheels" in words(wheel).stderr


@pytest.mark.slow
@pytest.mark.applications
def test_the_whole_prepared_run_finds_no_fault_against_the_stub(place: Path) -> None:
    code, lines, errors = prepared_run(place)
    found = verdicts(lines)
    assert [line for line in lines if line.startswith(FAIL)] == [], errors
    assert code == 0
    assert list(found) == [check.id for check in CHECKS]
    assert {id for id, verdict in found.items() if verdict == SKIP} - {"B06"} == NEED_CUDA
