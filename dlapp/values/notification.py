"""Notifications about an application, and their settings; `dlapp.notifications` sends them."""

from __future__ import annotations

from dlapp.value import Value, field
from dlapp.values.ids import ApplicationId

RUNNING, RESTARTED, WAITING, HANG, IDLE = "running", "restarted", "waiting", "hang", "idle"
FAILED, KILLED, DONE = "failed", "killed", "done"
EVENTS = (RUNNING, RESTARTED, WAITING, HANG, IDLE, FAILED, KILLED, DONE)
"""All events, by their names in the key ``notify`` and in the JSON form."""
QUEUE = "queue"
"""Name of the event that an application has waited too long since its submission."""
WEBHOOK, MAIL, COMMAND = "webhook", "mail", "command"
JSON, SLACK = "json", "slack"
"""Formats of a webhook's message."""
NO_TLS, START_TLS, TLS = "none", "starttls", "tls"
"""Connection security of the mail server."""


class Webhook(Value):
    """Webhook to which messages are posted.

    Args:
        url: often a secret itself.
        form: `JSON` or `SLACK`.
        headers: further headers of the request, such as ``Authorization``.
        proxy: URL of a proxy; empty: none.
    """

    url: str = field(repr=False)
    form: str = JSON
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    proxy: str = field(default="", repr=False)


class Mail(Value, kw_only=True):
    """Mail addresses, and the mail server.

    Args:
        to: recipient addresses.
        sender: sender address.
        security: `NO_TLS`, `START_TLS` or `TLS`.
        user, password: login of the server; empty: none.
    """

    to: tuple[str, ...]
    sender: str
    server: str
    port: int
    security: str = START_TLS
    user: str = ""
    password: str = field(default="", repr=False)


class NotificationSettings(Value, kw_only=True):
    """Settings of an application's notifications; they contain secrets.

    Args:
        events: the sent ones of `EVENTS`.
        waiting_after_s: how long it waits for containers before that is an event.
        webhook, mail: None: not configured.
        command: argument list of a program that gets the JSON form on its standard input; empty: none.
    """

    events: tuple[str, ...]
    waiting_after_s: float
    webhook: Webhook | None = None
    mail: Mail | None = None
    command: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the names of the configured channels."""
        found = {WEBHOOK: self.webhook, MAIL: self.mail, COMMAND: self.command}
        return tuple(name for name, one in found.items() if one)


class Notification(Value, kw_only=True):
    """One event of an application. Its JSON form is documented (docs/notifications.md) and grows only by adding.

    Args:
        id: unique to this event, and the same each time that it is sent.
        event: one of `EVENTS`.
        at_ms: when it happened [ms since 1970].
        text: for people, in a few lines.
        final_status, cause: the values of `dlapp.values.report`, if it has ended.
    """

    id: str
    event: str
    at_ms: int
    application_id: ApplicationId
    appname: str
    username: str
    submitter: str = ""
    queue: str = ""
    project: str = ""
    text: str = ""
    final_status: str = ""
    cause: str = ""


def id_of(application_id: ApplicationId | str, event: str, key: str = "") -> str:
    """Return the id of an event; ``key`` distinguishes events of the same kind."""
    return f"{application_id}/{event}" + (f"/{key}" if key else "")


def event_of_end(final_status: str) -> str:
    """Return the event of an application's end, by its final status."""
    return {"SUCCEEDED": DONE, "KILLED": KILLED}.get(final_status, FAILED)
