"""Control address of an ApplicationMaster: who may ask, and what is answered beside the loop. What asks for a change
reaches the loop as an event; nothing here changes the state.
"""
