"""What an ApplicationMaster knows of its application, and the values by which it is told and answers.

Plain values and small classes: no I/O, no clock, no decision. `events` lists what comes in and what is to be done,
`instance` has one CONTAINER_INDEX and one container, `gate` and `demand` one role, `state` all of it together,
`journal` what of it a next attempt reads.
"""
