"""GPUs that are not there: a library in the place of libnvidia-ml.so.1, which nvidia-ml-py loads as the real one.

    with_cards(directory, [Card(), Card(minor=7)]) -> environment for processes that are to see two cards

It is compiled from nvml_stub.c once per run. `dlopen` looks at LD_LIBRARY_PATH as it was when a process started, so
only processes started with that environment see the cards.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.services.install import required

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class Card:
    """One card: ``error`` is NVML's answer to all questions about it (15: it is lost)."""

    uuid: str = ""
    minor: int | None = None
    name: str = "NVIDIA Test Card"
    memory_bytes: int = 16 << 30
    bus_id: str = ""
    error: int = 0


@cache
def library() -> Path:
    """The directory with the compiled library; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        assert not required(), "no C compiler: the stub of NVML cannot be made (CI or DLAPP_REQUIRE is set)"
        pytest.skip("no C compiler: the stub of NVML cannot be made")
    directory = Path(tempfile.mkdtemp(prefix="dlapp-nvml-stub-"))
    atexit.register(shutil.rmtree, directory)
    directory.chmod(0o755)
    target = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", target, SOURCE], check=True)
    return directory


def with_cards(directory: Path, cards: Sequence[Card], *, init: int = 0) -> dict[str, str]:
    """Variables that make a process see ``cards`` in this order; call it again to change them.

    Args:
        directory: where the description is kept.
        init: the answer of nvmlInit (0: it works, 9: driver not loaded, 18: version mismatch).
    """
    lines = [str(init)]
    for place, card in enumerate(cards):
        uuid = card.uuid or f"GPU-{place:08d}-aaaa-bbbb-cccc-000000000000"
        minor = place if card.minor is None else card.minor
        bus_id = card.bus_id or f"00000000:{place + 1:02X}:00.0"
        lines.append(f"{card.error}|{uuid}|{minor}|{card.name}|{card.memory_bytes}|{bus_id}")
    description = directory / "cards"
    fresh = directory / ".cards"
    fresh.write_text("\n".join(lines) + "\n")
    fresh.rename(description)
    return {"NVML_STUB": str(description), "LD_LIBRARY_PATH": str(library())}
