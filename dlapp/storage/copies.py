"""Copy of a stored output: for a sweep that continues another one."""

from __future__ import annotations

import tempfile

from dlapp.errors import NotFound
from dlapp.locations import FILE, HdfsPlace, local_path, shown
from dlapp.storage.glob import literal_pattern
from dlapp.storage.open import open_output
from dlapp.storage.values import FetchTarget


def copy_output(source: str, target: str, hdfs: HdfsPlace | None) -> None:
    """Copy a directory or a file to a path that must be empty, or have leftovers of an interrupted copy.

    Local files are copied like stored output (`OutputFileSystem.store`); files on HDFS go through this machine's disk.

    Raises:
        NotFound: the source does not exist.
        DlappError: it cannot be read or stored.
    """
    files = open_output(target, hdfs)
    if source.startswith(FILE):
        files.store(local_path(source), target)
        return
    above = open_output(source, hdfs)
    with tempfile.TemporaryDirectory(prefix="dlapp-copy-") as scratch:
        found = above.matches(literal_pattern(source))
        if not found:
            raise NotFound(f"{shown(source)}: nothing is there")
        copy = f"{scratch}/copy"
        above.fetch([FetchTarget(found[0], copy, above.tree(found[0]))], lambda _: None)
        files.store(copy, target, move=True)
