"""Sweeps: many trials of one program with other parameters, in one application.

The package has the values of a sweep and the decisions that depend on nothing else: the parameters of each trial, when
a trial is stopped early, the order of the leaderboard. It does no I/O and has no clock; who runs the trials is `am` and
`task`.
"""
