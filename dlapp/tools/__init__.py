"""The commands, a file each: parse, call `dlapp.client`, print. What they print is made in `display/`.

Nothing but click and `common` is imported before a command runs, so that ``--help`` is quick and ``dlapp-status``
pays only for what it shows. click is loaded here, without garbage collections, which would find nothing, and without
`inspect`. That loads parts of Python's compiler, a fifth of click's time, and click uses it for texts of help.
"""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any


class _Inspect(ModuleType):
    """Module that click has in the place of `inspect`, which is loaded when more of it is used than is here."""

    @staticmethod
    def cleandoc(doc: str) -> str:
        """Return the text without its indentation; that of an option has one line."""
        if "\n" not in doc:
            return doc.expandtabs().lstrip()
        import inspect

        return inspect.cleandoc(doc)

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        import inspect

        return getattr(inspect, name)


def _load_click() -> None:
    if "click" in sys.modules or "inspect" in sys.modules:
        return
    sys.modules["inspect"] = instead = _Inspect("inspect")
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        import click  # noqa: F401
    finally:
        if sys.modules.get("inspect") is instead:
            del sys.modules["inspect"]
        gc.freeze()
        if is_enabled:
            gc.enable()


_load_click()
