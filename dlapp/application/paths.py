"""Paths and locations as a user writes them, and whether they overlap.

On one machine, relative paths of a file are relative to its directory. In the spec, a source of input is ``file://``
and an absolute pattern of Hadoop's (`dlapp.storage.glob`); directories that are prepended to the user's text are
escaped in it, so that only the user's own ``*`` is a wildcard. A target of output is ``file://`` and an absolute path,
without escapes.
"""

from __future__ import annotations

import os
import re

from dlapp.locations import file_location, local_path
from dlapp.storage.glob import split_pattern
from dlapp.system.text import shown

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
WILD = re.compile(r"([\\*?\[\]{}])")
_REFERENCE = re.compile(r"\$(?:\{[^}]*\}?|[A-Za-z_][A-Za-z0-9_]*)", re.ASCII)


def resolve_location(text: str, directory: str, fs_root: str, *, pattern: bool) -> str:
    """Return the ``file://`` location of a path as the user wrote it.

    Args:
        text: as the user wrote it.
        directory: the directory of the properties file; relative paths are relative to it.
        fs_root: prefix of absolute paths.
        pattern: whether ``text`` is a pattern; then the prepended directories are escaped. Otherwise it is a path to
            write, and a symbolic link is replaced by its target.

    Raises:
        ValueError: the scheme is unsupported, or it is not a path; the message is the problem.
    """
    refuse_references(text)
    if pattern and "{" in text and ".." in re.split(r"[/{},]", text):
        raise ValueError(f"{shown(text)} has both .. and braces; write it without one of them")
    if match := SCHEME.match(text):
        location = _with_scheme(match[1].lower(), text, pattern=pattern)
        return location if pattern else _followed(location)
    before = fs_root if text.startswith("/") else directory
    if text.startswith("~"):
        head, _, text = text.partition("/")
        before = _home_directory(head)
    elif text.startswith("/"):
        text = os.path.normpath("/" + text.lstrip("/"))  # first: no .. may lead out of fs_root
    if pattern:
        before = WILD.sub(r"\\\1", before)
    location = file_location("/" + os.path.normpath(f"{before}/{text}").lstrip("/"))
    return location if pattern else _followed(location)


def refuse_references(text: str) -> None:
    """Refuse a local or HDFS path that contains a variable: it is not expanded, so it would be a literal name.

    Raises:
        ValueError: it contains one; the message is the problem.
    """
    scheme = SCHEME.match(text)
    if (found := _REFERENCE.search(text)) and (scheme is None or scheme[1].lower() in ("file", "hdfs", "viewfs")):
        raise ValueError(
            f"{shown(text)} has {found[0]}, and variables are not replaced here; write the path itself (~ is the home "
            "directory)"
        )


def _home_directory(head: str) -> str:
    """Return the home directory for ``~`` or ``~user``. Raises ValueError: there is no such user."""
    home = os.path.expanduser(head)
    if not home.startswith("/"):
        raise ValueError(f"{shown(head)}: there is no such user, or the user has no home directory")
    return home


def own_path(text: str, directory: str) -> str:
    """Return the absolute path of a local file or directory as the user wrote it; relative ones are relative to
    ``directory``.

    Raises:
        ValueError: it contains a variable, or names an unknown user's home directory; the message is the problem.
    """
    refuse_references(text)
    head, slash, rest = text.partition("/")
    if head.startswith("~"):
        text = _home_directory(head) + slash + rest
    return os.path.normpath(os.path.join(directory, text))


def _followed(location: str) -> str:
    """Return the target of a link: the commit renames over the path, which would replace the link instead of its
    target."""
    path = local_path(location)
    if not os.path.islink(path):
        return location
    real = os.path.realpath(path)
    if os.path.islink(real):
        raise ValueError(f"{seen(path)} is a broken symbolic link")
    return file_location(real)


def _with_scheme(scheme: str, text: str, *, pattern: bool) -> str:
    if scheme == "file":
        path = text[len("file:") :]
        if path.startswith("//") and not path.startswith("///"):
            raise ValueError(f"{shown(text)} names a host; write file:/// and the path")
        return file_location(os.path.normpath("/" + path.lstrip("/")))
    if scheme in ("webhdfs", "har"):
        raise ValueError(f"there is no storage for {scheme}://, it can be a path, file:// or hdfs://")
    return for_input(scheme, text, "a path, file:// or hdfs://", pattern=pattern)


def for_input(scheme: str, text: str, other: str, *, pattern: bool) -> str:
    """Return the location of a path that is neither on HDFS nor local.

    Args:
        scheme: the scheme of the path.
        text: as the user wrote it.
        other: where output can go, for the message.
        pattern: whether it is input; output cannot go there.

    Raises:
        ValueError: it is output, or not a location; the message is the problem.
    """
    if not pattern:
        raise ValueError(f"output cannot go to {scheme}://, it can be {other}")
    if not text[len(scheme) :].startswith("://"):
        raise ValueError(f"{shown(text)} is not a location, such as {scheme}://bucket/name")
    return scheme + text[len(scheme) :]


def begins_at(pattern: str, target: str) -> bool:
    """Return whether a pattern names a target, or a path in it, without a wildcard in the target's own name."""
    parts = _parts(target)
    return all(list(components[: len(parts)]) == parts for components in split_pattern(pattern))


def overlap(target: str, pattern: str, *, links: bool = True) -> bool:
    """Return whether a target matches a pattern, or is inside a match, or contains one.

    Args:
        links: whether to follow local symbolic links.

    Raises:
        UsageError: the pattern is invalid.
    """
    targets = [_parts(target), _parts(os.path.realpath(target))] if links else [_parts(target)]
    for components in split_pattern(pattern):
        fixed = next((n for n, one in enumerate(components) if not isinstance(one, str)), len(components))
        start = "/" + "/".join(str(one) for one in components[:fixed])
        start = os.path.realpath(start) if links else start
        for wanted in (components, [*_parts(start), *components[fixed:]]):
            for parts in targets:
                if all(
                    one == part if isinstance(one, str) else one.fullmatch(part)
                    for one, part in zip(wanted, parts, strict=False)
                ):
                    return True
    return False


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def seen(path: str) -> str:
    """Return a path for a message: literal if it is printable."""
    return path if path.isprintable() else repr(path)
