"""Targets of symbolic links: a tree that travels can keep the links that stay inside it, and only those."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

MAX_HOPS = 40
"""As many links as Linux follows on one path before it says ELOOP (include/linux/namei.h, MAXSYMLINKS)."""


class TooManyLinks(Exception):
    """A link leads through more links than `MAX_HOPS`, perhaps in a circle."""


def link_kept_inside(name: str, text: str, roots: Sequence[str], read_link: Callable[[str], str | None]) -> str | None:
    """Return what a link must say to mean the same wherever its tree lies; None: it leads out of the tree.

    The way is followed link by link, so ``a/..`` is not taken for ``.`` where ``a`` is a link itself, and a way that
    leaves the tree and comes back by the tree's present name leads out. A link to nothing, or in a circle, stays as it
    is. An absolute one into the tree becomes relative.

    Args:
        name: the link's path in the tree, no directory on it a link.
        text: what it says.
        roots: the absolute paths that name the tree itself, without ``/`` at the end.
        read_link: what the link at a path in the tree says; None: there is none.
    """
    kept = text
    if text.startswith("/"):
        inside = _below(text, roots)
        if inside is None:
            return None
        up = name.count("/")
        kept = "../" * up + inside if inside else "../" * (up - 1) + ".." if up else "."
    try:
        return None if link_target(name, text, roots, read_link) is None else kept
    except TooManyLinks:
        return kept


def link_target(name: str, text: str, roots: Sequence[str], read_link: Callable[[str], str | None]) -> str | None:
    """Return the path in the tree that a link leads to; None: it leads out of the tree.

    Args:
        name, text, roots, read_link: as of `link_kept_inside`; ``read_link`` may raise where there is nothing.

    Raises:
        TooManyLinks: it leads through more links than the kernel follows.
    """
    here, todo, hops = name.split("/")[:-1], list[str](), 0
    while True:
        if text.startswith("/"):
            inside = _below(text, roots)
            if inside is None:
                return None
            here, text = [], inside
        todo.extend(text.split("/")[::-1])
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    return None
                here.pop()
                continue
            further = read_link("/".join([*here, part]))
            if further is not None:
                hops += 1
                if hops > MAX_HOPS:
                    raise TooManyLinks
                text = further
                break
            here.append(part)
        else:
            return "/".join(here)


def link_reader(tree: str) -> Callable[[str], str | None]:
    """Reads the links of a real tree, for `link_kept_inside`."""

    def read(name: str) -> str | None:
        try:
            return os.readlink(f"{tree}/{name}")
        except OSError:
            return None

    return read


def _below(path: str, roots: Sequence[str]) -> str | None:
    for root in roots:
        if path == root:
            return ""
        if path.startswith(root + "/"):
            return path[len(root) + 1 :].lstrip("/")
    return None
