"""Payload of a container: how it is made, run and ended.

`factory` makes it of the assignment; `container` runs it from the gate to its result; `end` has the signals that end it
before its time.
"""
