"""Event files of applications: copied to this machine, and updated as they grow.

Only TensorBoard's event files are copied, those with ``tfevents`` in their names. They come from

    the target of each output that is committed, or where that of a failed application is kept
    the workspaces of containers that run: on this machine by their path, elsewhere by a stream of their task
    the newest whole checkpoint, where there is no such stream, as from another machine than that of the submission

Each application has a directory below `RUNS`. A copy is only appended to: TensorBoard keeps a file open and continues
reading. A file that became shorter, or has another beginning by its size alone, counts as a new file and replaces the
copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.locations import FILE, file_location, local_path, remote_scheme
from dlapp.net.streams import StreamRefused
from dlapp.system.files import is_inside, is_plain_path, remove_tree
from dlapp.system.text import human_size
from dlapp.tensorboard import EVENTS, MAX_FILES, MAX_LINE_BYTES
from dlapp.values.access import STREAM_EVENT_FILES
from dlapp.values.messages import Phase
from dlapp.values.serialization import parse_json

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.locations import HdfsPlace
    from dlapp.storage.checkpoints.manifest import ManifestEntry
    from dlapp.storage.values import TreeNode
    from dlapp.values.ids import ApplicationId
    from dlapp.values.report import ApplicationView
    from dlapp.values.spec import AppSpec, Submission

RUNS = "runs"
MAX_BYTES = 8 << 30
"""Maximum size of all event files together. Further files, also those above `MAX_FILES`, are omitted with a message."""
_COPY = 1 << 20
_STREAM_S = 60.0


class _EventSource(NamedTuple):
    """Source of an application's event files: a directory, or a place of checkpoints.

    Args:
        name: the name of their directory in that of the application; empty for the latter itself.
        location: the location of the directory, or the place of the checkpoints; with ``container`` a path in the
            workspace.
        is_checkpoint: whether it is a place of checkpoints.
        container: CONTAINER_INDEX of a container that runs on another host; None if there is none.
        is_growing: whether the directory may change, so that an unreadable file may become readable.
    """

    name: str
    location: str
    is_checkpoint: bool = False
    container: int | None = None
    is_growing: bool = False


class BoardFiles:
    """Event files of applications, in a directory of this machine.

    Args:
        client: finds the applications.
        applications: their ids.
        directory: for the files; exclusive to the caller.
        note: called once for each file that cannot be read.
    """

    def __init__(
        self, client: Client, applications: Sequence[ApplicationId], directory: str, note: Callable[[str], None]
    ) -> None:
        self._client, self._note = client, note
        self._runs, self._incoming = os.path.join(directory, RUNS), os.path.join(directory, "incoming")
        os.mkdir(self._runs, 0o700)
        self._unfinished = list(applications)
        self._submissions: dict[ApplicationId, Submission | None] = {}
        self._hdfs_by_application: dict[ApplicationId, HdfsPlace | None] = {}
        self._own: dict[ApplicationId, bool] = {}
        self._sizes: dict[tuple[str, str], tuple[int, int]] = {}  # of the local files
        self._pending_sizes: dict[tuple[str, str], tuple[int, int]] = {}  # of the files being copied
        self._files = self._bytes = 0
        self._checkpoints: dict[str, int] = {}
        self._without_streams: set[ApplicationId] = set()
        self._noted: set[str] = set()

    @property
    def directory(self) -> str:
        """Return the directory that TensorBoard reads."""
        return self._runs

    def refresh(self) -> bool:
        """Copy new content. Return whether an application may write more."""
        for one in list(self._unfinished):
            try:
                view = self._client.status(one)
                is_read = self._refresh_one(one, view)
            except (DlappError, OSError) as error:
                self._note_once(f"{one}: {error}")
                if isinstance(error, NotFound):
                    self._unfinished.remove(one)
                continue
            if view.state.ended and is_read:
                self._unfinished.remove(one)
        return bool(self._unfinished)

    def _refresh_one(self, one: ApplicationId, view: ApplicationView) -> bool:
        """Copy new content of an application. Return whether everything could be read."""
        if one not in self._hdfs_by_application:  # on YARN this asks the ResourceManager
            spec = self._spec_of(one)
            self._hdfs_by_application[one] = self._client.hdfs_of(one, None if spec is None else spec.username)
        hdfs = self._hdfs_by_application[one]
        run, is_read = os.path.join(self._runs, _run_name(one, view)), True
        for source in self._sources(one, view):
            if source.name and not is_plain_path(source.name):
                self._note_once(f"{one}: {source.name[:200]!r} is no name that an output or a role can have")
                continue
            if source.container is None and remote_scheme(source.location) and not self._is_own(one):
                # Whoever wrote the view would choose the host, port and path of requests in the reader's name.
                where = f"only files and the cluster's HDFS are read, not {source.location[:200]!r}"
                self._note_once(f"{one}: of another user's application {where}")
                continue
            into = os.path.join(run, source.name) if source.name else run
            try:
                if source.container is not None:
                    self._copy_stream(one, source.container, source.location, into)
                elif source.is_checkpoint:
                    self._copy_checkpoint(source.location, into, hdfs)
                else:
                    self._copy_directory(source.location, into, hdfs)
            except NotFound:
                continue  # nothing exists yet
            except (DlappError, OSError) as error:
                if source.is_growing and source.container is None:
                    continue
                self._note_once(f"{one}: {error}")
                is_read = is_read and not isinstance(error, (Unreachable, OSError))
            else:
                self._sizes |= self._pending_sizes
            finally:
                self._pending_sizes.clear()
                self._files, self._bytes = len(self._sizes), sum(one for one, _ in self._sizes.values())
                with contextlib.suppress(DlappError):
                    remove_tree(self._incoming)
        return is_read

    def _sources(self, one: ApplicationId, view: ApplicationView) -> Iterator[_EventSource]:
        found = False
        for output in view.outputs:
            for location in filter(None, (output.target if output.committed else None, output.partial)):
                found = True
                yield _EventSource(output.name, location)
        spec = self._spec_of(one)
        if spec is None or view.state.ended:
            if spec is not None and not found:
                yield from self._checkpoint_sources(one, spec)
            return
        paths = {output.name: output.output_path for output in spec.outputs}
        if spec.tensorboard and not any(is_inside(f"/{spec.tensorboard}", f"/{path}") for path in paths.values()):
            paths["tensorboard"] = spec.tensorboard
        for container in view.containers:
            if container.phase is not Phase.RUNNING:
                continue
            part = f"{container.role}_{container.role_index}" if len(view.containers) > 1 else ""
            for name, path in paths.items():
                named = "/".join(filter(None, (name, part)))
                if container.log_url.startswith(FILE):
                    location = file_location(os.path.join(local_path(container.log_url), "workspace", path))
                    yield _EventSource(named, location, is_growing=True)
                elif one not in self._without_streams:
                    yield _EventSource(named, path, container=container.index, is_growing=True)
        if one in self._without_streams or not (paths and view.containers):
            yield from self._checkpoint_sources(one, spec)

    def _checkpoint_sources(self, one: ApplicationId, spec: AppSpec) -> Iterator[_EventSource]:
        if spec.checkpoint is None:
            return
        submission = self._submission_of(one)
        of = (submission.checkpoints_of if submission is not None else None) or one
        place = f"{spec.checkpoint.target.rstrip('/')}/{of}"
        if not spec.checkpoint.is_of_every_index:
            yield _EventSource("checkpoint", place, is_checkpoint=True)
            return
        for index in range(spec.containers):
            yield _EventSource(f"checkpoint/{index}", f"{place}/{index}", is_checkpoint=True)

    def _is_own(self, one: ApplicationId) -> bool:
        if one not in self._own:
            self._own[one] = self._client.is_own(one)
        return self._own[one]

    def _spec_of(self, one: ApplicationId) -> AppSpec | None:
        submission = self._submission_of(one)
        return None if submission is None else submission.spec

    def _submission_of(self, one: ApplicationId) -> Submission | None:
        """Return what was submitted; None if the caller may not read it, or it was removed."""
        if one not in self._submissions:
            try:
                self._submissions[one] = self._client.submission(one)
            except DlappError:
                self._submissions[one] = None
        return self._submissions[one]

    def _copy_directory(self, location: str, into: str, hdfs: HdfsPlace | None) -> None:
        from dlapp.storage.glob import literal_pattern
        from dlapp.storage.open import plan_fetch

        plan = plan_fetch([literal_pattern(location)], self._incoming, hdfs=hdfs)
        landings = []
        for system, one in plan.targets:
            selected = [node for node in one.nodes if self._is_new(location, node)]
            names = {node.name for node in selected}
            above = {name[:at] for name in names for at, char in enumerate(name) if char == "/"}
            kept = [node for node in one.nodes if node.name in (above | {""} if node.is_dir else names)]
            if selected:
                landings.append((system, one._replace(nodes=kept)))
        if not landings:
            return
        plan._replace(targets=tuple(landings)).fetch()
        for _, one in landings:
            for node, path in one.places():
                if node.is_file:
                    self._update_copy(path, os.path.join(into, node.name or os.path.basename(path)))

    def _is_new(self, location: str, node: TreeNode) -> bool:
        if not node.is_file or EVENTS not in os.path.basename(node.name or node.source):
            return False
        if location.startswith(FILE) and os.path.islink(node.source):
            return False  # input follows links; here a link may point to files that are not the program's
        return self._should_copy(location, node.name, (node.size_bytes, node.mtime_ns))

    def _should_copy(self, location: str, name: str, size: tuple[int, int]) -> bool:
        """Return whether to copy a file: it is new or changed, and there is space. ``size`` also has its modification
        time.
        """
        if (known := self._sizes.get((location, name))) == size:
            return False
        more_bytes = size[0] - (known[0] if known is not None else 0)
        if self._files + (known is None) > MAX_FILES or self._bytes + more_bytes > MAX_BYTES:
            self._note_once(f"more than {MAX_FILES} event files, or {human_size(MAX_BYTES)}, are left out")
            return False
        self._files, self._bytes = self._files + (known is None), self._bytes + more_bytes
        self._pending_sizes[location, name] = size
        return True

    def _copy_stream(self, one: ApplicationId, index: int, path: str, into: str) -> None:
        """Copy new content of event files of a container on another host (`dlapp.task.streams.event_files`)."""
        try:
            connection = self._client.stream_opener(one)(index, STREAM_EVENT_FILES, {"path": path})
        except StreamRefused:
            return  # the directory does not exist yet, or the program has ended
        except (Denied, Unreachable) as error:
            self._without_streams.add(one)
            self._note_once(f"{one}: only its checkpoints are shown while it runs: {error}")
            return
        with connection, connection.makefile("rb") as stream:
            connection.settimeout(_STREAM_S)
            selected = []
            for name, size in _checked_sizes(stream.readline(MAX_LINE_BYTES)):
                target = os.path.join(into, name)
                has = os.path.getsize(target) if os.path.exists(target) else 0
                if has != size and self._should_copy(f"{one}/{index}/{path}", name, (size, 0)):
                    selected.append((name, has if has < size else 0, size))
            connection.sendall(json.dumps(selected).encode() + b"\n")
            for name, offset, size in selected:
                self._receive(stream, os.path.join(into, name), offset, size)

    def _receive(self, stream: BinaryIO, path: str, offset: int, size: int) -> None:
        """Append the next bytes of a stream to a copy; an offset of 0 replaces the copy."""
        self._check_path(path)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        os.makedirs(self._incoming, 0o700, exist_ok=True)
        new = os.path.join(self._incoming, "file")
        with open(path if offset else new, "ab" if offset else "wb", opener=_open_no_link) as file:
            while offset < size:
                if not (data := stream.read(min(_COPY, size - offset))):
                    raise Unreachable("the stream of event files ended before its end")
                file.write(data)
                offset += len(data)
        if os.path.exists(new):
            os.replace(new, path)

    def _copy_checkpoint(self, place: str, into: str, hdfs: HdfsPlace | None) -> None:
        from dlapp.storage.checkpoints.copies import Checkpoints
        from dlapp.storage.checkpoints.store import open_store

        def is_selected(entry: ManifestEntry) -> bool:
            is_event = EVENTS in os.path.basename(entry.name)
            return is_event and self._should_copy(place, entry.name, (entry.size_bytes, entry.mtime_ns))

        with open_store(place, hdfs) as at:
            checkpoints = Checkpoints(at, 1, lambda _: None)
            number = max(checkpoints.complete(), default=0)
            if number <= self._checkpoints.get(place, 0):
                return
            for entry in checkpoints.fetch_files(number, is_selected, self._incoming):
                self._update_copy(os.path.join(self._incoming, entry.name), os.path.join(into, entry.name))
            self._checkpoints[place] = number

    def _update_copy(self, new: str, path: str) -> None:
        """Append the new content of a file to its copy, or replace the copy."""
        self._check_path(path)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        size = os.path.getsize(path) if os.path.exists(path) else 0
        if not size or os.path.getsize(new) < size:
            os.replace(new, path)
            return
        with open(new, "rb", opener=_open_no_link) as source, open(path, "ab", opener=_open_no_link) as target:
            source.seek(size)
            while data := source.read(_COPY):
                target.write(data)

    def _check_path(self, path: str) -> None:
        """Refuse a path outside of the directory of runs: its names come from other users. Raises DlappError."""
        if not is_inside(os.path.normpath(path), self._runs):
            raise DlappError(f"{path!r} is not in the directory of event files")

    def _note_once(self, line: str) -> None:
        if line not in self._noted and len(self._noted) < MAX_FILES:
            self._noted.add(line)
            self._note(line)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _checked_sizes(line: bytes) -> Iterator[tuple[str, int]]:
    """Return names and sizes of event files, as a task reports them; skip invalid entries.

    Raises:
        DlappError: it is not a list.
    """
    try:
        found = parse_json(line)
    except ValueError as error:
        raise DlappError("the list of event files is not JSON") from error
    for each in found[:MAX_FILES] if isinstance(found, list) else ():
        match each:
            case [str(name), int(size)] if EVENTS in name and is_plain_path(name) and size > 0:
                yield name, size


def _run_name(one: ApplicationId, view: ApplicationView) -> str:
    """Return the name of a run: the application's name, with invalid characters replaced, and its number."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", view.appname).strip(".-")[:60]
    return f"{name or 'application'}-{str(one).removeprefix('application_')}"
