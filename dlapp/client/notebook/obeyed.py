"""Files that programs of this machine run or obey because of their names or places, without that their user names them.

A program in a container could have written such a file. dlapp places none in a workspace: the user gets its name, and
reads it before copying it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase

OBEYED = {
    "Python": ("*.pth", "*.egg-link", "sitecustomize.py", "usercustomize.py", "pyvenv.cfg"),
    "pip and build tools": ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in"),
    "pytest and other runners": ("conftest.py", "pytest.ini", "tox.ini", "noxfile.py", "dodo.py", "fabfile.py"),
    "make": ("Makefile", "makefile", "GNUmakefile", "CMakeLists.txt", "meson.build", "SConstruct", "Snakefile"),
    "task runners": ("justfile", "Justfile", "Taskfile.y*ml", "Rakefile", "Procfile", "WORKSPACE", "BUILD.bazel"),
    "package managers": ("package.json", "package-lock.json", "yarn.lock", "Gemfile", "Cargo.toml", "build.rs"),
    "Docker": ("Dockerfile", "docker-compose*.y*ml", "compose*.y*ml", "Vagrantfile"),
    "editors": ("*.code-workspace", "*.sublime-project", "_vimrc"),
    "desktops": ("*.desktop",),
}
"""Patterns of names, by who obeys them. All names that begin with a dot are obeyed, too: .envrc, .git, .vscode."""
_PATTERNS = tuple(pattern for patterns in OBEYED.values() for pattern in patterns)

_PLACES = (("pyvenv.cfg",), ("HEAD", "objects", "refs"))
"""A directory with one of these sets of names is a Python environment, or a repository of git (also one with another
name than .git, which ``git status`` in it obeys)."""


def is_obeyed(path: str, has: Callable[[str], bool]) -> bool:
    """Return whether a program of this machine may run or obey a file because of its name or its place.

    Args:
        path: path of the file in the workspace.
        has: whether a path of the workspace exists, there or among the files to be placed.
    """
    parts = path.split("/")
    if any(part.startswith(".") for part in parts) or any(fnmatchcase(parts[-1], one) for one in _PATTERNS):
        return True
    if any(os.path.splitext(part)[0] in sys.stdlib_module_names for part in _modules(parts)):
        return True
    above = ["/".join(parts[:count]) for count in range(len(parts))]
    return any(all(has(os.path.join(one, name)) for name in names) for one in above for names in _PLACES)


def _modules(parts: list[str]) -> list[str]:
    """Return the names by which Python in the directory above would import a file instead of a module of its own."""
    if parts[-1] == "__init__.py" and len(parts) > 1:
        return [parts[-2]]
    return [parts[-1]] if parts[-1].endswith((".py", ".so", ".pyc")) else []
