"""Liveness of the payload of a lease."""
