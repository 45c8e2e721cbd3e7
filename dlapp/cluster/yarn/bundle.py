"""Archive with dlapp for the nodes: one zip of the installed modules, run as ``python3 -I -S dlapp.pyz am`` or
``task``.

It contains every module of dlapp and of the libraries that its ApplicationMaster and its tasks use, compiled for the
Python that made the zip, and not compressed: decompression took a fifth of a task's start. The modules are one entry of
the zip with an index, read by an importer of its own (`bundle_modules`). The sources are in a zip within the zip. A
Python of another version copies that to its working directory and uses it instead. Native modules are left out, so the
zip runs on any processor and libc; each has a pure Python form. One library is included, named by its processor: the
one that verifies data of HDFS's own clients. A node that cannot load it works without it.

Another zip, for applications whose input needs it, also has fsspec, with its libraries for ``http://``. It is separate
because each dlapp process on a node reads the index of its zip.

It is named by its digest, and locally also by a digest of its sources, so the same installation finds it again. It is
used only while it matches that digest, and is in a directory that no other user may write. It is never unpacked: a node
takes as long for one file as for the hundreds in it. It is not in PYTHONPATH, where a user's program would find our
libraries instead of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import MAGIC_NUMBER, find_spec, source_hash
from types import CodeType
from typing import NamedTuple

from dlapp.cluster.yarn import bundle_modules
from dlapp.cluster.yarn.bundle_modules import INDEX, Index
from dlapp.errors import DlappError
from dlapp.hadoop.hdfs.checksums import CARRIED, installed_library
from dlapp.system.files import (
    UntrustedFile,
    closing_fd,
    list_names,
    make_below_home,
    open_own_directory,
    read_file,
    walk,
    write_all,
)

NAME = "dlapp.pyz"
"""File name in a container's working directory."""
MIN_PYTHON = (3, 11)

_NEEDED = ("dlapp", "h11", "yaml")
_USED = (
    *("requests", "urllib3", "idna", "certifi", "charset_normalizer"),
    *("kazoo", "pynvml"),
)
"""Modules that dlapp loads on a node if they are installed here; they are optional."""
_REMOTE = (
    *("fsspec", "aiohttp", "aiohappyeyeballs", "aiosignal", "attr", "attrs", "frozenlist", "multidict", "propcache"),
    *("typing_extensions", "yarl"),
)
"""Modules that `dlapp.storage.remote` loads, as `_USED`."""
_DATA = ("certifi/cacert.pem", "dlapp/diagnosis/rules.yaml", "dlapp/gpuid/health/xids.csv")
_BESIDE_LIBRARY = "dlapp/hadoop/hdfs"
_READ = ("dlapp/context.py", "dlapp/feed.py", "dlapp/runtime/notebook_program.py", "dlapp/runtime/jax_cluster.py")
"""Modules whose sources payloads read."""
_FORMAT = 3
_SOURCES = "sources.zip"
_BLOB = "modules"
"""First entry of the zip, so that its offset is known: all code and data that the importer reads."""
_HEADER = 30
"""Bytes before the name of an entry. Source: APPNOTE.TXT, 4.3.7."""
_FILES = "certifi/"
"""Its table of CAs is found by `importlib.resources`, which knows only Python's own importers."""
_DIGITS = 32
"""Of a digest, as hexadecimal: 128 bits are enough for a name, and keep it short."""
MAX_BYTES = 64 << 20
_MAX_NAMES = 10_000
_SKIPPED = frozenset({"__pycache__", "tests", "testing"})
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_PACKING = threading.Lock()
"""Held by the thread that makes a zip: the temporary file is named by the process, and the filters of warnings are of
all threads. A submission makes one zip while its checks may make the other."""

_MAIN = f"""\
import os
import sys

if sys.version_info < {MIN_PYTHON!r}:
    sys.stderr.write(
        "dlapp: %s on %s is Python %s, and dlapp needs {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or later there: "
        "set yarn.python or yarn.python_archive\\n" % (sys.executable, os.uname()[1], sys.version.split()[0])
    )
    sys.exit(126)
import _frozen_importlib_external

if _frozen_importlib_external.MAGIC_NUMBER != {MAGIC_NUMBER!r}:
    sources = os.path.abspath("dlapp-{_SOURCES}")
    with open(sources, "wb") as file:
        file.write(__loader__.get_data(os.path.join(sys.path[0], "{_SOURCES}")))
    sys.path[0] = sources
from dlapp.__main__ import main
from dlapp.system.processes.fast_exit import run_and_exit

run_and_exit(lambda: main(sys.argv[1:]))
"""


_LOAD = b"\n\nload_package(globals())\n"

# fsspec imports what a scheme needs by name: only a trial shows whether it is installed.
_OPEN_SCHEMES = """\
import json, sys
sys.path.insert(0, sys.argv[1])
import dlapp
missing = {}
for scheme in sys.argv[2:]:
    try:
        from fsspec import get_filesystem_class
        get_filesystem_class(scheme)
    except ImportError as error:
        missing[scheme] = str(error)
    except ValueError:
        pass
print(json.dumps(missing))
"""


class BundleFile(NamedTuple):
    """File of the zip: its name there, and its source path."""

    name: str
    path: str


def sources(*, remote: bool = False) -> list[BundleFile]:
    """Return the files of the zip except its prefix, sorted by name.

    Args:
        remote: include fsspec.

    Raises:
        DlappError: a library is not installed, or not as files.
    """
    found: dict[str, BundleFile] = {}
    for module in (*_NEEDED, *_USED, *(_REMOTE if remote else ())):
        spec = _spec_of(module)
        if spec is None or spec.origin is None:
            if module in _NEEDED:
                install = "pip install /path/to/the/clone"
                raise DlappError(f"{module} is not installed here, and every node needs it: {install}")
            continue
        for one in _files_of(module, spec):
            found[one.name] = one
    if (library := installed_library()) is not None:
        name = f"{_BESIDE_LIBRARY}/{CARRIED}"
        found[name] = BundleFile(name, library)
    return [found[name] for name in sorted(found)]


def _spec_of(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except ModuleNotFoundError:  # its parent is missing
        return None


def _files_of(module: str, spec: ModuleSpec) -> Iterator[BundleFile]:
    base = module.replace(".", "/")
    if not spec.submodule_search_locations:
        yield BundleFile(f"{base}.py", str(spec.origin))
        return
    root = spec.submodule_search_locations[0]
    for directory, below, names in walk(root):
        below[:] = [name for name in below if name not in _SKIPPED]
        inside = base + directory[len(root) :].replace(os.sep, "/")
        for name in names:
            if name.endswith((".py", ".sh")) or f"{inside}/{name}" in _DATA:
                yield BundleFile(f"{inside}/{name}", os.path.join(directory, name))


def packed(directory: str, *, remote: bool = False) -> tuple[str, str]:
    """Return the zip of the installed modules, made in ``directory`` if it is missing.

    Args:
        directory: directory of the zips.
        remote: include fsspec.

    Returns:
        Its path, and its name on the cluster: ``dlapp-<digest>.pyz``.

    Raises:
        DlappError: a library is missing, the directory is not writable, or others may write there.
    """
    files, kind = sources(remote=remote), "remote-" if remote else "dlapp-"
    beginning = f"{kind}{_fingerprint(files)}-"
    try:
        make_below_home(directory, 0o700)
        with _PACKING, closing_fd(open_own_directory(f"{directory}/.", path=directory)) as fd:
            for name in list_names(fd, limit=_MAX_NAMES):
                if name.startswith(beginning) and name.endswith(".pyz"):
                    if name == f"{beginning}{(digest := _digest_in(fd, name))}.pyz":
                        return os.path.join(directory, name), f"dlapp-{digest}.pyz"
                    os.unlink(name, dir_fd=fd)  # damaged, for example by a full disk
            data = _zip(files)  # in memory: the process may end meanwhile, and would leave a part of a file
            digest = digest_of(data)
            temporary, name = f"{beginning}{os.getpid()}", f"{beginning}{digest}.pyz"
            try:
                with closing_fd(os.open(temporary, _MAKE, 0o600, dir_fd=fd)) as temporary_fd:
                    write_all(temporary_fd, data)
                os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=fd)
            for old in list_names(fd, limit=_MAX_NAMES):
                # Another process may be making the same file.
                if old.startswith(kind) and not old.startswith(beginning):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(old, dir_fd=fd)
    except UntrustedFile as error:
        raise DlappError(f"{error}; remove it") from error
    except OSError as error:
        raise DlappError(f"{error.filename or directory}: {error.strerror}") from error
    return os.path.join(directory, name), f"dlapp-{digest}.pyz"


def missing_libraries(path: str, schemes: Sequence[str]) -> dict[str, str]:
    """Return the schemes whose input a node cannot read with only a zip, each with the missing package.

    Args:
        path: path of a zip with fsspec.
        schemes: schemes of locations. One that fsspec does not know is not missing.

    Raises:
        DlappError: it cannot be tried.
    """
    import json
    import subprocess

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _OPEN_SCHEMES, path, *schemes], capture_output=True, text=True
    )
    if done.returncode:
        raise DlappError(f"fsspec does not run from {path}: {done.stderr.strip()[-1000:]}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def digest_of(data: bytes) -> str:
    """Return the digest in an archive's name: half of SHA-256, for which processors have instructions."""
    import hashlib

    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _digest_in(dir_fd: int, name: str) -> str:
    return digest_of(read_file(name, dir_fd=dir_fd, owners={os.geteuid()}, max_bytes=MAX_BYTES))


def _fingerprint(files: list[BundleFile]) -> str:
    """Return a digest of all contents, and of the compiling Python's version."""
    import hashlib

    digest = hashlib.sha256()
    digest.update(f"{_FORMAT} {sys.implementation.cache_tag}\n{_MAIN}".encode())
    for one in files:
        with open(one.path, "rb") as file:
            data = file.read()
        digest.update(f"{one.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:_DIGITS]


def _zip(files: list[BundleFile]) -> bytes:
    import io
    import marshal
    import warnings
    import zipfile

    made, held, blob = io.BytesIO(), io.BytesIO(), bytearray()
    index = Index({}, {})
    with (
        warnings.catch_warnings(),
        zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive,
        zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as sources,
    ):
        # Compiler warnings about libraries do not concern the user.
        warnings.simplefilter("ignore")

        def add(to: zipfile.ZipFile, name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.external_attr = 0o644 << 16
            entry.compress_type = to.compression
            to.writestr(entry, data)

        def append(data: bytes) -> tuple[int, int]:
            offset = _HEADER + len(_BLOB) + len(blob)
            blob.extend(data)
            return offset, len(data)

        def add_module(name: str, source: bytes) -> None:
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            index.modules[module] = (f"{name}c", *append(marshal.dumps(_code(name, source))))

        others = []
        for one in files:
            with open(one.path, "rb") as file:
                data = file.read()
            add(sources, one.name, data)
            if one.name.startswith(_FILES):
                others.append(
                    (f"{one.name}c", _compiled(one.name, data)) if one.name.endswith(".py") else (one.name, data)
                )
                continue
            if one.name.endswith(".py"):
                add_module(one.name, data)
            if one.name in _READ or not one.name.endswith(".py"):
                index.data[one.name] = append(data)
        add(archive, _BLOB, bytes(blob))
        # Source only: an older Python must be able to read it and report the problem.
        add(archive, "__main__.py", _MAIN.encode())
        add(archive, INDEX, marshal.dumps(tuple(index)))
        with open(bundle_modules.__file__, "rb") as file:
            add(archive, "dlapp/__init__.pyc", _compiled("dlapp/__init__.py", file.read() + _LOAD))
        for name, data in others:
            add(archive, name, data)
        sources.close()
        add(archive, _SOURCES, held.getvalue())
    return made.getvalue()


def _code(name: str, source: bytes) -> CodeType:
    return compile(source, f"<dlapp>/{name}", "exec", dont_inherit=True, optimize=0)


def _compiled(name: str, source: bytes) -> bytes:
    """Return a module compiled in the form that is never compared with its source (PEP 552, unchecked)."""
    import marshal

    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + marshal.dumps(_code(name, source))
