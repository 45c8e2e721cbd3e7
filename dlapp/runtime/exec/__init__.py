"""Commands that users run beside a payload: one session for each, which ends all that its command has started.

It passes bytes between the client's stream and the command, and knows nothing of applications or of who may ask.
"""
