"""The commands on this machine: its GPUs, its cache, shells, checks."""
