"""The runner of one user: its election, its process, and the cleanup of what ended applications leave."""
