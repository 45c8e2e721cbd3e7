"""Model of an application: the state that its ApplicationMaster has, its events and its actions.

Plain values and small classes: no I/O, no clock, no decision. `events` lists what comes in and what is to be done,
`instance` has one CONTAINER_INDEX and one container, `gate` and `demand` one role, `subjects` the rest by subject,
`state` all of it together, `journal` what of it a next attempt reads, and `records` the kinds of its records.
"""
