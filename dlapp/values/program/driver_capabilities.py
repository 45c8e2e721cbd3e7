"""Driver capabilities: the parts of NVIDIA's driver that a container gets.

Source: NVIDIA Container Toolkit, "Specialized Configurations with Docker", "Driver Capabilities".
"""

from __future__ import annotations

import re

from dlapp.system.text import nearest, shown

VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
"""Variable by which images and users name capabilities, and with which NVIDIA's tools read them."""
CAPABILITIES = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")
BASE = ("compute", "utility")
"""CUDA and OpenCL, and nvidia-smi with NVML: every container with GPUs may have them."""
_ALL = "all"
_SEPARATORS = re.compile(r"[,\s]+")


def read_capabilities(text: str) -> tuple[str, ...]:
    """Parse a list of capabilities; ``all`` stands for each of them.

    Returns:
        The capabilities, each once, in the order of `CAPABILITIES`.

    Raises:
        ValueError: there is no such capability; the message is the problem.
    """
    names = _names(text)
    for name in sorted(names - {_ALL, *CAPABILITIES}):
        raise ValueError(f"{shown(name)} is not a driver capability, {nearest(name, (*CAPABILITIES, _ALL))}")
    return _in_order(names)


def known_capabilities(text: str) -> tuple[str, ...]:
    """Return the same of an image's variable, without names that are not known here."""
    return _in_order(_names(text))


def _names(text: str) -> set[str]:
    return set(filter(None, _SEPARATORS.split(text)))


def _in_order(names: set[str]) -> tuple[str, ...]:
    return tuple(name for name in CAPABILITIES if name in names or _ALL in names)
