"""Trials of a sweep in one container: the task stays, and runs their programs one after another, or some in parallel.

`worker` processes orders and reports; it has a slot for each parallel trial. `trial` runs one trial in its own thread:
a copy of the workspace (`workspace`), the program, the output. `curve` has the reported metric.
"""
