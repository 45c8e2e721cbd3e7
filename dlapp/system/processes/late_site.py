"""Site-packages that are added when a module in them is first needed.

dlapp's own processes run without `site` (``python -S``): at every start it reads each ``.pth`` file of the installation
and executes its imports, which takes a third of the CPU time of a task's start or more, and a task on one machine or
from the bundle of a cluster needs nothing from there. Directories in ``.pth`` files are added late, too; their code is
not executed. Source: docs.python.org, library/site.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class LateSite:
    """Finder, before that of `sys.path`, that adds site-packages when a module is found nowhere else.

    A directory without ``__init__.py`` is ignored, as in a Python that has site-packages from the start: a checkout of
    dlapp has such a directory, named docker.

    Concurrent threads do the same twice, which is harmless.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module in site-packages; None if it is not there either."""
        # The standard library tries modules of other systems, and is complete without site-packages.
        if path is not None or name in sys.stdlib_module_names:
            return None
        found = PathFinder.find_spec(name)
        if found is not None and found.loader is not None:
            return found
        sys.path += [directory for directory in _site_packages() if directory not in sys.path]
        return PathFinder.find_spec(name)


def _site_packages() -> list[str]:
    """Return the site-packages of this Python; in a virtual environment its own, and the system's if enabled."""
    import os
    import site

    prefixes = [sys.prefix, sys.exec_prefix]
    environment = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
    try:
        with open(f"{environment}/pyvenv.cfg", encoding="utf-8", errors="replace") as file:
            lines = {tuple(word.strip().lower() for word in line.split("=", 1)) for line in file}
    except FileNotFoundError:
        pass
    else:
        prefixes = [environment, *(prefixes if ("include-system-site-packages", "true") in lines else ())]
        sys.prefix = sys.exec_prefix = environment  # which Debian's `site` uses to detect a virtual environment
    # If dlapp itself is installed in the user's own site-packages, its libraries are there, too.
    own = os.path.abspath(f"{__file__}/../../../..")
    found = [directory for directory in (own, *site.getsitepackages(prefixes)) if os.path.isdir(directory)]
    return found + [path for directory in found for path in _added(directory)]


def _added(directory: str) -> Iterator[str]:
    """Yield the directories that the ``.pth`` files of a site-packages add."""
    import os

    for name in sorted(os.listdir(directory)):
        if name.endswith(".pth") and not name.startswith("."):
            with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file]
            paths = [os.path.join(directory, line) for line in lines if line and not line.startswith(("#", "import"))]
            yield from (path for path in paths if os.path.isdir(path))


def add_late() -> None:
    """Make site-packages importable although this Python was started without them."""
    if sys.flags.no_site:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), LateSite)
