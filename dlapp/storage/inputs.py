"""One ``[from_hdfs]`` section: planned first, fetched later.

    planned = plan_input(section, into, index, total, hdfs)     reads; what cannot be fetched is known now
    planned.bring(into, fetch_files, temporary, progress)         fetches files, the content of archives, or a list

Between the two calls a task gets its GPUs and its workspace; missing input is detected before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dlapp.errors import DlappError, UsageError
from dlapp.locations import HdfsPlace, shown
from dlapp.storage.fetch_plan import FetchPlan, counter
from dlapp.storage.open import SourceFiles, plan_fetch
from dlapp.storage.tree import explaining, make_directories
from dlapp.storage.values import FileTotals, Progress, TreeNode
from dlapp.system.files import remove_tree
from dlapp.system.text import human_size
from dlapp.values.spec import FeedSpec, InputSpec

FetchFiles = Callable[[FetchPlan], FileTotals]
"""Executes a plan, through a cache or not."""


class PlannedInput(NamedTuple):
    """A section of input, and this container's files of it."""

    section: InputSpec
    plan: FetchPlan

    def fetch(self, into: str, fetch_files: FetchFiles, temporary: str, progress: Progress | None = None) -> FileTotals:
        """Fetch the input. Return the number of files and their total bytes.

        Args:
            into: absolute path of ``input_path``.
            fetch_files: executes the plan.
            temporary: path of a directory that does not exist, on the same file system, for archives to be unpacked.
            progress: called while unpacking; ``fetch_files`` reports the rest.

        Raises:
            see `FetchPlan.fetch` and `unpack_archive` for errors.
        """
        if self.section.as_list:
            return self._list(into)
        if not self.section.unpack:
            plan = self.plan.at(into)
            plan.check_free_names()
            make_directories(into)
            return fetch_files(plan)
        try:
            plan = self.plan.at(temporary)
            fetch_files(plan)
            return _unpack_all(plan, into, progress)
        finally:
            remove_tree(temporary)

    def _list(self, path: str) -> FileTotals:
        lines = "".join(f"{one}\n" for one in self.plan.listed()).encode(errors="surrogateescape")
        make_directories(os.path.dirname(path))
        with explaining(path, "written"), open(path, "xb") as file:
            file.write(lines)
        return FileTotals(1, len(lines))


def plan_input(
    section: InputSpec,
    into: str,
    index: int,
    total: int,
    *,
    hdfs: HdfsPlace | None = None,
    may_be_there: bool = False,
) -> PlannedInput:
    """Plan the fetch of a section; for a feed, check that the input exists.

    Args:
        section: the section of the input.
        into: absolute path of ``input_path``, as far as known.
        index, total: CONTAINER_INDEX and NUM_CONTAINERS.
        hdfs: the configured HDFS, if any.
        may_be_there: see `plan_fetch`.

    Raises:
        see `plan_fetch` for errors.
    """
    optional = section.optional
    if section.feed is not None:
        files = SourceFiles(section.sources, hdfs, may_be_missing=optional).find()
        check_feed(section.feed, [node for _, node in files])
        return PlannedInput(section, FetchPlan(into, ()))
    plan = plan_fetch(section.sources, into, hdfs=hdfs, may_be_there=may_be_there, may_be_missing=optional)
    if section.shard:
        plan = plan.shard(index, total)
    if section.as_list:
        plan.listed()
    return PlannedInput(section, plan)


def check_feed(feed: FeedSpec, nodes: Sequence[TreeNode]) -> None:
    """Refuse input that cannot be fed.

    Raises:
        UsageError: one is too large to be read as a whole.
    """
    largest = max(nodes, key=lambda node: node.size_bytes, default=None)
    if feed.format.reads_whole_files and largest is not None and largest.size_bytes > feed.buffer_bytes:
        raise UsageError(
            f"{shown(largest.source)} has {human_size(largest.size_bytes)}, and a file of {feed.format.value} is read "
            f"as a whole; set feed.buffer to more than that"
        )


def _unpack_all(plan: FetchPlan, into: str, progress: Progress | None) -> FileTotals:
    from dlapp.storage.archives.unpack import unpack_archive

    done = counter(plan.totals.size_bytes, progress)
    files = size = 0
    for path, target, source in _archives(plan, into):
        unpacked = unpack_archive(path, target, name=source, done=done)
        files, size = files + unpacked.files, size + unpacked.size_bytes
        with explaining(path, "removed"):
            os.unlink(path)  # its space is needed
    make_directories(into)
    return FileTotals(files, size)


def _archives(plan: FetchPlan, into: str) -> Iterator[tuple[str, str, str]]:
    """Return for each archive its temporary path, its destination directory, and its source."""
    for _, target in plan.targets:
        for node, path in target.places():
            if node.is_file:
                yield path, f"{into}{os.path.dirname(path)[len(plan.into) :]}", node.source
            elif node.link is not None:
                raise DlappError(f"{shown(node.source)} is a link, and no archive to unpack")
