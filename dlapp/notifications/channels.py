"""Delivery of one notification on one channel, with a time limit for each step.

Error messages never contain the URL, a header or the password: they are secrets.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dlapp.errors import DlappError
from dlapp.values.notification import (
    COMMAND,
    MAIL,
    NO_TLS,
    SLACK,
    TLS,
    WEBHOOK,
    Mail,
    Notification,
    NotificationSettings,
)
from dlapp.values.notification import Webhook as WebhookSettings
from dlapp.values.serialization import to_json

if TYPE_CHECKING:
    from email.message import EmailMessage

TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30
_TRY_AGAIN = frozenset({408, 425, 429})
"""HTTP statuses 4xx that a retry may change. Source: RFC 9110, 15.5.9; RFC 8470, 5.2; RFC 6585, 4."""


class NotDelivered(DlappError):
    """A notification was not delivered; ``final``: a retry would not help."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


def deliver(settings: NotificationSettings, channel: str, one: Notification) -> None:
    """Deliver a notification on one channel.

    Raises:
        NotDelivered: it was not delivered, as far as known.
    """
    if channel == WEBHOOK and settings.webhook is not None:
        post(settings.webhook, one)
    elif channel == MAIL and settings.mail is not None:
        send_mail(settings.mail, one)
    elif channel == COMMAND and settings.command:
        run_command(settings.command, one)
    else:
        raise NotDelivered(f"there is no {channel} any more", final=True)


def message_of(one: Notification) -> dict[str, Any]:
    """Return the documented JSON form of a notification."""
    at = datetime.fromtimestamp(one.at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"version": 1, "at": at, **to_json(one), "title": title_of(one)}


def title_of(one: Notification) -> str:
    """Return a one-line summary: ``mnist (application_…_0042): failed``."""
    return _line(f"{one.appname} ({one.application_id}): {one.event}")


def _line(text: str) -> str:
    """Return text without line ends and control characters, which mail headers cannot contain."""
    return "".join(char if char.isprintable() else " " for char in text)[:300]


def post(webhook: WebhookSettings, one: Notification) -> None:
    """Post a notification. Redirects are not followed: the headers are for this address alone.

    Raises:
        NotDelivered: there is no response, or it is a refusal.
    """
    import ssl

    import requests

    from dlapp.notifications.webhook import WebhookAdapter

    if webhook.form == SLACK:
        # Source: https://api.slack.com/reference/surfaces/formatting, "Escaping text".
        text = f"{title_of(one)}\n{one.text}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        body: dict[str, Any] = {"text": text}
    else:
        body = message_of(one)
    headers = {"Content-Type": "application/json", "User-Agent": "dlapp", "X-Dlapp-Event-Id": one.id}
    try:
        with requests.Session() as session:
            session.trust_env = False  # no ~/.netrc
            for scheme in ("http://", "https://"):
                session.mount(scheme, WebhookAdapter())
            places = ssl.get_default_verify_paths()
            answer = session.post(
                webhook.url,
                data=json.dumps(body).encode(),
                headers={**headers, **webhook.headers},
                timeout=(TIMEOUT_S, TIMEOUT_S),
                allow_redirects=False,
                stream=True,  # the response body is not read
                proxies={"http": webhook.proxy, "https": webhook.proxy} if webhook.proxy else {},
                verify=places.cafile or (places.capath if places.capath and os.listdir(places.capath) else True),
            )
            answer.close()
    except (requests.RequestException, OSError, ValueError) as error:
        bad = isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema)
        raise NotDelivered(f"the webhook gave no answer: {type(error).__name__}", final=bad) from None
    status = answer.status_code
    if not 200 <= status < 300:
        raise NotDelivered(f"the webhook answered {status}", final=status < 500 and status not in _TRY_AGAIN)


def _mail_of(mail: Mail, one: Notification) -> EmailMessage:
    from email.message import EmailMessage
    from email.utils import formatdate

    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = mail.sender, ", ".join(mail.to), f"[dlapp] {title_of(one)}"
    message["Date"] = formatdate(one.at_ms / 1000)
    message["Message-ID"] = f"<{one.id.replace('/', '.')}@{mail.sender.rpartition('@')[2]}>"
    message["X-Dlapp-Event-Id"] = one.id
    message["Auto-Submitted"] = "auto-generated"  # no out-of-office reply; RFC 3834
    facts = {
        "application": one.application_id,
        "name": one.appname,
        "user": one.username,
        "queue": one.queue,
        "project": one.project,
        "final status": one.final_status,
    }
    lines = [one.text, "", *(f"{name}: {_line(str(value))}" for name, value in facts.items() if value)]
    message.set_content("\n".join(_line(line) for text in lines for line in text.split("\n")))
    return message


def send_mail(mail: Mail, one: Notification) -> None:
    """Send a notification by mail. Retries have the same Message-ID.

    Raises:
        NotDelivered: the server does not answer, or refuses it.
    """
    import smtplib
    import ssl

    from dlapp.notifications.smtp import SmtpConnection, SmtpTlsConnection

    try:
        context = ssl.create_default_context() if mail.security != NO_TLS else None
        if mail.security == TLS:
            server: smtplib.SMTP = SmtpTlsConnection(mail.server, mail.port, timeout=TIMEOUT_S, context=context)
        else:
            server = SmtpConnection(mail.server, mail.port, timeout=TIMEOUT_S)
        with server:
            if mail.security not in (TLS, NO_TLS):
                server.starttls(context=context)
            if mail.user:
                server.login(mail.user, mail.password)
            server.send_message(_mail_of(mail, one))
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        refused = f"{mail.server} refused all addresses: {min(codes)}"
        raise NotDelivered(refused, final=all(code >= 500 for code in codes)) from None
    except smtplib.SMTPResponseException as error:
        refused = f"{mail.server} answered {error.smtp_code}"
        raise NotDelivered(refused, final=error.smtp_code >= 500) from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NotDelivered(f"{mail.server}:{mail.port}: {type(error).__name__}") from None


def run_command(command: tuple[str, ...], one: Notification) -> None:
    """Run the user's command with the JSON form on its standard input.

    It runs under ``timeout`` (coreutils), which ends it in time even if this process is killed.

    Raises:
        NotDelivered: its exit code is not 0, or it took too long.
    """
    import subprocess

    variables = {"DLAPP_EVENT": one.event, "DLAPP_EVENT_ID": one.id, "DLAPP_EVENT_TITLE": title_of(one)}
    try:
        ended = subprocess.run(
            ["timeout", "-k", "5", str(COMMAND_TIMEOUT_S), *command],
            input=json.dumps(message_of(one)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables},
            cwd="/",
            check=False,
        )
    except (OSError, ValueError) as error:
        raise NotDelivered(f"{command[0]}: {error}") from error
    if ended.returncode == 124:
        raise NotDelivered(f"{command[0]} took longer than {COMMAND_TIMEOUT_S} s")
    if ended.returncode in (126, 127):
        raise NotDelivered(f"{command[0]} cannot be run", final=True)
    if ended.returncode:
        raise NotDelivered(f"{command[0]} ended with exit code {ended.returncode}")
