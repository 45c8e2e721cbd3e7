"""Run a parser on changed samples: it ends in time, in little memory, and raises only the errors that it documents.

200 cases each, 2,000 with DLAPP_FAULTS=full; DLAPP_FUZZ_CASES names another number (`make fuzz`: 100,000). Of those of
JSON one half has a hostile value in one place, and the other half random changes. The first tier always takes the same
cases, so that it fails for what was changed and not by chance; the others do not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dlapp.errors import DlappError
from tests.fuzz.mutation import hostile_values, mutated, mutated_json
from tests.tiers import FULL

CASES = int(os.environ.get("DLAPP_FUZZ_CASES", "2000" if FULL else "200"))
MAX_MEMORY = 64 << 20
"""What a case may take above its input [bytes]."""
MAX_CPU_S = 1.0
"""Processor time of the process, so that a busy machine makes no difference."""

_SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=CASES <= 200,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # a case is a number, and a smaller one is no simpler case
    print_blob=True,
)


def fuzz(
    parse: Callable[[bytes], Any],
    samples: Sequence[bytes],
    *,
    errors: tuple[type[BaseException], ...] = (DlappError,),
    strategy: st.SearchStrategy[bytes] | None = None,
    cases: int = CASES,
) -> None:
    """Check a parser: each sample as it is, which must pass, then changed ones.

    Args:
        parse: takes the bytes, whatever way the program gets them.
        samples: valid inputs.
        errors: what it may raise.
        strategy: for changed inputs; that of `mutation.mutated` if None.
        cases: how many changed ones.
    """
    for sample in samples:
        parse(sample)

    @settings(_SETTINGS, max_examples=cases)
    @given(data=mutated(samples) if strategy is None else strategy)
    def run(data: bytes) -> None:
        with limits(len(data)), suppress(*errors):
            parse(data)

    run()


def fuzz_json(
    parse: Callable[[bytes], Any],
    samples: Sequence[Any],
    *,
    errors: tuple[type[BaseException], ...] = (DlappError,),
) -> None:
    """Check a parser of JSON; the samples are values, each part of which is every hostile value first."""
    for data in hostile_values(samples, CASES // 2):
        with limits(len(data)), suppress(*errors):
            parse(data)
    texts = [json.dumps(sample).encode() for sample in samples]
    fuzz(parse, texts, errors=errors, strategy=mutated_json(samples), cases=CASES // 2)


@contextmanager
def limits(input_bytes: int) -> Iterator[None]:
    """Fail where a block takes more memory or processor time than a case may."""
    _forget_peak()
    before = _memory("VmRSS")
    began = time.process_time()
    yield
    took = time.process_time() - began
    grown = _memory("VmHWM") - before
    assert took < MAX_CPU_S, f"took {took:.1f} s of processor time for {input_bytes} bytes"
    assert grown < MAX_MEMORY + input_bytes, f"took {grown >> 20} MiB of memory for {input_bytes} bytes"


def _forget_peak() -> None:
    # Source: proc(5), clear_refs: 5 sets the peak of resident memory to what it is now.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _memory(name: str) -> int:
    """Return a size of this process [bytes]; C libraries' memory counts, too."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    raise AssertionError(f"/proc/self/status has no {name}")
