"""Decisions on unused resources: GPUs that are idle, and services without connections. They end an application only
through `shutdown` and the gangs.
"""
