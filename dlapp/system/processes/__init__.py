"""Processes: their start, their entries in /proc, calls of the kernel, and a child that acts for another user."""
