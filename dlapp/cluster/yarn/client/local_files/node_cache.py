"""Cache of facts of a cluster on the client's machine: its running nodes, and its active ResourceManager.

    ~/.local/state/dlapp/nodes/       0700
        <digest of the addresses of the ResourceManagers>.json      0600, the running nodes
        <digest of the addresses of the ResourceManagers>.active    0600, the address of one of them

A list of 10,000 nodes has about 6 MB, and the ResourceManager builds it for each request. Each submission uses the list
for its messages to the user, so without a cache a script that submits in a loop would request it each time. A list may
be ten minutes old, so no submission is refused because of it; messages to the user are based on a new list.

A command asks several ResourceManagers one after the other whether they are active, and waits five seconds for one that
hangs. The address decides only who is asked first: so the first command alone waits, and a wrong address costs one
question.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from dlapp.cluster.yarn.client.local_files.last_application import local_state
from dlapp.cluster.yarn.client.rest import NodeInfo
from dlapp.system import clock, files
from dlapp.system.owners import check_not_writable_by_others

MAX_AGE_S = 600.0
MAX_BYTES = 4 << 20
"""Size limit of a file; a node has about 120 bytes. A larger list is not stored."""
_MAX_ADDRESS = 1024


def keep(urls: Sequence[str], nodes: Sequence[NodeInfo]) -> None:
    """Store the running nodes of the cluster with these ResourceManagers. If this fails, the next command requests them
    again."""
    content = {"read_ms": clock.now_ms(), "nodes": [[one.name, one.web, one.total] for one in nodes]}
    data = json.dumps(content, separators=(",", ":")).encode()
    if len(data) <= MAX_BYTES:
        _write(f"{_digest(urls)}.json", data)


def keep_active(urls: Sequence[str], url: str) -> None:
    """Store which of several ResourceManagers was active. If this fails, the next command asks in the usual order."""
    if len(urls) > 1 and active_first(urls)[0] != url:
        _write(f"{_digest(urls)}.active", url.encode())


def active_first(urls: Sequence[str]) -> list[str]:
    """Return the ResourceManagers with the stored one first; in the given order if none of them is stored."""
    stored = b""
    if len(urls) > 1:
        with contextlib.suppress(OSError), _opened() as fd:
            stored = files.read_file(
                f"{_digest(urls)}.active", dir_fd=fd, path=directory(), owners={os.geteuid()}, max_bytes=_MAX_ADDRESS
            )
    return sorted(urls, key=lambda url: url.encode() != stored)


def _write(name: str, data: bytes) -> None:
    with contextlib.suppress(OSError):
        check_not_writable_by_others(directory())
        files.make_below_home(directory(), 0o700)
        with _opened() as fd:
            temporary = f".{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            with files.closing_fd(os.open(temporary, flags, 0o600, dir_fd=fd)) as file:
                files.write_all(file, data)
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)


def find(urls: Sequence[str]) -> list[NodeInfo] | None:
    """Return a cluster's stored nodes, at most `MAX_AGE_S` old; None: no such file that only this user can write."""
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError), _opened() as fd:
        content = files.read_json_object(
            f"{_digest(urls)}.json", dir_fd=fd, path=directory(), owners={os.geteuid()}, max_bytes=MAX_BYTES
        )
        # The clock may have been set back since then.
        if 0 <= clock.now_ms() - int(content["read_ms"]) <= MAX_AGE_S * 1000:
            return [_node(*one) for one in content["nodes"]]
    return None


def directory() -> str:
    """Return the directory of the files."""
    return local_state("nodes")


def _node(name: Any, web: Any, total: Any) -> NodeInfo:
    amounts = {str(kind): int(amount) for kind, amount in dict(total).items()}
    return NodeInfo(name=str(name), web=str(web), state="RUNNING", total=amounts)


def _digest(urls: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(urls)).encode()).hexdigest()[:32]


def _opened() -> contextlib.AbstractContextManager[int]:
    check_not_writable_by_others(directory())
    return files.closing_fd(files.open_own_directory(f"{directory()}/.", path=directory()))
