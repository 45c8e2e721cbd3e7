"""Seeds change with the date, and a variable repeats them, in each worker."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.seeds import COUNT, seeds

CODE = "from tests.seeds import FIRST, seeds; print(FIRST, *seeds('a', 3))"


def printed(**environment: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DLAPP_")}
    done = subprocess.run([sys.executable, "-c", CODE], env=clean | environment, capture_output=True, check=True)
    return done.stdout.decode().split()


def test_the_variable_repeats_the_seeds_of_a_day() -> None:
    assert printed(DLAPP_TEST_SEED="20260102") == printed(DLAPP_TEST_SEED="20260102")
    assert set(printed(DLAPP_TEST_SEED="20260102")) & set(printed(DLAPP_TEST_SEED="20260103")) == set()
    assert len(printed()[0]) == len("20260102")


def test_each_property_has_seeds_of_its_own() -> None:
    assert COUNT >= 3
    assert len({*seeds("a"), *seeds("b")}) == 2 * COUNT
    assert seeds("a", 2) != seeds("b", 2)
