"""Trials of a sweep in one container: the task stays, and runs their programs one after another, or some at a time.

`worker` takes orders and reports; it has a slot for each trial that runs at a time. `trial` runs one trial, in a thread
of its own: a copy of the workspace (`workspace`), the program, the output. `curve` has what the trial reported.
"""
