"""Trials of a sweep: which container runs which, what their ends mean, and the end of the sweep.

`dispatch` gives trials to containers and ends those that have nothing left to do; `reports` takes what tasks say of
trials; `recovery` takes over from an earlier attempt. What they change is `dlapp.am.model.trials.SweepState`.
"""
