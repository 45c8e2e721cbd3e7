"""The embedded engine: applications on this machine, with files, locks and SQLite instead of a server.

    state.py        the directories; the locks that show live processes
    queue.py        the rows: waiting, running and ended applications
    spool.py        the order and the amounts that users of a shared queue publish to each other
    capacity.py     usable amounts of the machine
    schedule.py     which waiting row may start, and what the others wait for; pure
    outcome.py      how an application ended, written once; the outcome of a death
    settings.py     the configuration for a runner and an ApplicationMaster
    views.py        converts rows and files to views
    am_engine.py    LocalAmEngine, for the ApplicationMaster
    runner/         the process that starts and settles applications: election, a preloaded ApplicationMaster, cleanup
    client/         LocalEngine, for commands; applications of other users

A row records decisions, the application's lock shows whether it is alive, ``outcome.json`` records how it ended. From
these three every reader derives the same state, whichever process died in between:

    row       lock   am.json  outcome.json
    waiting   -      -        -             not begun
    running   held   -        -             its ApplicationMaster comes up, or is being cleaned up after
    running   free   no       no            the ApplicationMaster never began: back to waiting
    running   free   yes      no            the ApplicationMaster died: FAILED, or KILLED where kill.json is
    running   any    any      yes           ended so
    done      -      -        -             ended; the row has how

Nothing here is imported that the runner does not need: its start delays each application's start.
"""
