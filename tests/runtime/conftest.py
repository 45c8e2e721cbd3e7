"""Fixtures of the runtime's tests."""

from __future__ import annotations

from tests.runtime.driver import place, plain, runner
from tests.services.dockerd import dockerd

__all__ = ["dockerd", "place", "plain", "runner"]
