"""Debian's own Python."""

from __future__ import annotations

PYTHON = "/usr/bin/python3"
"""The packages python3-torch and python3-mpi4py are for this one alone."""
