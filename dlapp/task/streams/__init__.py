"""Streams of a task: the container's ends of byte streams that a user's command opens (`dlapp.net.streams`).

    task_streams  in the task: starts the process below, hands it each order (`Orders.streams`) once
    process       of its own, a child of the task: a thread for each stream, which runs the module of its kind
    stream        one stream, as a handler sees it

The task itself copies no bytes, so its reports and its payload do not wait for streams. Processes that a stream starts
end with it.
"""
