"""Names of this machine, of its present boot, and of the file systems that are mounted on it."""

from __future__ import annotations

import contextlib
import os

# Read as bytes: text would load a codec, which a child with another uid may not be able to read.


def machine_id(root: str = "/") -> str:
    """Return this machine's id; empty where it has none (a container, say).

    Source: machine-id(5); D-Bus's copy is older and still alone on some systems.
    """
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError), open(os.path.join(root, path), "rb") as file:
            if (data := file.read(100).strip()).isalnum():
                return data.decode("ascii")
    return ""


def boot_id() -> str:
    """Return what changes when the machine is restarted; empty without /proc. Source: random(4)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode("ascii")
    except OSError:
        return ""


def file_system_of(path: str, mountinfo: str = "/proc/self/mountinfo") -> tuple[str, str]:
    """Return kind and source of the file system that ``path`` lies on; empty texts if that cannot be told.

    Args:
        path: absolute.
        mountinfo: the file to read; of two mounts on one place the later one counts.

    Source: proc(5): ``36 35 98:0 /root /mount/point options optional... - type source superoptions``.
    """
    real, best, found = os.path.realpath(path), -1, ("", "")
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        words, rest = before.split(" "), after.split(" ")
        if len(words) < 5 or len(rest) < 2:
            continue
        point = _unescape(words[4])
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), (rest[0], _unescape(rest[1]))
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
