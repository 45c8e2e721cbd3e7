"""Targets of symbolic links: a copied tree keeps the links that stay inside it, and only those."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

MAX_HOPS = 40
"""Number of links that Linux follows on one path before it returns ELOOP (include/linux/namei.h, MAXSYMLINKS)."""


class TooManyLinks(Exception):
    """A link passes through more links than `MAX_HOPS`, perhaps in a loop."""


def link_kept_inside(name: str, text: str, roots: Sequence[str], read_link: Callable[[str], str | None]) -> str | None:
    """Return the target of a link that is valid wherever its tree is; None if it points out of the tree.

    The path is resolved link by link, so ``a/..`` is not taken for ``.`` if ``a`` is a link itself, and a path that
    leaves the tree and re-enters it by the tree's current name points out of it. A dangling or circular link stays
    unchanged. An absolute link into the tree becomes relative.

    Args:
        name: the link's path in the tree; no directory on it is a link.
        text: its current target.
        roots: the absolute paths of the tree itself, without ``/`` at the end.
        read_link: returns the target of the link at a path in the tree; None if there is no link.
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
    """Return the path in the tree that a link resolves to; None if it points out of the tree.

    Args:
        name, text, roots, read_link: see `link_kept_inside`; ``read_link`` may raise for a missing entry.

    Raises:
        TooManyLinks: it passes through more links than the kernel follows.
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
    """Return a reader of the links of a real tree, for `link_kept_inside`."""

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
