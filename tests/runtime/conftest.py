"""Fixtures of the runtime's tests."""

from __future__ import annotations

from tests.runtime.driver import place, plain, runner
from tests.tiers import FULL

collect_ignore = [] if FULL else ["docker/test_newer_podman.py"]

__all__ = ["place", "plain", "runner"]
