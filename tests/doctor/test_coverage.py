"""Each finding that dlapp-doctor can report as a failure or a warning has a case, or a reason why it has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest

from dlapp.doctor.findings import FAIL, WARN
from tests.doctor import test_faults_of_a_cluster, test_faults_of_a_ledger, test_faults_of_a_machine

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = {"failed": FAIL, "warned": WARN, "clock_finding": WARN}
CASES = [*test_faults_of_a_machine.CASES, *test_faults_of_a_cluster.CASES, *test_faults_of_a_ledger.CASES]
OTHERS: Mapping[tuple[str, str], str] = {
    (FAIL, "node.disk"): (
        "a container cannot start on a full disk, so the finding is one of `node`: "
        "tests/doctor/test_faults_of_a_cluster.py::CASES; the disk that fills up later: "
        "tests/doctor/test_agreement.py::test_a_node_whose_disk_is_full_fails"
    ),
    (FAIL, "local.locks"): (
        "no file system of a test machine gives one lock twice; a process for which all do: "
        "tests/doctor/test_findings.py::test_a_file_system_that_gives_one_lock_twice_is_a_failure"
    ),
    (WARN, "local.logout"): (
        "a test machine has no logind; its answers: "
        "tests/doctor/test_findings.py::test_a_logout_that_ends_applications_is_warned_of"
    ),
    (FAIL, "docker.gpus"): "tests/runtime/gpu/test_in_docker.py::test_the_doctor_reports_the_gpu_mode_and_the_reason",
    (FAIL, "yarn.calculator"): (
        "a ResourceManager of Hadoop 3 with this fault does not start; the answers of one of Hadoop 2: "
        "tests/cluster/yarn/test_doctor.py::test_a_calculator_that_ignores_gpus_is_a_failure_with_the_property"
    ),
    (WARN, "yarn.calculator"): (
        "only Hadoop 2 does not report the scheduled types: "
        "tests/cluster/yarn/test_doctor.py::test_a_calculator_that_ignores_gpus_is_a_failure_with_the_property"
    ),
    (WARN, "yarn.dialect"): (
        "the test clusters count GPUs: "
        "tests/cluster/yarn/test_doctor.py::test_a_cluster_without_gpus_is_a_warning_unless_configured"
    ),
    (WARN, "yarn.recovery"): (
        "applications run until the ResourceManager is restarted: tests/cluster/yarn/test_doctor.py::"
        "test_no_nodes_ill_nodes_small_maxima_and_odd_queues_each_have_their_line"
    ),
    (WARN, "hdfs.protocol"): (
        "the Python of the tests has a library for CRC32C: "
        "tests/storage/hdfs/test_native.py::test_the_doctor_reports_the_file_access_mode_and_reason"
    ),
    (WARN, "node.health"): (
        "tests/cluster/yarn/executor/test_doctor.py::"
        "test_for_a_user_with_an_account_the_doctor_finds_the_own_user_and_no_health_script"
    ),
}
"""Reasons and tests of what has no case."""


def findings_of_program() -> set[tuple[str, str]]:
    """Return verdict and subject of each call that makes a finding; a value in an f-string is ``*``."""
    found: set[tuple[str, str]] = set()
    for file in sorted((ROOT / "dlapp" / "doctor").glob("*.py")):
        if file.name != "findings.py":
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    found |= set(_of_function(node))
    return found


def _of_function(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    known: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = node.value
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            pairs = zip(node.targets[0].elts, node.value.elts, strict=True)
            known |= {target.id: value for target, value in pairs if isinstance(target, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = known.get(node.func.id, node.func) if isinstance(node.func, ast.Name) else node.func
            names = [called.body, called.orelse] if isinstance(called, ast.IfExp) else [called]
            for name in names:
                if isinstance(name, ast.Name) and name.id in VERDICTS:
                    yield VERDICTS[name.id], _text(node.args[0], known)


def _text(subject: ast.expr, known: Mapping[str, ast.expr]) -> str:
    if isinstance(subject, ast.Name):
        subject = known[subject.id]
    if isinstance(subject, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in subject.values)
    assert isinstance(subject, ast.Constant)
    return str(subject.value)


def test_each_failure_and_each_warning_has_a_case_or_a_reason() -> None:
    program = findings_of_program()
    assert len(program) > 60
    subjects = {subject for _, subject in program}
    cases = {case.finding for case in CASES}
    without = {
        (verdict, subject)
        for verdict, subject in program - cases - set(OTHERS)
        if not any(verdict == of_case and name not in subjects and fnmatch(name, subject) for of_case, name in cases)
    }
    assert without == set()
    assert set(OTHERS) <= program
    assert set(OTHERS) & cases == set()


@pytest.mark.parametrize("reason", OTHERS.values())
def test_tests_named_by_a_reason_exist(reason: str) -> None:
    for name in (word.rstrip(";:") for word in reason.split() if "::" in word):
        file, _, test = name.partition("::")
        assert test in (ROOT / file).read_text(encoding="utf-8")


def test_the_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
