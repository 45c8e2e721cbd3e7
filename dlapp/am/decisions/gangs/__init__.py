"""Gangs: their gates and generations, the window in which they must be complete, rosters, what mpirun starts
in other containers, and payloads that hang."""
