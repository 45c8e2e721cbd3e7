"""Fixtures of the commands' tests."""

from __future__ import annotations

from tests.services.dockerd import dockerd

__all__ = ["dockerd"]
