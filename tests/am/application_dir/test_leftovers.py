"""Test what is removed of containers on one machine whose tasks were killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.values.ids import ContainerId


def test_leftovers_of_a_killed_task_are_removed_except_its_logs(tmp_path: Path) -> None:
    container = ContainerId.from_text("container_1700000000000_0001_01_000002")
    home = tmp_path / "containers" / str(container)
    for name in ("workspace", "trials/3_1/workspace", "board/tmp", "home", "tmp", "run", "python"):
        (home / name / "inner").mkdir(parents=True)
    (home / "stdout").write_text("printed")
    # As a task made it that was killed (dlapp.system.short_tmpdir); whole when it gets its name, as others look for
    # such leftovers, too.
    short, made = Path(f"/tmp/dlapp-{os.urandom(5).hex()}"), Path(tempfile.mkdtemp(dir="/tmp"))
    (made / "tmp").symlink_to(home / "tmp")
    made.rename(short)
    LocalApplicationDir(str(tmp_path)).clear_leftovers([container])
    assert os.listdir(home) == ["stdout"]
    assert not os.path.lexists(short)
