"""Test an application whose tokens of YARN get new keys while it runs: a short form of `tests/soak/keys.py`."""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tests.soak import keys

SHORT_S = 140.0
"""The ResourceManager runs for half of it before its restart, which is longer than an interval of the keys (61 s)."""


@pytest.mark.slow
@pytest.mark.hadoop
def test_an_application_outlives_the_keys_of_its_tokens() -> None:
    """AMRM, container and NodeManager tokens get new keys each 61 s, for 140 s: at least once.

    The ApplicationMaster is killed twice, and the ResourceManager once. At night
    `make soak NAME=keys ARGS="--seconds 1200"` runs 20 minutes.
    """
    (line,) = keys.rounds(SHORT_S, seeds("keys", 1)[0])
    print(line)
