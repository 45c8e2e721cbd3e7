"""Test an application whose tokens of YARN get new keys while it runs: a short form of `tests/soak/keys.py`."""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tests.soak import keys

SHORT_S = 100.0


@pytest.mark.slow
@pytest.mark.hadoop
def test_an_application_outlives_the_keys_of_its_tokens() -> None:
    """AMRM, container and NodeManager tokens get new keys each 61 s, for 100 s. The ApplicationMaster is killed twice,
    and the ResourceManager once. `make soak NAME=keys ARGS="--seconds 1200"` runs 20 minutes at night."""
    (line,) = keys.rounds(SHORT_S, seeds("keys", 1)[0])
    print(line)
