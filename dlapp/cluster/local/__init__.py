"""The embedded engine: applications on this machine, with files, locks and SQLite in place of a server.

    state.py        where everything lies; locks; who is alive
    queue.py        the rows: what waits, what runs, what has ended
    spool.py        the order and the amounts that users of a shared queue publish to each other
    capacity.py     how much of the machine there is to give
    schedule.py     which waiting row may start, and what the others wait for; pure
    outcome.py      how an application ended, written once; what a death means
    settings.py     what a runner and an ApplicationMaster get to know of the configuration
    views.py        rows and files -> what tools show
    am_engine.py    LocalAmEngine, for the ApplicationMaster
    runner/         the process that works off the queue: its election, a preloaded ApplicationMaster, cleanup
    client/         LocalEngine, for commands; applications of other users

A row says what was decided, the application's lock says who is alive, ``outcome.json`` says how it ended; from these
three, whoever looks comes to the same answer, whatever died in between:

    row       lock   am.json  outcome.json
    waiting   -      -        -             not begun
    running   held   -        -             its ApplicationMaster comes up, or is being cleaned up after
    running   free   no       no            the ApplicationMaster never began: back to waiting
    running   free   yes      no            the ApplicationMaster died: FAILED, or KILLED where kill.json is
    running   any    any      yes           ended so
    done      -      -        -             ended as the row says

Nothing here is imported that the runner does not need: it stands between a submission and its start.
"""
