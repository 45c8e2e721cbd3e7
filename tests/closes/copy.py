"""Copy the working tree, with a line in ``dlapp/__init__.py`` that loads `tests.closes.recorder`: `make test-closes`.

So every process that imports dlapp records who closed a descriptor: pytest, the commands, and the processes that dlapp
starts isolated (``python -I -S``), to which no variable of the environment reaches. dlapp itself has no hook for it.
Each finding is a file in the directory of reports, and the session of pytest fails if there is one (tests/conftest.py).

    python -m tests.closes.copy DIRECTORY
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDER = Path(__file__).with_name("recorder.py")
VARIABLE = "DLAPP_TEST_CLOSES"
"""Names the directory of reports; set where the tests of the copy run."""
_LINE = """\

if not hasattr(__import__("os").close, "__func__"):
    _recorder = {{"__name__": "closes"}}
    with open({recorder!r}) as _file:
        exec(compile(_file.read(), {recorder!r}, "exec", dont_inherit=True), _recorder)
    _recorder["install"]({reports!r})
    del _file, _recorder
"""


def record(package: Path, reports: Path) -> None:
    """Add the line to a copy of the package dlapp.

    Args:
        package: the directory of the copy.
        reports: where findings go; it is created, and every user may write there.
    """
    reports.mkdir(parents=True, exist_ok=True)
    reports.chmod(0o1777)
    with (package / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(_LINE.format(recorder=str(RECORDER), reports=str(reports)))


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """Copy what git tracks or does not ignore; of a copy, which git does not know, all but what was made there."""
    if not (root / ".git").exists():
        made = shutil.ignore_patterns(".*cache", ".venv*", ".hypothesis", "__pycache__")
        shutil.copytree(root, target, symlinks=True, ignore=made)
        return
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    for name in filter(None, listed.split(b"\0")):
        source, place = root / os.fsdecode(name), target / os.fsdecode(name)
        if os.path.lexists(source):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)


def main(target: Path) -> None:
    """Make the copy again, and add the line."""
    shutil.rmtree(target, ignore_errors=True)
    copy_tree(target)
    record(target / "dlapp", target / ".cache" / "closes")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
