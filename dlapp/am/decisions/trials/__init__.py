"""Trials of a sweep: which container runs which, what their ends mean, and the end of the sweep.

`dispatch` assigns trials to containers and ends those without further work; `reports` processes tasks' reports on
trials; `recovery` takes over from an earlier attempt. What they change is `dlapp.am.model.trials.SweepState`.
"""
