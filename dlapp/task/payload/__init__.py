"""Payload of a container: creation, run and end.

`factory` creates it from the assignment; `container` runs it from the gate to its result; `runner` monitors it, and
those of trials; `end` sends the signals that end it early; `kept_container` is the container of a failed payload.
"""
