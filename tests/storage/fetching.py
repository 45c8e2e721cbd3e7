"""Fetching in one step, as a task does it in two."""

from __future__ import annotations

from collections.abc import Sequence

from dlapp.locations import HdfsPlace
from dlapp.storage.api import FileSystem
from dlapp.storage.fetch_plan import plan_entries
from dlapp.storage.open import plan_fetch
from dlapp.storage.values import FileTotals, MatchedEntry, Progress


def fetch_sources(
    sources: Sequence[str], into: str, *, hdfs: HdfsPlace | None = None, progress: Progress | None = None
) -> FileTotals:
    """Fetch all that ``sources`` match into the directory ``into``."""
    return plan_fetch(sources, into, hdfs=hdfs).fetch(progress)


def fetch_entries(
    system: FileSystem, entries: Sequence[MatchedEntry], into: str, *, progress: Progress | None = None
) -> FileTotals:
    """Fetch entries of one file system into the directory ``into``."""
    return plan_entries([(system, entry) for entry in entries], into).fetch(progress)
