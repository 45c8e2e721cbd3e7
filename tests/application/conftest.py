"""Fixtures of the tests of descriptions of applications."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.config import Config, load_config
from tests.services.missing import missing


@pytest.fixture
def config() -> Config:
    return load_config(environ={"HOME": missing()}, system_file=missing())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a workspace ``w`` that has a script ``s.sh``."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w/s.sh").write_text("#!/bin/sh\n")
    return tmp_path
