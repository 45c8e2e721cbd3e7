"""Outputs with ``sync``: new or changed files are copied at intervals while the payload runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from dlapp.errors import DlappError, NotFound
from dlapp.locations import HdfsPlace
from dlapp.storage.live_copies import LiveCopies, live_name
from dlapp.storage.open import open_output
from dlapp.task.data.outputs import inside_workspace
from dlapp.values.messages import Assignment


class LiveOutputs:
    """The outputs of one container that have live copies.

    A thread copies. It ends with the payload, and a copy that is under way then is abandoned. A failed copy is only
    logged in dlapp.log: the next one may succeed.
    """

    def __init__(
        self, assignment: Assignment, container_dir: str, hdfs: HdfsPlace | None, note: Callable[[str], None]
    ) -> None:
        self._container_dir, self._note = container_dir, note
        self._over = threading.Event()
        self._outputs: list[tuple[str, float, LiveCopies]] = []
        for output, part in zip(assignment.outputs, assignment.parts, strict=True):
            if output.sync_s is None:
                continue
            inner = live_name(assignment.application_id)
            if assignment.total > 1:
                inner = f"{inner}/{part.rpartition('/')[2]}"
            copies = LiveCopies(open_output(output.target, hdfs), output.target, inner, note)
            self._outputs.append((output.output_path, output.sync_s, copies))

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copy at intervals during the block."""
        self._over.clear()
        thread = threading.Thread(target=self._run, name="live-outputs")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            with contextlib.ExitStack() as stack:
                cuts = [stack.enter_context(one.abort_calls([thread.ident or 0])) for _, _, one in self._outputs]
                while thread.is_alive():
                    for cut in cuts:
                        cut()
                    thread.join(0.05)

    def _run(self) -> None:
        due = {path: time.monotonic() + every_s for path, every_s, _ in self._outputs}
        failed = dict.fromkeys(due, "")
        while not self._over.wait(max(0.0, min(due.values()) - time.monotonic())):
            for path, every_s, copies in self._outputs:
                if time.monotonic() < due[path]:
                    continue
                try:
                    directory = inside_workspace(self._container_dir, path)
                    if os.path.isdir(directory):
                        copies.copy(directory, self._over.is_set)
                    failed[path] = ""
                except NotFound:
                    failed[path] = ""  # missing, or removed meanwhile
                except (DlappError, OSError) as error:
                    if str(error) != failed[path] and not self._over.is_set():
                        self._note(f"output {path} cannot be copied live now: {error}")
                    failed[path] = str(error)
                due[path] = time.monotonic() + every_s
