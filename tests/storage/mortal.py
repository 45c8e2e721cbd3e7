"""A client of HDFS that dies in the middle, as its process may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlapp.locations import HdfsPlace
from dlapp.storage.webhdfs import WebHdfs

CHANGES = ("make_directory", "delete", "delete_if_empty", "rename", "write", "set_mode")


class Killed(BaseException):
    """The process is dead; nothing of it runs any more."""


class Mortal(WebHdfs):
    """Dies at its n-th change of the file system: before it, or when it was done and the answer was not heard yet."""

    def __init__(self, place: HdfsPlace, left: int, *, done: bool, changes: Sequence[str] = CHANGES) -> None:
        super().__init__(place)
        self.left, self.done = left, done
        for name in changes:
            setattr(self, name, self._mortal(getattr(super(), name)))

    def _mortal(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == -1 and self.done:
                call(*arguments, **options)
            if self.left < 0:
                raise Killed
            return call(*arguments, **options)

        return made
