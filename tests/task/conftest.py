"""Fixtures of the task's tests."""

from __future__ import annotations

from tests.runtime.driver import place
from tests.services.dockerd import dockerd

__all__ = ["dockerd", "place"]
