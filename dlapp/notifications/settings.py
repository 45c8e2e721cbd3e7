"""Settings of an application's notifications, from the configuration and its files with secrets."""

from __future__ import annotations

from dlapp.config import Config, read_secret
from dlapp.errors import ConfigError
from dlapp.values.notification import NO_TLS, Mail, NotificationSettings, Webhook

_MAX_BYTES = 16 << 10


def settings_of(config: Config, events: tuple[str, ...] | None) -> NotificationSettings | None:
    """Return the settings of an application's notifications; None if there are no channels or no events.

    ``events`` are from the properties file (`AppSpec.notify`); None for those of the configuration.

    Raises:
        ConfigError: a file with a secret is missing, may be read by others, or is invalid.
    """
    notify = config.notify
    events = notify.events if events is None else events
    if not events or not (notify.webhook or notify.mail or notify.command):
        return None
    webhook = _webhook(notify.webhook, notify.webhook_form) if notify.webhook else None
    mail = None
    if notify.mail:
        user = password = ""
        if notify.smtp_credentials:
            key = "notify.smtp_credentials"
            if notify.smtp_security == NO_TLS:
                raise ConfigError(f"{key}: a password is not sent in the clear: set notify.smtp_security")
            user, _, password = read_secret(notify.smtp_credentials, key, _MAX_BYTES).partition(":")
            if not user or not password or "\n" in password:
                raise ConfigError(f"{key}: {notify.smtp_credentials} is not one line user:password")
        mail = Mail(
            to=notify.mail,
            sender=notify.mail_from or notify.mail[0],
            server=notify.smtp[0],
            port=notify.smtp[1],
            security=notify.smtp_security,
            user=user,
            password=password,
        )
    return NotificationSettings(
        events=events,
        waiting_after_s=notify.waiting_after_s,
        webhook=webhook,
        mail=mail,
        command=notify.command or (),
    )


def _webhook(path: str, form: str) -> Webhook:
    """Read a webhook: its URL, and further lines ``Name: value``."""
    url, *lines = read_secret(path, "notify.webhook", _MAX_BYTES).split("\n")
    if not url.startswith(("https://", "http://")) or any(char.isspace() for char in url):
        raise ConfigError(f"notify.webhook: line 1 of {path} is not a URL with http:// or https://")
    headers = {}
    for number, line in enumerate(lines, start=2):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.replace("-", "").isalnum() or not name.isascii() or not value.isprintable():
            raise ConfigError(f"notify.webhook: line {number} of {path} is not a header, Name: value")
        headers[name] = value.strip()
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    # Stored in the value: the sending processes do not have this variable.
    found = urlsplit(url)
    proxy = "" if proxy_bypass(found.hostname or "") else getproxies().get(found.scheme, "")
    return Webhook(url, form, headers, proxy)
