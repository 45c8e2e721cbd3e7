"""Scheduler of the embedded engine's queue: order, shares, limits and backfill, as functions of values.

It must not do I/O, read a clock, or know where the values come from. `decisions.decide` is one pass over the queue:

    usage       GPU-hours that each user had recently, halved with time
    priority    classes: capped between users, raised by waiting
    order       class, then usage, then arrival
    backfill    the reservation of the first that does not fit, and what may start beside it (EASY)

Every runner of a shared queue makes this pass with the same values and starts only applications of its own user. So all
must come to the same decisions: nothing here depends on the caller.
"""
