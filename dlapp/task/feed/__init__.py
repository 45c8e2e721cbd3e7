"""Inputs with ``mode=feed``: a process of the task fetches ahead, and hands the payload what it reads.

- `order`: which files each reader gets, and in which order; pure.
- `buffer`: what is fetched ahead for each reader, within bounds.
- `sockets`, `fifos`: how readers get it: open files by a Unix socket (`dlapp.feed`), or a stream of bytes.
- `process`: the process. It has the credentials of the task, and the payload has none.
- `feeds`: the task's side of these processes, which end with it and with the payload.

Nothing that a payload sends is more than a request for its own part of the input.
"""
