"""A mail server (aiosmtpd) whose answers a function makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

Answer = Callable[[EmailMessage], str]


class _Handler:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        message = BytesParser(policy=default).parsebytes(envelope.content)
        assert isinstance(message, EmailMessage)
        return self._answer(message)


@contextmanager
def mail_server(answer: Answer, *, port: int, logins: list[tuple[bytes, bytes]] | None = None) -> Iterator[None]:
    """Run a server on 127.0.0.1; it ends with the context.

    Args:
        answer: called with each mail; what the server answers, such as ``250 OK``.
        port: on which it listens.
        logins: gets the user and password of each login; None: it takes none.
    """

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        assert logins is not None
        logins.append((data.login, data.password))
        return AuthResult(success=True)

    options: dict[str, Any] = {}
    if logins is not None:
        options = {"authenticator": authenticate, "auth_require_tls": False}
    controller = Controller(_Handler(answer), hostname="127.0.0.1", port=port, ready_timeout=120.0, **options)
    controller.start()
    try:
        yield
    finally:
        controller.stop()
