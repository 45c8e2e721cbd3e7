"""Site-packages that come late: found when needed, never for what the standard library looks for in vain."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.system.processes.spawn import PROGRAM

PACKAGES = "import sys; sys.path.append({0!r}); from dlapp.system.processes.late_site import add_late; add_late()\n"

SYSTEM = shutil.which("python{}.{}".format(*sys.version_info), path="/usr/bin")
"""The system's own Python, if it is of this version; Debian's has other directories."""


def trial(code: str, *options: str) -> str:
    """Run code in a Python that was started with these options and has dlapp."""
    begin = PACKAGES.format(PROGRAM[-1].removesuffix("/dlapp/__main__.py"))
    command = [sys.executable, "-I", *options, "-c", begin + code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_library_is_found_without_site_packages_at_the_start() -> None:
    assert trial("print('site' in sys.modules); import click; print(click.__name__)", "-S") == "False\nclick"


def test_a_missing_library_is_not_found() -> None:
    code = "\ntry: import no_such_library\nexcept ModuleNotFoundError as error: print(error.name)"
    assert trial(code, "-S") == "no_such_library"


def test_missing_standard_modules_load_no_site_packages() -> None:
    # shutil tries the modules of another system.
    assert trial("import shutil, dlapp.task.steps; print('site' in sys.modules)", "-S") == "False"


def test_libraries_of_several_threads_are_all_found() -> None:
    code = """
import threading
found = []
def load(name):
    found.append(__import__(name).__name__)
threads = [threading.Thread(target=load, args=(name,)) for name in ("click", "yaml", "kazoo", "h11")]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*sorted(found))
"""
    assert trial(code, "-S") == "click h11 kazoo yaml"


@pytest.mark.parametrize("options", [(), ("-S",)])
def test_libraries_are_loaded_from_dlapps_environment(options: tuple[str, ...]) -> None:
    assert trial("import click; print(click.__file__)", *options) == trial("import click; print(click.__file__)")


def test_a_directory_beside_dlapp_does_not_hide_a_library_of_its_name() -> None:
    # In a checkout there is one with images.
    code = "import docker.utils; print(docker.utils.parse_repository_tag('a:b'))"
    assert trial(code, "-S") == "('a', 'b')"


@pytest.mark.parametrize("python", [item for item in (sys.executable, SYSTEM) if item])
def test_paths_of_a_pth_file_are_added_and_its_code_is_not_run(python: str, tmp_path: Path) -> None:
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "made"], check=True)
    (packages,) = (tmp_path / "made").glob("lib/python*/site-packages")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "added_library.py").touch()
    (packages / "some.pth").write_text(f"# a comment\nimport sys; sys.exit('run')\n{tmp_path}/more\n{tmp_path}/gone\n")
    begin = PACKAGES.format(PROGRAM[-1].removesuffix("/dlapp/__main__.py"))
    shown = "import sys, added_library; print(sys.prefix)"
    command = [str(tmp_path / "made" / "bin" / "python"), "-I", "-S", "-c", begin + shown]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/made\n", "")
