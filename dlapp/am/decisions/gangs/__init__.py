"""Gangs: their gates and generations, the window in which they must come together, rosters, and payloads that hang."""
