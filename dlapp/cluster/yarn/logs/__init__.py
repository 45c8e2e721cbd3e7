"""Logs of containers on YARN."""
