"""Client of dockerd by the docker package, for commands: the checks before a submission, and of dlapp-doctor.

What runs on a node uses `dlapp.net.dockerd`: the package takes 90 ms and 20 MiB to load, and is not in the archive for
nodes. It limits neither the time of a whole call nor the size of an answer, so here each call has a thread of its own
with a time limit, and a hook of the package's session reads each answer with a size limit. The errors are those of the
other client, with the same messages.

Source: docker 7.1 and 7.2, docker.APIClient, which is a session of requests.
"""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from dlapp.errors import Unreachable
from dlapp.net.dockerd import (
    MAX_LIST_BYTES,
    UNIX,
    DockerRefused,
    DockerSilent,
    as_object,
    is_success,
    local_host,
    names_of,
    refusal_text,
)
from dlapp.system.waits import call_within

_T = TypeVar("_T")
_ANY_VERSION = "1.24"
"""Version of the API for a client that only asks for the version: the oldest that the package knows."""
_API_VERSION = re.compile(r"\d{1,4}\.\d{1,4}", re.ASCII)
_PIECE_BYTES = 64 << 10


class DockerClient:
    """Client of this machine's daemon at ``host``. It keeps no connection open.

    Args:
        timeout_s: time limit of each call [s].

    Raises:
        DockerNotLocal: the address is not of this machine's daemon.
    """

    def __init__(self, host: str, timeout_s: float) -> None:
        self.host, self._timeout_s = local_host(host), timeout_s

    def version(self) -> dict[str, Any]:
        """Return its version, and that of its API. Raises DockerRefused, DockerSilent, as do the others."""
        return as_object(self._call(self._version))

    def info(self) -> dict[str, Any]:
        """Return its settings."""
        return as_object(self._call(lambda: self._ask(self._api_version(), lambda api: api.info())))

    def networks(self) -> list[str]:
        """Return the names of its networks."""
        return names_of(self._call(lambda: self._ask(self._api_version(), lambda api: api.networks())))

    def _version(self) -> Any:
        return self._ask(_ANY_VERSION, lambda api: api.version(api_version=False))

    def _api_version(self) -> str:
        """Return the version of the daemon's API. Raises KeyError, TypeError: the answer has none."""
        version = self._version()["ApiVersion"]
        if not _API_VERSION.fullmatch(version):  # with "auto" or none the package asks itself, without our limits
            raise TypeError("the version of the API is not a version")
        return str(version)

    def _ask(self, version: str, call: Callable[[Any], Any]) -> Any:
        import docker

        with closing(docker.APIClient(base_url=self.host, version=version, timeout=self._timeout_s)) as api:
            api.trust_env = False
            api.hooks["response"].append(_read)
            return call(api)

    def _call(self, ask: Callable[[], _T]) -> _T:
        import docker.errors

        silence = f"no answer in {self._timeout_s:g} s"
        try:
            self._connect()
            return call_within(self._timeout_s, ask, lambda: silence)
        except Unreachable as error:
            raise DockerSilent(silence) from error
        except (KeyError, TypeError) as error:
            raise DockerSilent("an answer that does not match the API") from error
        except (ValueError, RecursionError) as error:
            raise DockerSilent(f"a response that is not JSON: {error}") from error
        except (docker.errors.DockerException, OSError) as error:
            raise DockerSilent(_reason(error, silence)) from error

    def _connect(self) -> None:
        """Connect once, for the reason of a failure: the package does not close a socket that cannot be connected."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(self._timeout_s)
            try:
                probe.connect(self.host.removeprefix(UNIX))
            except OSError as error:
                silent = DockerSilent((error.strerror or str(error)).lower())
                silent.denied = isinstance(error, PermissionError)
                raise silent from error


def _read(response: Any, **_: object) -> None:
    """Read an answer. Raises DockerRefused: its status is no success; DockerSilent: it is too large, or cut off."""
    content = bytearray()
    try:
        for piece in response.raw.stream(_PIECE_BYTES):
            content += piece
            if len(content) > MAX_LIST_BYTES:
                raise DockerSilent(f"an answer of more than {MAX_LIST_BYTES >> 20} MiB")
    except DockerSilent:
        raise
    except Exception as error:  # those of urllib3, which is not imported here
        raise DockerSilent("closed the connection in the middle of an answer") from error
    finally:
        response.raw.close()
    response.raw = io.BytesIO(content)
    if not is_success(response.status_code):
        raise DockerRefused(response.status_code, refusal_text(response.status_code, bytes(content)))


def _reason(error: BaseException, silence: str) -> str:
    """Return the reason of an error of the package, from the error that its chain begins with."""
    from http.client import BadStatusLine

    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    if isinstance(error, TimeoutError):
        return silence
    if isinstance(error, ConnectionError):
        return "closed the connection in the middle of an answer"
    return "sent no valid HTTP response" if isinstance(error, BadStatusLine) else str(error)
