"""Sweeps: many trials of one program with different parameters, in one application.

The package has the values of a sweep and its pure decisions: the parameters of each trial, early stopping, the order of
the leaderboard. It does no I/O and reads no clock; `am` and `task` run the trials.
"""
