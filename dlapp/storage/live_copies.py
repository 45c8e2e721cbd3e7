"""Live copies of an output while its payload runs: in ``<target>.live/<application>.live``, in a directory for each
container if there are several.

Each file is complete: it is written under a temporary name and renamed. It is a snapshot of its source, perhaps in the
middle of a write of the payload. Files that the payload removes stay. Only the user can read the copies; they are
removed when the output is committed, and kept if it is not.

Others may be able to rename entries beside the target, and rename a directory of the user to ``<target>.live``. So the
entries to remove are in a directory that is exclusively the user's, under a name that nothing else gets: that of
checkpoints is ``<application>``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection

from dlapp.errors import DlappError, Unreachable
from dlapp.locations import shown
from dlapp.storage.api import OutputFileSystem
from dlapp.storage.tree import OpenTree, nodes_to_store
from dlapp.storage.values import DiskFull
from dlapp.system.files import UntrustedFile, closing_fd, is_plain_path
from dlapp.values.ids import ApplicationId

MAX_FILES = 100_000
_SUFFIX = ".live"


def remove_live(files: OutputFileSystem, target: str, application_id: ApplicationId) -> None:
    """Remove the live copies of an output. Raises UntrustedFile, DlappError, OSError."""
    files.remove_in_own(f"{target.rstrip('/')}{_SUFFIX}", live_name(application_id))


def live_name(application_id: ApplicationId) -> str:
    """Return the name of an application's copies in the directory of all live copies of an output."""
    return f"{application_id}{_SUFFIX}"


class LiveCopies:
    """Live copies of one directory; not thread-safe.

    Args:
        files: the file system of the copies.
        target: location of the output.
        inner: path below the directory of all live copies of that output, such as `live_name`.
        note: called with a line on each file that cannot be copied.
    """

    def __init__(self, files: OutputFileSystem, target: str, inner: str, note: Callable[[str], None]) -> None:
        self._files, self._top, self._inner, self._note = files, f"{target.rstrip('/')}{_SUFFIX}", inner, note
        self._copied: dict[str, tuple[int, int]] = {}
        self._made: set[str] = set()
        self._noted: set[str] = set()

    def abort_calls(self, threads: Collection[int]) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """See `OutputFileSystem.abort_calls`."""
        return self._files.abort_calls(threads)

    def copy(self, directory: str, is_over: Callable[[], bool]) -> int:
        """Copy the new and changed files of a payload's output until ``is_over`` returns True; return their number.

        Raises:
            Unreachable, DiskFull: the remaining files are not copied now.
            UntrustedFile: others can write to the directory of the copies.
            DlappError: the directory cannot be copied.
        """
        count = 0
        with contextlib.closing(OpenTree(directory)) as tree:
            # Links are skipped, since their targets are copied at their own paths.
            nodes = [one for one in nodes_to_store(tree, note=self._note_once, most=MAX_FILES).nodes if one.is_file]
            for node in nodes:
                if is_over():
                    break
                if self._copied.get(node.name) == (node.size_bytes, node.mtime_ns):
                    continue
                if not is_plain_path(node.name):
                    self._note_once(f"{shown(node.source)} has no live copy: its name is not possible there")
                    continue
                try:
                    with closing_fd(tree.open(node.source)) as fd:
                        now = os.fstat(fd)
                        self._make_directories(node.name.rpartition("/")[0])
                        mode = stat.S_IMODE(node.mode) & 0o700
                        self._files.replace_file(
                            fd, now.st_size, f"{self._top}/{self._inner}/{node.name}", mode | 0o400
                        )
                        self._copied[node.name] = now.st_size, now.st_mtime_ns
                        count += 1
                except (Unreachable, DiskFull, UntrustedFile):
                    raise
                except FileNotFoundError:
                    continue  # it was renamed or removed meanwhile
                except (DlappError, OSError) as error:
                    self._note_once(f"{shown(node.source)} has no live copy: {error}")
        return count

    def _make_directories(self, name: str) -> None:
        """Create the parent directories of a file, from ``<target>.live`` on."""
        at = self._top
        for part in ("", *self._inner.split("/"), *filter(None, name.split("/"))):
            at = f"{at}/{part}".rstrip("/")
            if at not in self._made:
                self._files.make_own_directory(at)
                self._made.add(at)

    def _note_once(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < 1000:
            self._noted.add(text)
            self._note(text)
