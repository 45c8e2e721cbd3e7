"""Verification that a container's first process sees exactly its leased GPUs.

It prints lines ``node N MAJOR:MINOR`` for each /dev/nvidiaN (the numbers if the image has ``ls``), and the output of
``nvidia-smi -L`` if the image has it, with its exit code. In any mode a container may be created as requested and see
other GPUs: the hook or the specification may be outdated. So a payload starts only after this check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dlapp.runtime.gpu.facts import device_numbers
from dlapp.runtime.payload import PayloadDevice, PayloadError
from dlapp.values.messages import Fault

TIMEOUT_S = 60.0
"""Time limit for a container to list its visible GPUs: nvidia-smi takes seconds where no persistence daemon runs."""
_NUMBER = re.compile(r"[0-9]{1,9}")
_NUMBERS = re.compile(r"\d+:\d+")
_NO_WITNESS = ("", "none", "126", "127")
"""Values in place of nvidia-smi's exit code if it is missing, or cannot be executed in this image (another libc)."""


def check(devices: Sequence[PayloadDevice], seen: str) -> None:
    """Raise PayloadError, as the node's fault, if a container does not see its leased GPUs."""
    if problem := visible_gpu_mismatch(devices, seen, device_numbers()):
        named = ", ".join(f"gpu{device.index} ({device.uuid})" for device in devices)
        raise PayloadError(Fault.NODE, f"{problem}; it was to have {named}")


def visible_gpu_mismatch(devices: Sequence[PayloadDevice], seen: str, host_nodes: Mapping[str, str]) -> str:
    """Return how the GPUs that a container sees differ from its leased ones; empty if they do not.

    Args:
        seen: output of the wrapper.
        host_nodes: the GPUs' device nodes on the host -> major and minor number, ``195:4``.
    """
    lines = seen.splitlines()
    nodes = {int(words[1]): words[2] for words in map(str.split, lines) if _is_node(words)}
    minors = {device.minor for device in devices if device.minor >= 0}
    wanted = {device.uuid for device in devices}
    if minors and (extra := nodes.keys() - minors):
        return f"the container sees /dev/nvidia{min(extra)}, which is not its own"
    if missing := {minor for minor in minors - nodes.keys() if f"/dev/nvidia{minor}" in host_nodes}:
        return f"the container does not see its /dev/nvidia{min(missing)}"
    for minor in sorted(minors & nodes.keys()):
        inside, outside = nodes[minor], host_nodes.get(f"/dev/nvidia{minor}", "")
        if _NUMBERS.fullmatch(inside) and outside and inside != outside:
            return f"/dev/nvidia{minor} in the container is another device than outside ({inside}, not {outside})"
    if host_nodes and not nodes and not minors:
        return "the container sees no GPU"
    code = next((line[4:] for line in lines if line.startswith("smi ")), "")
    if code in _NO_WITNESS:
        return ""
    if code != "0":
        words = next((line for line in lines if not line.startswith(("node ", "smi "))), f"exit code {code}")
        return f"nvidia-smi does not work in the container: {words}"
    uuids = {line.rpartition("UUID: ")[2].rstrip(") ") for line in lines if "UUID: " in line}
    # For a GPU in MIG mode its own line is above those of its MIG devices.
    parts = {uuid for uuid in uuids if uuid.startswith("MIG-")}
    found = parts if any(uuid.startswith("MIG-") for uuid in wanted) else uuids - parts
    if extra_uuids := found - wanted:
        return f"the container sees {min(extra_uuids)}, which is not its own"
    if missing_uuids := wanted - found:
        return f"the container does not see its {min(missing_uuids)}"
    return ""


def _is_node(words: Sequence[str]) -> bool:
    return len(words) == 3 and words[0] == "node" and bool(_NUMBER.fullmatch(words[1]))
