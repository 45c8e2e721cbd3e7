"""Fixtures of the task's tests."""

from __future__ import annotations

from tests.runtime.driver import place

__all__ = ["place"]
