"""Fixtures of the runtime's tests."""

from __future__ import annotations

import os

from tests.runtime.driver import place, plain, runner

collect_ignore = [] if os.environ.get("DLAPP_FAULTS") == "full" else ["docker/test_newer_podman.py"]

__all__ = ["place", "plain", "runner"]
