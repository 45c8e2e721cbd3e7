"""The runner of one user: its election, its process, and the cleanup of what ended applications leave.

`main` calls `queue_pass` and `starting` for waiting applications, `watching`, `settling` and `orphans` for running and
dead ones, `history` for old ones.
"""
