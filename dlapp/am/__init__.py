"""The ApplicationMaster: one process per application that requests its containers, directs its tasks and ends it.

`model` is its state, `decisions` are its decisions on each event. Neither has sockets, threads, files or a clock.

`loop` feeds the decisions and carries them out: `server` is the control address, `application_dir` the application's
directory, `settlement` what becomes of its output, `view` what tools show and `page` what a browser sees.
`device_counts` reads the GPU ledger beside it. `main` starts all that on one machine, `yarn_main` on YARN.
`crash_settlement` settles what a dead attempt left.
"""
