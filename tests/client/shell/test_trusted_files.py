"""Directories that a shell in Docker may write to: none holds what dlapp trusts or runs on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.client.shell.trusted_paths import refuse_trusted_files_in
from dlapp.config import load_config
from dlapp.errors import UsageError


@pytest.mark.parametrize("link", [False, True])
def test_a_cache_that_holds_a_program_that_dlapp_runs_is_refused_by_its_key(tmp_path: Path, *, link: bool) -> None:
    """Name a program in a cache, by its path or by a link to the cache, and look at that cache and at another one."""
    cache, other = tmp_path / "caches" / "pip", tmp_path / "caches" / "other"
    (cache / "bin").mkdir(parents=True)
    other.mkdir()
    (tmp_path / "link").symlink_to(cache)
    program = (tmp_path / "link" if link else cache) / "bin" / "notify"
    program.touch()
    options = {"cluster": "local", "local.state_dir": str(tmp_path / "state"), "notify.command": str(program)}
    with Client(load_config(options)) as client:
        refuse_trusted_files_in("cache.other", str(other), client)
        problem = f"cache.pip {cache} holds what notify.command names ({program}): a shell in Docker could change it; "
        with pytest.raises(UsageError, match=re.escape(problem)):
            refuse_trusted_files_in("cache.pip", str(cache), client)
