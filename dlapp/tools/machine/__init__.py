"""Commands on this machine: its GPUs, its caches, shells, checks."""
