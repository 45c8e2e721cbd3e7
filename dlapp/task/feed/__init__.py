"""Inputs with ``mode=feed``: a process of the task prefetches the files and hands them to the payload.

- `order`: which files each reader gets, and in which order; pure functions.
- `buffer`: bounded prefetching for each reader.
- `sockets`, `fifos`: delivery to readers, as open files over a Unix socket (`dlapp.feed`) or as a byte stream.
- `process`: the process. It has the credentials of the task, which the payload does not see.
- `feeds`: the task's handles of these processes, which end with it and with the payload.

A payload can only request its own part of the input.
"""
