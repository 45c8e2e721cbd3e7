"""The zip that goes to the nodes, run as on a machine of another processor and libc: without any native part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlapp.cluster.yarn import bundle
from dlapp.errors import DlappError
from dlapp.hadoop.hdfs.checksums import installed_library
from tests.services.http.http_server import Answer, http_server

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the zip, and not each of them

PARTS = (
    "dlapp.am.yarn_main",
    "dlapp.task.main",
    "dlapp.task.steps",
    "dlapp.cluster.yarn.task_container",
    "dlapp.gpuid.stores.zookeeper",
    "dlapp.gpuid.stores.node_manager",
    "dlapp.gpuid.health.nvml",
    "dlapp.runtime.docker.payload",
    "dlapp.storage.hdfs.file_system",
    "dlapp.storage.commit.hdfs",
    "kazoo.client",
    "pynvml",
)
_TRIAL = """
import importlib, os, sys
stdlib = os.path.dirname(os.__file__)
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
for name, module in list(sys.modules.items()):
    place = getattr(module, "__file__", None) or ""
    if place and not place.startswith((sys.argv[1], stdlib, "<")):
        print(name, place)
"""


@pytest.mark.slow
def test_all_that_runs_on_a_node_is_in_the_zip_in_its_pure_python_form(travel_cache: Path) -> None:
    path, _ = bundle.packed(str(travel_cache))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", _TRIAL, path, *PARTS], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_IMPORTER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import dlapp.task.main, h11, yaml
for module in (dlapp, dlapp.task.main, h11, yaml):
    print(type(module.__loader__).__name__, module.__file__.removeprefix(sys.argv[1]))
data = dlapp.__loader__.get_data(sys.argv[1] + "/dlapp/diagnosis/rules.yaml")
try:
    dlapp.__loader__.get_data(sys.argv[1] + "/dlapp/task/nothing")
except FileNotFoundError as error:
    print(len(data) > 100, error)
os.truncate(sys.argv[1], 100_000)
try:
    import dlapp.task.steps
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_dlapp_and_its_libraries_are_loaded_by_the_importer_of_the_zip(own: Path) -> None:
    """dlapp, h11 and PyYAML come from the one entry of a zip with fewer than 10; so does its data; a file that is
    missing and a zip that was cut to 100,000 bytes are errors that name the path."""
    (path,) = own.iterdir()
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) < 10
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _IMPORTER, path], capture_output=True, text=True)
    names = ("dlapp", "dlapp/task/main", "h11", "yaml")
    files = [f"/{name}.pyc" if name == "dlapp/task/main" else f"/{name}/__init__.pyc" for name in names]
    lines = [f"ArchiveModules {file}" for file in files]
    lines += [f"True {path}/dlapp/task/nothing: not in the archive", f"{path} is truncated"]
    assert (done.stdout.splitlines(), done.stderr) == (lines, "")


_STARTED = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from dlapp.diagnosis.rules import load_rules
from dlapp.system.processes.helper import own_program
print(len(load_rules("/nowhere")) > 10)
print(subprocess.run([*own_program(), "nothing"], capture_output=True, text=True).stderr)
"""


def test_a_node_without_libraries_finds_causes_and_starts_processes_of_dlapp(travel_cache: Path) -> None:
    """A Python without site-packages reads the rules of causes, and a process of dlapp from the zip refuses a role."""
    path, _ = bundle.packed(str(travel_cache))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _STARTED, path], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("True\nError: dlapp 'nothing': what is there are ")


@pytest.mark.slow
def test_a_python_of_another_version_uses_the_sources(travel_cache: Path, tmp_path: Path) -> None:
    path, _ = bundle.packed(str(travel_cache))
    # As if compiled by another: its number is not the one that this Python wants.
    code = (
        "import runpy, sys, _frozen_importlib_external as external\nexternal.MAGIC_NUMBER = b'old!'\n"
        "sys.argv[:] = sys.argv[1:]\ntry:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n    import dlapp.task.steps\n"
        "    print(end.code, dlapp.task.steps.__file__, len(dlapp.task.main.__loader__.get_data(sys.argv[2])) > 100)\n"
    )
    sources = tmp_path / "dlapp-sources.zip"
    rules = sources / "dlapp" / "diagnosis" / "rules.yaml"
    argv = [sys.executable, "-I", "-S", "-W", "ignore", "-c", code, path, "task", str(rules)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"2 {sources}/dlapp/task/steps.py True\n"
    assert done.stderr == "Error: dlapp task: needs --home DIR, and perhaps --keep-fds N,N\n"


@pytest.mark.slow
def test_the_table_of_xid_errors_is_read_from_the_zip(travel_cache: Path) -> None:
    path, _ = bundle.packed(str(travel_cache))
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom dlapp.gpuid.health import xids\n"
        "print(xids.__file__.startswith(sys.argv[1]), len(xids.read_table()), xids.XidTable()[79].kind)\n"
    )
    argv = [sys.executable, "-I", "-S", "-W", "ignore", "-c", code, path]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True 172 node\n", "")


_FETCH = """
import os, sys
stdlib = os.path.dirname(os.__file__)
sys.path.insert(0, sys.argv[1])
from dlapp.storage.open import plan_fetch
plan_fetch([sys.argv[2]], sys.argv[3]).fetch()
for name, module in list(sys.modules.items()):
    place = getattr(module, "__file__", None) or ""
    if place and not place.startswith((sys.argv[1], stdlib, "<")):
        print(name, place)
"""


@pytest.mark.slow
def test_a_zip_for_web_input_has_its_packages_and_names_missing_ones(travel_cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")
    plain, _ = bundle.packed(str(travel_cache))
    path, _ = bundle.packed(str(travel_cache), remote=True)
    assert Path(plain).exists(), "the one has removed the other"
    assert bundle.packed(str(travel_cache), remote=True)[0] == path
    with http_server(lambda _: Answer(body=b"of the web")) as url:
        words = [sys.executable, "-I", "-S", "-W", "ignore", "-c", _FETCH, path, f"{url}/a.txt", str(tmp_path / "in")]
        done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "in/a.txt").read_bytes() == b"of the web"
    missing = bundle.missing_libraries(path, ["http", "https", "ftp", "s3", "sftp", "nothing"])
    assert sorted(missing) == ["s3", "sftp"]
    assert "s3fs" in missing["s3"]
    assert "paramiko" in missing["sftp"]


@pytest.fixture
def own(travel_cache: Path, tmp_path: Path) -> Path:
    """A directory of this test's alone with the zip in it."""
    path, _ = bundle.packed(str(travel_cache))
    shutil.copy(path, tmp_path)
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_zip_is_found_again_and_named_by_its_digest(own: Path) -> None:
    path, name = bundle.packed(str(own))
    assert [Path(path)] == list(own.iterdir())
    assert name == f"dlapp-{bundle.digest_of(Path(path).read_bytes())}.pyz"


@pytest.mark.slow
def test_two_threads_that_need_the_same_zip_make_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: bundle.packed(str(tmp_path)), range(2))
    assert first == second
    assert [Path(first[0])] == list(tmp_path.iterdir())


@pytest.mark.proves("bundle")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720])
def test_a_zip_in_a_directory_that_others_may_write_is_not_used(own: Path, mode: int) -> None:
    own.chmod(mode)
    with pytest.raises(DlappError, match="others may write there; remove it"):
        bundle.packed(str(own))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["the directory", "the zip"])
def test_a_zip_of_another_user_is_not_used(own: Path, what: str) -> None:
    (path,) = own.iterdir()
    os.chown(own if what == "the directory" else path, 20_002, -1)
    with pytest.raises(DlappError, match="belongs to uid 20002; remove it"):
        bundle.packed(str(own))


@pytest.mark.proves("bundle")
@pytest.mark.slow
def test_a_changed_zip_is_rebuilt(own: Path) -> None:
    (path,) = own.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    found, name = bundle.packed(str(own))
    assert name == f"dlapp-{bundle.digest_of(Path(found).read_bytes())}.pyz"
    assert len(list(own.iterdir())) == 1
    subprocess.run([sys.executable, "-I", "-S", "-c", _TRIAL, found, "dlapp.task.main"], check=True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_a_zip_path_that_is_not_a_regular_file_is_refused(own: Path, make: object) -> None:
    (path,) = own.iterdir()
    path.unlink()
    make(path)  # type: ignore[operator]
    with pytest.raises(DlappError, match="not a regular file; remove it"):
        bundle.packed(str(own))


def test_an_archive_of_another_processor_verifies_hdfs_with_the_library_of_the_nodes_python(
    travel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed_library() is None:
        pytest.skip("google-crc32c has no library here")
    monkeypatch.setattr(bundle, "installed_library", lambda: None)
    path, _ = bundle.packed(str(travel_cache))
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom dlapp.system.processes.late_site import add_late\n"
        "if sys.argv[2:]: add_late()\nfrom dlapp.hadoop.hdfs.checksums import has_crc32c\n"
        "print(has_crc32c(), 'google_crc32c' in sys.modules)"
    )
    for more, message in ((["late"], "True True\n"), ([], "False False\n")):
        words = [sys.executable, "-I", "-S", "-c", code, str(path), *more]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (message, "")


def test_the_library_that_verifies_hdfs_is_in_the_zip_and_in_its_sources(travel_cache: Path, tmp_path: Path) -> None:
    if installed_library() is None:
        pytest.skip("google-crc32c has no library here")
    path, _ = bundle.packed(str(travel_cache))
    with zipfile.ZipFile(path) as archive:
        (tmp_path / "sources.zip").write_bytes(archive.read("sources.zip"))
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom dlapp.hadoop.hdfs.checksums import Checksum, CRC32C\n"
        "print(Checksum(CRC32C, 512).of(b'123456789').hex(), 'google_crc32c' in sys.modules)"
    )
    for item in (path, tmp_path / "sources.zip"):
        # Without site-packages there is no other one.
        words = [sys.executable, "-I", "-S", "-c", code, str(item)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("e3069283 False\n", "")
