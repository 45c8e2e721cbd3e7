"""The sections of a tier as parameters of a test, and what its clusters give to the commands."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documented.runner import run_section
from tests.documented.scenarios import Section, scenario_of
from tests.documented.table import sections

MARKS = {"hadoop": [pytest.mark.hadoop], "dockerd": [pytest.mark.docker], "": []}


def parameters(*tiers: str) -> Iterator[object]:
    """Yield each section of these tiers, with the marks of what it needs."""
    for tier in tiers:
        slow = [pytest.mark.slow] if tier == "slow" else []
        for section, left_out in sections(tier).items():
            marks = [*MARKS[scenario_of(section).cluster], *slow]
            yield pytest.param(section, left_out, marks=marks, id=name_of(section))


def name_of(section: Section) -> str:
    """Return what a section is called in the id of a test."""
    return f"{section[0]} {section[1]}".strip()


def run(section: Section, left_out: frozenset[str], request: pytest.FixtureRequest, directory: Path) -> None:
    """Run a section, with the servers that it needs."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, for a mount namespace")
    scenario = scenario_of(section)
    variables = {}
    if scenario.cluster == "hadoop":
        cluster = request.getfixturevalue("hadoop")
        variables = {
            "HADOOP_CONF": str(cluster.configuration),
            "HADOOP_CONF_DIR": "/etc/hadoop/conf",
            "HADOOP_USER_NAME": getpass.getuser(),
            "DLAPP_YARN_PYTHON": sys.executable,
        }
    elif scenario.cluster:
        variables = {"DOCKER_HOST": request.getfixturevalue(scenario.cluster).host}
    run_section(section, scenario, left_out, directory, variables)
