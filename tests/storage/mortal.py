"""A client of HDFS that dies in the middle, as its process may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlapp.locations import HdfsPlace
from dlapp.storage.hdfs.file_system import open_hdfs
from dlapp.storage.hdfs.webhdfs import WebHdfs

CHANGES = ("make_directory", "delete", "delete_if_empty", "rename", "write", "set_mode")


class Killed(BaseException):
    """The process is dead; nothing of it runs any more."""


def mortal(place: HdfsPlace, left: int, *, done: bool, changes: Sequence[str] = CHANGES) -> WebHdfs:
    """Return a client that dies at a change of the file system: before it, or when it was done and not heard of yet.

    Args:
        place: the HDFS, with the way to it.
        left: changes before that one.
        done: that one is done.
        changes: methods that count.
    """
    web = open_hdfs(place)

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(web: WebHdfs, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1 and done:
                call(web, *arguments, **options)
            if left < 0:
                raise Killed
            return call(web, *arguments, **options)

        return made

    # Of a class of its own: attributes that hold the client would keep it, with open connections, until a collection.
    mortal_class: type[WebHdfs] = type(
        "Mortal", (type(web),), {change: wrapped(getattr(type(web), change)) for change in changes}
    )
    web.__class__ = mortal_class
    return web
