"""NVML's raw answers on one GPU: each question with its code, its value and what it took.

`make test-gpu ARGS="--record FILE"` writes them; a file in tests/gpu_run/recordings is compared with the stub of NVML
(test_recordings.py). The format, JSON with sorted keys:

    {"version": 1, "driver": "580.95.05", "pynvml": "13.590.44", "card": "NVIDIA H200",
     "answers": {"nvmlDeviceGetComputeMode": {"code": 0, "value": 0, "ms": 0.02}, ...}}

``code`` is nvmlReturn_t (3: not supported, 4: no permission, 13: the library has no such function), or null where
pynvml has no such function. ``value`` is null with a code other than 0; a structure of C is an object, an array a list.
``ms`` is the median of `REPEATS` calls, of which the first is left out. What names one GPU or process is replaced:
uuids, serial numbers and bus ids by a text, process ids by 0. A question with arguments has them in its name:
``nvmlDeviceGetFieldValues(230)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

VERSION = 1
REPEATS = 5
SUPPORTED_NOT = (3, 4, 13)
"""Codes that are no fault of a driver: not supported, no permission, function not found."""
MAX_DEPTH = 4
MAX_ITEMS = 32
"""Limits of a value; a structure of NVML has at most some ten fields, a list of processes can be long."""
_NAMES_ONE = ("uuid", "serial", "busid", "clusteruuid", "legacy")


class Question(NamedTuple):
    """A question on a GPU: its name with arguments, and the call; AttributeError: pynvml does not have it."""

    name: str
    ask: Callable[[Any, Any], Any]


def _of(name: str, *arguments: Any) -> Question:
    """Return the question of a function of the handle and plain arguments, which are names of constants or values."""

    def ask(nvml: Any, handle: Any) -> Any:
        values = [getattr(nvml, argument) if isinstance(argument, str) else argument for argument in arguments]
        return getattr(nvml, name)(handle, *values)

    shown = f"({', '.join(map(str, arguments))})" if arguments else ""
    return Question(f"{name}{shown}", ask)


def _field(name: str) -> Question:
    def ask(nvml: Any, handle: Any) -> Any:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [getattr(nvml, name)])
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
        return value.value.uiVal

    return Question(f"nvmlDeviceGetFieldValues({name})", ask)


def _fabric(nvml: Any, handle: Any) -> Any:
    info = nvml.c_nvmlGpuFabricInfo_v2_t()  # with its version
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info


QUESTIONS = (
    Question("nvmlSystemGetDriverVersion", lambda nvml, _: nvml.nvmlSystemGetDriverVersion()),
    Question("nvmlSystemGetCudaDriverVersion", lambda nvml, _: nvml.nvmlSystemGetCudaDriverVersion()),
    Question("nvmlDeviceGetCount", lambda nvml, _: nvml.nvmlDeviceGetCount()),
    *map(
        _of,
        (
            *("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo"),
            *("nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetMemoryInfo"),
            *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
            *("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetUtilizationRates"),
            *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetRemappedRows"),
            *("nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"),
            *("nvmlDeviceGetEccMode", "nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetSupportedEventTypes"),
            *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrPcieLinkWidth"),
            *("nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetGspFirmwareMode", "nvmlGpmQueryDeviceSupport"),
        ),
    ),
    _of("nvmlDeviceGetMemoryInfo", "nvmlMemory_v2"),
    _of("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    _of("nvmlDeviceGetTemperatureV", "NVML_TEMPERATURE_GPU"),
    _of("nvmlDeviceGetTemperatureThreshold", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"),
    _of("nvmlDeviceGetTotalEccErrors", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"),
    _of(
        "nvmlDeviceGetMemoryErrorCounter",
        *("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC", "NVML_MEMORY_LOCATION_DRAM"),
    ),
    _of("nvmlDeviceGetMemoryAffinity", 4, 0),
    _of("nvmlDeviceGetNvLinkState", 0),
    _field("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
    _field("NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT"),
    Question("nvmlDeviceGetGpuFabricInfoV", _fabric),
)
"""What dlapp asks of a GPU, or could, and what says how the GPU is."""


def answers(nvml: Any, handle: Any, *, repeats: int = REPEATS) -> dict[str, dict[str, Any]]:
    """Return the answers to all questions: name -> ``code``, ``value``, ``ms``."""
    found = {}
    for question in QUESTIONS:
        times_ms = []
        for _ in range(repeats):
            began_s = time.perf_counter()
            code, value = _answer(nvml, handle, question)
            times_ms.append((time.perf_counter() - began_s) * 1000)
        found[question.name] = {
            "code": code,
            "value": value,
            "ms": round(statistics.median(times_ms[1:] or times_ms), 3),
        }
    return found


def _answer(nvml: Any, handle: Any, question: Question) -> tuple[int | None, Any]:
    try:
        return 0, plain(question.ask(nvml, handle))
    except nvml.NVMLError as error:
        return int(error.value), None
    except AttributeError:
        return None, None


def unusual(found: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the answers whose code is neither success nor one of a driver that does not support the question."""
    return {name: one["code"] for name, one in found.items() if one["code"] not in (None, 0, *SUPPORTED_NOT)}


def recorded(uuid: str) -> dict[str, Any]:
    """Return the file of answers on a GPU, without what names it."""
    import pynvml

    pynvml.nvmlInit()
    try:
        found = answers(pynvml, handle_of(pynvml, uuid))
        return {
            "version": VERSION,
            "driver": found["nvmlSystemGetDriverVersion"]["value"],
            "pynvml": importlib.metadata.version("nvidia-ml-py"),
            "card": found["nvmlDeviceGetName"]["value"],
            "answers": {name: {**one, "value": anonymous(one["value"], name)} for name, one in found.items()},
        }
    finally:
        pynvml.nvmlShutdown()


def handle_of(nvml: Any, uuid: str) -> Any:
    """Return the handle of a GPU or MIG device. Raises LookupError: NVML does not show it."""
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        parts = []
        with contextlib.suppress(nvml.NVMLError):
            for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part))
        for item in (gpu, *parts):
            if plain(nvml.nvmlDeviceGetUUID(item)) == uuid:
                return item
    raise LookupError(f"NVML does not show {uuid}")


def plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a value of pynvml as JSON can have it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if depth <= 0:
        return "..."
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(item, depth - 1) for item in list(value)[:MAX_ITEMS]]
    if isinstance(value, Mapping):
        return {str(key): plain(one, depth - 1) for key, one in value.items()}
    fields = dict(_fields(value))
    return {name: plain(one, depth - 1) for name, one in fields.items()} if fields else getattr(value, "value", None)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for item in getattr(value, "_fields_", ()):
        yield item[0], getattr(value, item[0])
    if not hasattr(value, "_fields_"):
        # pynvml's own objects for lists of processes.
        yield from getattr(value, "__dict__", {}).items()


def anonymous(value: Any, name: str = "") -> Any:
    """Return a value without uuids, serial numbers, bus ids and process ids."""
    key = name.lower()
    if isinstance(value, Mapping):
        return {inner: anonymous(one, inner) for inner, one in value.items()}
    if isinstance(value, list):
        return [anonymous(item, name) for item in value]
    if key == "pid":
        return 0
    if value is not None and any(word in key for word in _NAMES_ONE):
        return "removed"
    return value
