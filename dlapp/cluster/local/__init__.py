"""The embedded engine: applications on this machine, with files, locks and SQLite in place of a server.

    state.py        where everything lies; locks; who is alive
    queue.py        the rows: what waits, what runs, what has ended
    capacity.py     how much of the machine there is to give
    schedule.py     which waiting row may start, and what the others wait for; pure
    outcome.py      how an application ended, written once; what a death means
    spawn.py        starting detached processes
    spare.py        an ApplicationMaster that is started before there is an application for it
    settings.py     what a runner and an ApplicationMaster get to know of the configuration
    election.py     one runner for each user, and how it is woken
    runner.py       the process that works off the queue
    strays.py       processes that outlived all who watch over them: found by proof, ended
    history.py      what is cleared away, and when
    views.py        rows and files -> what tools show
    client_side.py  LocalEngine, for those who submit and look
    am_side.py      LocalAmEngine, for the ApplicationMaster
    own.py          whether an application is this engine's
    doctor.py       what it needs of the machine, for dlapp-doctor

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
