"""dlapp: deep-learning programs on shared GPUs, from one properties file and one command."""

from __future__ import annotations

__version__ = "0.1.0"
