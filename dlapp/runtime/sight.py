"""What a container's first process says of the GPUs it sees, and whether these are the cards that it is to have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dlapp.runtime.payload import Card

TIMEOUT_S = 60.0
"""What a container may take to say which GPUs it sees: nvidia-smi takes seconds where no persistence daemon runs."""


def unlike(cards: Sequence[Card], seen: str, host_nodes: Collection[str]) -> str:
    """How what a container sees differs from the cards that it is to have; empty: it does not.

    Args:
        seen: what the wrapper wrote: lines ``node N`` for each /dev/nvidiaN, and those of ``nvidia-smi -L``, if the
            image has it.
        host_nodes: the driver's device nodes outside.
    """
    lines = seen.splitlines()
    nodes = {int(line[5:]) for line in lines if line.startswith("node ") and line[5:].isdigit()}
    minors = {card.minor for card in cards if card.minor >= 0}
    wanted = {card.uuid for card in cards}
    if minors and (extra := nodes - minors):
        return f"the container sees /dev/nvidia{min(extra)}, which is not its own"
    if missing := {minor for minor in minors - nodes if f"/dev/nvidia{minor}" in host_nodes}:
        return f"the container does not see its /dev/nvidia{min(missing)}"
    if (code := next((line[4:] for line in lines if line.startswith("smi ")), "")) in ("", "none"):
        return ""
    if code != "0":
        words = next((line for line in lines if not line.startswith(("node ", "smi "))), f"exit code {code}")
        return f"nvidia-smi does not work in the container: {words}"
    uuids = {line.rpartition("UUID: ")[2].rstrip(") ") for line in lines if "UUID: " in line}
    # Of a card that is in MIG mode its own line stands above those of its parts.
    parts = {uuid for uuid in uuids if uuid.startswith("MIG-")}
    found = parts if any(uuid.startswith("MIG-") for uuid in wanted) else uuids - parts
    if extra_uuids := found - wanted:
        return f"the container sees {min(extra_uuids)}, which is not its own"
    if missing_uuids := wanted - found:
        return f"the container does not see its {min(missing_uuids)}"
    return ""


def named(cards: Sequence[Card]) -> str:
    """Cards, for people."""
    return ", ".join(f"gpu{card.index} ({card.uuid})" for card in cards)
