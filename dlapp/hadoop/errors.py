"""Errors of calls to a Hadoop server.

HadoopError                     a DlappError
├── ConnectionLost            also Unreachable: nobody there, too slow, or cut off
├── NotHadoop                 also Unreachable: what answers speaks something else
└── RemoteError               the server answered with a Java exception
    ├── ApplicationNotFound   also NotFound
    ├── AttemptOver           the ResourceManager has finished with this attempt: end at once
    ├── NotRegistered         it was restarted, or never knew us: register again
    ├── WrongRequest          registered twice, or the numbers of the heartbeats do not fit
    ├── RequestRefused            an ask above a limit, or malformed
    ├── TryAgain              standby, starting, busy
    ├── TokenRefused          also Denied
    └── NotAllowed            also Denied
"""

from __future__ import annotations

from dlapp.errors import Denied, DlappError, NotFound, Unreachable


class HadoopError(DlappError):
    """A call to a Hadoop server failed."""


class ConnectionLost(HadoopError, Unreachable):
    """A call without an answer; ``sent`` is False if the server cannot have carried it out.

    ``refused``: its host answers, and no process listens on its port.
    """

    def __init__(self, message: str, *, sent: bool, refused: bool = False) -> None:
        super().__init__(message)
        self.sent, self.refused = sent, refused


class NotHadoop(HadoopError, Unreachable):
    """An answer that is not of Hadoop RPC version 9: another kind of server, or garbage on the way.

    The call may have been carried out all the same: ``sent``, as of `ConnectionLost`.
    """

    sent = True


class RemoteError(HadoopError):
    """The server answered a call with a Java exception.

    Attributes:
        java_class: its full name.
        message: all of its words, most often with a stack trace; of them the error shows the first line.
    """

    def __init__(self, method: str, java_class: str, message: str) -> None:
        first_line = message.partition("\n")[0].strip()
        name = java_class.rpartition(".")[2]
        super().__init__(f"{method}: {first_line} ({name})" if first_line else f"{method}: {name}")
        self.method, self.java_class, self.message = method, java_class, message


class ApplicationNotFound(RemoteError, NotFound):
    """The ResourceManager does not know the application, or no longer."""


class AttemptOver(RemoteError):
    """The ResourceManager does not know this attempt any more, or told it to end."""


class NotRegistered(RemoteError):
    """The ResourceManager does not know that this attempt is alive; it was restarted."""


class WrongRequest(RemoteError):
    """The ResourceManager refuses the order of our calls."""


class RequestRefused(RemoteError):
    """An ask is larger than the largest container, or not well formed; nothing of the call counted."""


class TryAgain(RemoteError):
    """The server will serve us later, or another one of its kind now."""


class TokenRefused(RemoteError, Denied):
    """The token is of another attempt or node, or too old."""


class NotAllowed(RemoteError, Denied):
    """The caller may not do this."""


_YARN, _SECURITY = "org.apache.hadoop.yarn.exceptions", "org.apache.hadoop.security"
_BY_JAVA_CLASS: dict[str, type[RemoteError]] = {
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
    """The error of ours that stands for a Java exception."""
    return _BY_JAVA_CLASS.get(java_class, RemoteError)(method, java_class[:_MAX_TEXT], message[:_MAX_TEXT])
