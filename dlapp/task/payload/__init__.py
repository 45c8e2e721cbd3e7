"""Payload of a container: how it is made, run and ended.

`factory` makes it of the assignment; `container` runs it from the gate to its result; `runner` watches it, and those of
trials; `end` has the signals that end it before its time; `kept_container` is the container of one that has failed.
"""
