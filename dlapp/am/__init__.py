"""The ApplicationMaster: one process per application that requests its containers, directs its tasks and ends it.

`model` is its state, `decisions` are its decisions on each event. Neither has sockets, threads, files or a clock.

`loop` feeds the decisions and executes their actions. `control` is the control address, `application_dir` the
application's files, `settlement` the commit of its output, `view` what tools show. `device_counts` reads the GPU ledger
beside it. `main` starts all that on one machine, `yarn_main` on YARN. `crash_settlement` settles the output of a dead
attempt.
"""
