"""Sending notifications: by webhook, mail, or command.

`outbox` has the undelivered notifications, as values; `channels` delivers one notification on one channel; `sender`
does so in its own threads, and retries. An event is written to the outbox before it is sent and stays there until it is
delivered, so it is sent at least once, with the same id. This package does not decide which events exist, no caller
waits for a delivery, and it must not know engines.
"""
