"""Sending notifications: by a webhook, by mail, and by a command.

`outbox` has what is not delivered yet, as values; `channels` delivers one notification by one channel; `sender` does so
in threads of its own, and tries again. An event is written to the outbox before it is sent and stays there until it is
delivered, so it is sent at least once, with the same id. Nothing here decides what is an event, and nobody waits for a
delivery. This package must not know engines.
"""
