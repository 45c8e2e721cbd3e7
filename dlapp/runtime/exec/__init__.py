"""Commands that users run beside a payload: one session for each, which ends all processes of its command.

It passes bytes between the client's stream and the command, and does not know applications or permissions.
"""
