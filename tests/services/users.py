"""Needs of tests with several users: to be root, an interpreter and a directory that are everybody's."""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.services.polling import wait_until

ONLY_ROOT = pytest.mark.root
"""For tests that run as two users."""

_MADE = ExitStack()


def _is_removed(top: Path) -> bool:
    try:
        shutil.rmtree(top)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
    return not top.exists()


@contextmanager
def place_for_everybody(what: str, mode: int = 0o755) -> Iterator[Path]:
    """A directory that every user may look into, as pytest's own is not."""
    top = Path(tempfile.mkdtemp(prefix=f"dlapp-{what}-"))
    top.chmod(mode)
    try:
        yield top
    finally:
        # A runner that ends may still write what it ends with.
        wait_until(lambda: _is_removed(top), what=f"nobody writes in {top}")


def seeing_users(place: Path, *uids: int, gid: int) -> list[str]:
    """Return the beginning of a command that sees users in passwd who are in none: a mount namespace of its own.

    Root's processes become only users who have an entry there.
    """
    entries = place / "passwd"
    users = "".join(f"u{uid}:x:{uid}:{gid}::{place}/missing:/bin/sh\n" for uid in uids)
    entries.write_text(Path("/etc/passwd").read_text() + users)
    namespace = ["unshare", "--mount"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("root may not make mount namespaces here")
    return [*namespace, "sh", "-c", f'mount --bind {entries} /etc/passwd && exec "$@"', "sh"]


@functools.cache
def interpreter_for_everybody() -> Path:
    """The tests' own interpreter, where other users may run it; else one made of the system's Python, once per process.

    A Python of pyenv or conda often lies in a home that is closed to others. `remove_interpreter` removes it.
    """
    own = Path(sys.executable)
    if _open_to_all(own.resolve()) and _open_to_all(Path(os.__file__)):
        return own
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if system is None or not _open_to_all(Path(system).resolve()) or _version(system) != version:
        pytest.skip(f"no Python {version} that other users may run: {own.resolve()} is closed to them")
    made = _MADE.enter_context(place_for_everybody("python")) / "python"
    subprocess.run([system, "-m", "venv", "--without-pip", made], check=True, stdin=subprocess.DEVNULL)
    packages = made / "lib" / f"python{version}" / "site-packages"
    found = importlib.util.find_spec("click")
    assert found is not None
    assert found.origin is not None
    root = Path(__file__).resolve().parents[2]
    (packages / "tests.pth").write_text(f"{Path(found.origin).parents[1]}\n{root}\n")
    return made / "bin" / "python"


def remove_interpreter() -> None:
    """Remove the interpreter that `interpreter_for_everybody` made, if it made one."""
    _MADE.close()
    interpreter_for_everybody.cache_clear()


def _open_to_all(path: Path) -> bool:
    return all(
        item.stat().st_mode & stat.S_IXOTH for item in (path, *path.parents) if item != path or item.suffix == ""
    )


def _version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
