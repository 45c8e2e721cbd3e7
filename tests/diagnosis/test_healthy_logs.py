"""Test that nothing is named in the logs of runs that are well (`tests.diagnosis.healthy_logs`).

Of such a run no cause is asked for. So each log is searched as that of a program that fails afterwards without a word,
with an exit code that says nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.diagnosis.rules import load_rules
from dlapp.diagnosis.search import LogTail, diagnose
from tests.diagnosis.healthy_logs import HARMLESS, generated, programs, recorded

RULES = load_rules(str(Path(__file__).with_name("missing.yaml")))
GENERATED = 180


def cause(stderr: str, stdout: str = "") -> object:
    logs = [LogTail("stderr", 0, stderr.encode()), LogTail("stdout", 0, stdout.encode())]
    found = diagnose(RULES, message="", exit_code=3, signal=None, logs=logs)
    return None if found is None else (found.rule, found.evidence)


@pytest.mark.parametrize("name", recorded())
def test_output_of_healthy_real_programs_matches_no_rule(name: str) -> None:
    text = recorded()[name]
    assert cause(text) is None
    assert cause("", text) is None


@pytest.mark.parametrize("name", programs())
def test_recorded_output_of_healthy_tools_matches_no_rule(name: str) -> None:
    one = programs()[name]
    assert cause(one["stderr"], one["stdout"]) is None


def test_two_hundred_logs_of_real_programs_are_searched() -> None:
    """At least 200 logs with different texts, each of a program that ran; none of them is generated."""
    texts = [*recorded().values(), *(program["stderr"] + program["stdout"] for program in programs().values())]
    assert len({text for text in texts if text.strip()}) >= 200


@pytest.mark.parametrize("part", range(4))
def test_generated_output_of_healthy_frameworks_matches_no_rule(part: int) -> None:
    for seed in range(part, GENERATED, 4):
        assert cause(generated(seed)) is None, f"seed {seed}"


@pytest.mark.parametrize("line", HARMLESS, ids=range(len(HARMLESS)))
def test_no_harmless_line_is_taken_for_a_cause(line: str) -> None:
    assert cause(f"step 1, loss 0.3\n{line}\nstep 2, loss 0.2\n") is None


@pytest.mark.parametrize("seed", range(20))
def test_the_cause_is_found_after_harmless_lines(seed: int) -> None:
    failure = "Traceback (most recent call last):\n  File \"a\", line 1\nModuleNotFoundError: No module named 'a'\n"
    found = cause(f"{generated(seed)}\n{failure}")
    assert isinstance(found, tuple)
    assert found[0] == "module_missing"
