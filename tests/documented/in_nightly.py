"""Commands of pages that install dlapp, or need minutes: units of `make nightly`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented.scenarios import Section
from tests.documented.sections import parameters, run


@pytest.mark.parametrize(("section", "left_out"), list(parameters("nightly")))
def test_the_commands_of_a_section_run_as_printed(
    section: Section, left_out: frozenset[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run(section, left_out, request, tmp_path)
