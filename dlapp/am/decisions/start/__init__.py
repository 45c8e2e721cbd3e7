"""Decisions on the order of starts: of an application after others, and of a role after other roles. Neither requests
containers itself: demand follows from the state.
"""
