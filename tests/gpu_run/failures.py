"""Checks of programs that fail on the GPU, and of a machine on which everything is killed."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.gpu_run.facts import MEMORY_BACK_MIB, opened, state_of
from tests.gpu_run.payloads import rule_of
from tests.gpu_run.results import OK, Failed, Result

if TYPE_CHECKING:
    from tests.gpu_run.workplace import Workplace

HELD_MIB, HELD_SHARE = 30_000, 0.4
"""What the killed program holds: so much, or this share of a smaller GPU."""
BACK_S = 5.0
"""When the memory of killed programs must be free: so long dlapp waits for it before a lease [s]."""
XID_S = 8.0
"""For how long an Xid is waited for after the program has ended [s]."""


def out_of_memory(place: Workplace) -> Result:
    """B11: a program that allocates more memory than there is: the cause is named, and the GPU stays in use."""
    view = _failed(place, "memory", "gpu_memory")
    return Result(OK, f"{view['cause_found']}; the GPU is free", view)


def killed(place: Workplace) -> Result:
    """B12: SIGKILL of every process of the run, under a program with memory and a kernel on the GPU."""
    before = state_of(place)
    mib = min(HELD_MIB, int(place.device["memory_mib"] * HELD_SHARE))
    work = "exec sleep 120" if place.stub else place.cuda("burn", 120, "--mib", mib)
    with place.application("killed", work) as application:
        application.running()
        if not place.stub:
            application.wait_event("busy")
        began_s = time.monotonic()
        pids = place.kill_processes()
        gone_s = back_s = None
        most_mib = (before["used_mib"] or 0) + MEMORY_BACK_MIB
        while time.monotonic() - began_s < 2 * BACK_S and back_s is None:
            now, passed_s = state_of(place), time.monotonic() - began_s
            if gone_s is None and set(now["pids"]) <= set(before["pids"]):
                gone_s = passed_s
            if gone_s is not None and (now["used_mib"] or 0) <= most_mib:
                back_s = passed_s
            time.sleep(0.05)
    values = {"killed": len(pids), "mib": mib, "processes_gone_s": gone_s, "memory_back_s": back_s}
    if back_s is None or back_s > BACK_S:
        raise Failed(f"{mib} MiB are not free {BACK_S:g} s after SIGKILL: {state_of(place)}", values)
    began_s = time.monotonic()
    with place.application("next", "true" if place.stub else place.cuda("burn", 0.1)) as following:
        following.succeeded(40.0)
    values["next_s"] = round(time.monotonic() - began_s, 1)
    what = "" if place.stub else f"; processes gone after {gone_s:.2f} s, {mib} MiB free after {back_s:.2f} s"
    return Result(OK, f"{len(pids)} processes killed{what}; the next application took {values['next_s']} s", values)


def xid(place: Workplace) -> Result:
    """B13: a store to a bad address, a real Xid: the program's fault, no quarantine; what reports it is recorded."""
    began = _kernel_log_end()
    found: list[int] = []
    end = threading.Event()
    watch = threading.Thread(target=_collect_xids, args=(place, found, end))
    watch.start()
    try:
        view = _failed(place, "store", "gpu_program_error", "gpu_xid_program")
        end_s = time.monotonic() + XID_S
        while not found and time.monotonic() < end_s:
            time.sleep(0.1)
    finally:
        end.set()
        watch.join()
    lines = [line for line in _kernel_log(began) if "NVRM: Xid" in line]
    numbers = [int(match[1]) for line in lines if (match := re.search(r"Xid \([^)]*\): (\d+)", line))]
    values = {**view, "events": found, "kernel_log": numbers, "lines": lines[:4]}
    logged = f"kernel log {numbers}" if began is not None else "the kernel log is not readable"
    return Result(OK, f"{view['cause_found']}; NVML's events {found}, {logged}; no quarantine", values)


def _failed(place: Workplace, mode: str, *rules: str) -> dict[str, Any]:
    """Run the CUDA program in a mode that fails; return what was found. Raises Failed: another cause, or quarantine."""
    with place.application(mode, place.cuda(mode)) as application:
        view = application.ended(40.0)
        printed = application.printed()[-500:]
    cause = view["diagnosis"]["diagnosis"] if view["diagnosis"] else {}
    values = {"diagnostics": view["diagnostics"], "printed": printed, "cause_found": cause.get("cause")}
    if view["cause"] == "succeeded" or rule_of(view) not in rules or cause["fault"] != "user":
        raise Failed(f"{view['cause']}, {cause or view['diagnostics']}: {printed}", values)
    place.expect_free()
    return values


def _collect_xids(place: Workplace, found: list[int], end: threading.Event) -> None:
    """Add each Xid that NVML reports to a list, until the event."""
    with opened(place) as (nvml, handle):
        events = nvml.nvmlEventSetCreate()
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            while not end.is_set():
                try:
                    found.append(int(nvml.nvmlEventSetWait_v2(events, 200).eventData))
                except nvml.NVMLError as error:
                    if error.value != nvml.NVML_ERROR_TIMEOUT:
                        raise
        nvml.nvmlEventSetFree(events)


def _kernel_log_end() -> int | None:
    """Return the number of lines in the kernel's log now; None: not readable."""
    try:
        return len(_kernel_log(0))
    except OSError:
        return None


def _kernel_log(after: int | None) -> list[str]:
    """Return the lines of the kernel's log after so many. Raises OSError: not readable."""
    if after is None:
        return []
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines = []
    try:
        while True:
            try:
                lines.append(os.read(fd, 8192).decode(errors="replace").rstrip())
            except BlockingIOError:
                return lines[after:]
            except BrokenPipeError:
                continue  # lines were overwritten meanwhile
    finally:
        os.close(fd)
