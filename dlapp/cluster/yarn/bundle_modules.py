"""Importer of the modules in the archive for the nodes; in the archive it begins the package ``dlapp``.

Python's own importer of zips reads the directory of the archive, 800 entries, and opens it again for each module: a
quarter of the CPU time of a minimal task. Here the modules are one entry of the zip, with an index of their own, and
each is one read. The zip has as ``dlapp/__init__.pyc`` this module with a call of `load_package`, so everything that
imports dlapp from the archive uses this importer, also for the libraries in it.

The archive is opened for each module: a process that closes all descriptors but its own, as helpers do, cannot close
one that is needed later.
"""

from __future__ import annotations

import marshal
import os
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, NamedTuple

INDEX = "index"
"""Entry of the zip with the `Index`, marshalled as a plain tuple."""


class Index(NamedTuple):
    """Contents of the archive.

    Args:
        modules: name of a module -> its file's name in the archive, and where its marshalled code is in the archive:
            its offset and its size.
        data: name of a file -> its offset and its size.
    """

    modules: dict[str, tuple[str, int, int]]
    data: dict[str, tuple[int, int]]


class ArchiveModules:
    """Finder and loader of all modules in one archive.

    Args:
        archive: its absolute path.
    """

    def __init__(self, archive: str, index: Index) -> None:
        self._archive, self._index = archive, index

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of a module; None if it is not in the archive."""
        if (entry := self._index.modules.get(name)) is None:
            return None
        origin = f"{self._archive}/{entry[0]}"
        is_package = entry[0].endswith("/__init__.pyc")
        spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]  # no base class
        spec.has_location = True
        spec.cached = origin  # computing it takes longer than the rest of this function
        if is_package:
            spec.submodule_search_locations = [origin.removesuffix("/__init__.pyc")]
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Return None: Python creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the code of a module."""
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, name: str) -> CodeType:
        """Return the code of a module. Raises ImportError if it is not in the archive."""
        if (entry := self._index.modules.get(name)) is None:
            raise ImportError(f"{name} is not in {self._archive}", name=name)
        code: CodeType = marshal.loads(self._read(entry[1], entry[2]))
        return code

    def get_source(self, _name: str) -> None:
        """Return None: the archive has no sources beside the code."""

    def is_package(self, name: str) -> bool:
        """Return whether a module is a package."""
        return self._index.modules[name][0].endswith("/__init__.pyc")

    def get_data(self, path: str) -> bytes:
        """Return the content of a file in the archive. Raises OSError if it is not there."""
        entry = self._index.data.get(path.removeprefix(f"{self._archive}/"))
        if entry is None:
            raise FileNotFoundError(f"{path}: not in the archive")
        return self._read(*entry)

    def _read(self, offset: int, size: int) -> bytes:
        fd = os.open(self._archive, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, size, offset)
        finally:
            os.close(fd)
        if len(data) != size:
            raise ImportError(f"{self._archive} is truncated")
        return data


def load_package(namespace: dict[str, Any]) -> None:
    """Make the archive's modules importable, and execute those of the package ``dlapp`` itself in its namespace.

    Args:
        namespace: of the package, as Python's importer of zips has loaded it.
    """
    archive = os.path.dirname(os.path.dirname(namespace["__file__"]))
    index = Index(*marshal.loads(namespace["__loader__"].get_data(f"{archive}/{INDEX}")))
    modules = ArchiveModules(os.path.abspath(archive), index)
    sys.meta_path.insert(0, modules)
    namespace["__loader__"] = namespace["__spec__"].loader = modules
    exec(modules.get_code("dlapp"), namespace)
