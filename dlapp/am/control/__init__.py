"""Control address of an ApplicationMaster: authorization, and answers that need no loop. What requests a change
reaches the loop as an event; nothing here changes the state.
"""
