"""Test whether a container's task is alive, as the lock on its log says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.runtime.docker.labels import is_task_dead
from dlapp.system import locks


@pytest.mark.parametrize("is_reader", [True, False], ids=["reader", "task"])
def test_a_read_lock_on_a_tasks_log_does_not_keep_its_container(tmp_path: Path, is_reader: bool) -> None:
    log = tmp_path / "dlapp.log"
    log.touch(0o644)
    fd = os.open(log, os.O_RDONLY if is_reader else os.O_RDWR)
    try:
        assert locks.try_lock(fd, shared=is_reader)
        assert is_task_dead(str(tmp_path)) is is_reader
    finally:
        os.close(fd)
