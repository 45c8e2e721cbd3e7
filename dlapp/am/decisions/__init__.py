"""Decisions of an ApplicationMaster: no I/O, no clock, no chance.

`master.Master` takes in an event with the time and returns the actions that follow. Each event is handled by one
function of one module; all of them change an `ApplicationState`, and each module calls only those below it:

    master      which function handles an event
    allocation  the engine speaks: registration, grants, ends
    tasks       tasks speak: hello, report
    recovery    what an earlier attempt left
    failures    ends and silence of containers, and what becomes of their indexes
    blockers    containers of which nobody knows what they run
    gangs       gates, gangs that begin anew, their rosters, and payloads that hang
    assignment  indexes bound to containers, and freed
    shutdown    how an application ends
    containers  how a container is stopped
    verdict     whose fault an end was, and whether the index is tried again

They call each other by module, so that a test can put another function in the place of one.
"""
