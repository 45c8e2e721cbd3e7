"""The ApplicationMaster: one process per application that asks for its containers, leads its tasks and ends it.

Its mind has no sockets, threads, files or clock: `master.Master` takes in an event with the time and returns the
actions that follow. `events` lists both. It is made of layers, which `books` lists; under them, each a few plain
functions or one small class, are `instance` (one CONTAINER_INDEX, one container), `demand` (what to ask for), `gate`
(when payloads may start) and `verdict` (whose fault, again or not). `view` makes of it what tools show, `journal` what
a next attempt reads.

`loop` feeds it and carries its actions out: `server` is the control address, `home` the application's directory,
`outputs` what becomes of its output, `page` what a browser sees. `aftermath` settles what a dead attempt left.
"""
