"""Connections to a mail server with limits for its answers: smtplib reads any number of lines, for any time."""

from __future__ import annotations

import smtplib
from typing import BinaryIO

from dlapp.notifications.deadline import reader_until

_MAX_BYTES = 64 << 10
"""Size limit of all answers on one connection, each before and after the start of TLS. A server sends about 1 KiB."""
_ANSWERS_S = 60.0
"""Time limit of all answers on one connection, each before and after the start of TLS: some ten, of a second each where
the server looks up names."""


class _BoundedReader:
    """Reader of a server's answers; raises an error after `_MAX_BYTES`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, _MAX_BYTES

    def readline(self, size: int) -> bytes:
        """Return the next line. Raises OSError."""
        line = self._file.readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise OSError(f"the server answers with more than {_MAX_BYTES} bytes")
        return line

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SmtpConnection(smtplib.SMTP):
    """Connection without TLS, or with STARTTLS."""

    def getreply(self) -> tuple[int, bytes]:
        """See `smtplib.SMTP.getreply`."""
        _bound(self)
        return super().getreply()


class SmtpTlsConnection(smtplib.SMTP_SSL):
    """Connection with TLS from its beginning."""

    def getreply(self) -> tuple[int, bytes]:
        """See `smtplib.SMTP.getreply`."""
        _bound(self)
        return super().getreply()


def _bound(connection: smtplib.SMTP) -> None:
    # Source: smtplib.SMTP.getreply, which makes the file if it is None, and starttls, which makes it None again.
    if connection.file is None and connection.sock is not None:
        connection.file = _BoundedReader(reader_until(connection.sock, _ANSWERS_S))
