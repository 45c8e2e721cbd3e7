"""Decisions of an ApplicationMaster: no I/O and no clock; what is random comes from a generator in the state.

`master.Master` takes in an event with the time and returns the actions that follow. Each event is handled by one
function of one module; all of them change an `ApplicationState`, and each module calls only those below it:

    master      which function handles an event
    allocation  events of the engine: registration, grants, ends
    tasks       tasks speak: hello, report
    recovery    what an earlier attempt left
    streams     streams of tools to containers
    notices     events that the user is notified of
    start       an application that waits for others, roles that wait for others
    failures    ends and silence of containers, and what becomes of their indexes
    preemption  containers that YARN is going to take, for others or with their nodes
    services    containers that wait for a service
    blockers    containers of which nobody knows what they run
    idle        GPUs and services that nobody uses
    trials      trials of a sweep: which container runs which, and what their ends mean
    gangs       gates, restarts of gangs, their rosters, and payloads that hang
    assignment  indexes bound to containers, and freed
    shutdown    how an application ends
    containers  how a container is stopped
    receipts, usage_history    what containers have used
    sweep_summary  failures and output of the trials of a sweep
    assessment  whose fault an end was, and whether the index is tried again

They call each other by module, so that a test can put another function in the place of one.
"""
