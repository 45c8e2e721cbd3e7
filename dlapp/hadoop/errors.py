"""Errors of calls to a Hadoop server.

HadoopError                     a DlappError
├── ConnectionLost            also Unreachable: no server, a timeout, or a broken connection
├── NotHadoop                 also Unreachable: the server speaks another protocol
└── RemoteError               the server answered with a Java exception
    ├── ApplicationNotFound   also NotFound
    ├── AttemptOver           the ResourceManager has unregistered this attempt: end at once
    ├── NotRegistered         the ResourceManager was restarted, or has no such attempt: register again
    ├── WrongRequest          registered twice, or heartbeats out of sequence
    ├── RequestRefused        a container request above a limit, or malformed
    ├── TryAgain              standby, starting, busy
    ├── TokenRefused          also Denied
    └── NotAllowed            also Denied
"""

from __future__ import annotations

from collections.abc import Mapping

from dlapp.errors import Denied, DlappError, NotFound, Unreachable


class HadoopError(DlappError):
    """A failed call to a Hadoop server."""


class ConnectionLost(HadoopError, Unreachable):
    """A call without an answer.

    Attributes:
        sent: False if the server cannot have executed the call.
        refused: the host answers, but no process listens on the port.
    """

    def __init__(self, message: str, *, sent: bool, refused: bool = False) -> None:
        super().__init__(message)
        self.sent, self.refused = sent, refused


class NotHadoop(HadoopError, Unreachable):
    """An answer that is not Hadoop RPC version 9: another kind of server, or damaged data.

    The server may have executed the call: ``sent`` is True, see `ConnectionLost`.
    """

    sent = True


class RemoteError(HadoopError):
    """A Java exception as the answer to a call.

    Attributes:
        java_class: its full name.
        message: its whole text, usually with a stack trace; the error shows the first line.
    """

    def __init__(self, method: str, java_class: str, message: str) -> None:
        first_line = message.partition("\n")[0].strip()
        name = java_class.rpartition(".")[2]
        super().__init__(f"{method}: {first_line} ({name})" if first_line else f"{method}: {name}")
        self.method, self.java_class, self.message = method, java_class, message


class ApplicationNotFound(RemoteError, NotFound):
    """An application that the ResourceManager does not know, or has forgotten."""


class AttemptOver(RemoteError):
    """An attempt that the ResourceManager has unregistered, or ordered to end."""


class NotRegistered(RemoteError):
    """An attempt that is not registered at the ResourceManager, which was restarted."""


class WrongRequest(RemoteError):
    """A call that the ResourceManager refuses because it is out of sequence."""


class RequestRefused(RemoteError):
    """A container request above the largest container, or malformed; the whole call had no effect."""


class TryAgain(RemoteError):
    """A call to retry later, or at another server."""


class TokenRefused(RemoteError, Denied):
    """A token of another attempt or node, or an expired token."""


class NotAllowed(RemoteError, Denied):
    """A call without permission."""


_YARN, _SECURITY = "org.apache.hadoop.yarn.exceptions", "org.apache.hadoop.security"
_BY_JAVA_CLASS: Mapping[str, type[RemoteError]] = {
    f"{_YARN}.ApplicationNotFoundException": ApplicationNotFound,
    f"{_YARN}.ApplicationAttemptNotFoundException": AttemptOver,
    f"{_YARN}.ApplicationMasterNotRegisteredException": NotRegistered,
    f"{_YARN}.InvalidApplicationMasterRequestException": WrongRequest,
    f"{_YARN}.InvalidResourceRequestException": RequestRefused,
    f"{_YARN}.InvalidLabelResourceRequestException": RequestRefused,
    f"{_YARN}.InvalidResourceBlacklistRequestException": RequestRefused,
    f"{_YARN}.NMNotYetReadyException": TryAgain,
    "org.apache.hadoop.ipc.StandbyException": TryAgain,
    "org.apache.hadoop.ipc.RetriableException": TryAgain,
    f"{_SECURITY}.token.SecretManager$InvalidToken": TokenRefused,
    "javax.security.sasl.SaslException": TokenRefused,
    f"{_SECURITY}.AccessControlException": NotAllowed,
    f"{_SECURITY}.authorize.AuthorizationException": NotAllowed,
}


_MAX_TEXT = 1 << 16


def remote_error(method: str, java_class: str, message: str) -> RemoteError:
    """Return the error for a Java exception."""
    return _BY_JAVA_CLASS.get(java_class, RemoteError)(method, java_class[:_MAX_TEXT], message[:_MAX_TEXT])
