"""Processes: start, entries in /proc, system calls, and a child that acts as another user."""
