"""Gangs: their gates and generations, the window in which they must come together, rosters, what mpirun starts
in other containers, and payloads that hang."""
