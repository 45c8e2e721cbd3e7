"""Identifiers of this machine and of its current boot, and its mounted file systems."""

from __future__ import annotations

import contextlib
import os

# Read as bytes: text would load a codec, which a child with another uid may be unable to read.


def machine_id(root: str = "/") -> str:
    """Return this machine's id; empty if it has none (in a container, for example).

    Source: machine-id(5); D-Bus's copy is older and still alone on some systems.
    """
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError), open(os.path.join(root, path), "rb") as file:
            if (data := file.read(100).strip()).isalnum():
                return data.decode("ascii")
    return ""


def boot_id() -> str:
    """Return the boot id, which changes at each restart; empty without /proc. Source: random(4)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode("ascii")
    except OSError:
        return ""


def cgroup_directories(root: str, controller: str) -> list[str]:
    """Return the cgroup directories with limits of ``controller`` for this process, version 1 or 2: its cgroup and all
    parents.

    In a container, the own cgroup is often mounted as the root while /proc/self/cgroup has its path on the host; the
    root of the mount is the prefix to remove, and if it is not a prefix, the mount itself is the cgroup.

    Source: cgroups(7); proc(5), /proc/pid/mountinfo.
    """
    own: dict[str, str] = {}
    for line in own_cgroups(root).split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            own["cgroup2"] = path
        elif controller in controllers.split(","):
            own["cgroup"] = path
    found = []
    for line in _text(os.path.join(root, "proc/self/mountinfo")).split("\n"):
        before, _, after = line.partition(" - ")
        words, rest_words = before.split(" "), after.split(" ")
        kind = rest_words[0]
        if kind not in own or len(words) < 5 or len(rest_words) < 3:
            continue
        if kind == "cgroup" and controller not in rest_words[2].split(","):
            continue
        top, point = words[3].rstrip("/"), os.path.join(root, words[4].lstrip("/"))
        below = own[kind][len(top) :] if (own[kind] + "/").startswith(top + "/") else ""
        parts = [part for part in below.split("/") if part not in ("", "..")]
        found += [os.path.join(point, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def own_cgroups(root: str = "/") -> str:
    """Return the cgroups of this process as the kernel lists them; empty without /proc. Source: cgroups(7)."""
    return _text(os.path.join(root, "proc/self/cgroup"))


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


_HOST_PID, _HOST_UTS = 0xEFFFFFFC, 0xEFFFFFFE
"""Inodes of the namespaces that a kernel starts with. Source: include/linux/proc_ns.h (PROC_PID_INIT_INO)."""


def namespaces_of_its_own() -> tuple[bool, bool]:
    """Return whether this process is outside of the kernel's first pid namespace, and of its first uts namespace."""
    pids, names = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "uts"))
    return pids != _HOST_PID, names != _HOST_UTS


def file_system_of(path: str, mountinfo: str = "/proc/self/mountinfo") -> tuple[str, str]:
    """Return type and source of the file system of ``path``; empty texts if unknown.

    Args:
        path: absolute.
        mountinfo: the file to read; of two mounts at one path the later one counts.

    Source: proc(5): ``36 35 98:0 /root /mount/point options optional... - type source superoptions``.
    """
    return _mount_of(path, mountinfo)[2:]


def is_mounted_apart(path: str) -> bool:
    """Return whether a directory is a mount point, or is inside a mount of a part of another file system."""
    point, root, _, _ = _mount_of(path, "/proc/self/mountinfo")
    return point == os.path.realpath(path) or root not in ("", "/")


def _mount_of(path: str, mountinfo: str) -> tuple[str, str, str, str]:
    """Return the mount of a path: its mount point, its root in the file system, type and source."""
    real, best, found = os.path.realpath(path), -1, ("", "", "", "")
    for line in _text(mountinfo).split("\n"):
        before, _, after = line.partition(" - ")
        words, rest = before.split(" "), after.split(" ")
        if len(words) < 5 or len(rest) < 2:
            continue
        point = _unescape(words[4])
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), (point, _unescape(words[3]), rest[0], _unescape(rest[1]))
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
