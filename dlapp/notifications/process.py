"""Process that sends notifications on one machine while no ApplicationMaster does: ``notify --home DIR ...``.

The runner starts it when an application has ended, or waits too long in the queue. It exits by itself. Undelivered
notifications stay in the outbox, and ``--mark``, a file with the end of the application, stays as well: the next
runner, or the user's next command, starts it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from dlapp.errors import DlappError, Unreachable
from dlapp.notifications.events import notification_of, notification_of_end
from dlapp.notifications.local_outbox import OUTBOX, SETTINGS, LocalOutbox
from dlapp.notifications.sender import Sender
from dlapp.system import clock, files
from dlapp.system.clock import backoff_s
from dlapp.system.logs import log
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import QUEUE, WAITING, Notification, NotificationSettings
from dlapp.values.report import ApplicationView
from dlapp.values.serialization import from_json
from dlapp.values.spec import Submission

DEADLINE_S = 600
_MAX_BYTES = 64 << 20


def main(argv: Sequence[str]) -> int:
    """Send the notifications in one application's outbox, and its end or its waiting."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE_S + 30)
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    application_dir, mark = options["--home"], options.get("--mark", "")
    try:
        is_done = _send(application_dir, mark, options.get("--waiting", ""))
    except FileNotFoundError:
        is_done = True  # it was removed, or everything was sent
    except (DlappError, OSError, ValueError) as error:
        log.error(f"{os.path.basename(application_dir)}: notifications: {error}")
        return 1
    if is_done and mark:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark)
        for name in (SETTINGS, OUTBOX):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{application_dir}/{name}")
    return 0 if is_done else 1


def _send(application_dir: str, mark: str, waiting: str) -> bool:
    """Return whether everything was delivered, or has expired.

    Raises:
        FileNotFoundError: another process has delivered it.
        Unreachable: another process still sends.
    """
    outbox = LocalOutbox(application_dir)
    # Before anything is read: of two processes that were started for one end, the second finds nothing left to send.
    _wait_for_lock(outbox)
    owners = {os.geteuid()}

    def read(name: str) -> object:
        with files.closing_fd(files.open_directory(application_dir)) as fd:
            return files.read_json_object(
                name, dir_fd=fd, path=f"{application_dir}/{name}", owners=owners, max_bytes=_MAX_BYTES
            )

    settings = from_json(NotificationSettings, read(SETTINGS))
    submission = from_json(Submission, read("submission.json"))
    application_id = ApplicationId.from_text(os.path.basename(application_dir))
    notification: Notification | None = None
    if mark:
        end = files.read_json_object(mark, owners=owners, max_bytes=1 << 20)
        diagnosis = None
        with contextlib.suppress(FileNotFoundError, ValueError, DlappError):
            diagnosis = from_json(ApplicationView, read("view.json")).diagnosis
        notification = notification_of_end(
            submission,
            application_id,
            str(end["final_status"]),
            str(end["cause"]),
            str(end["diagnostics"]),
            finished_ms=int(end["finished_ms"]),
            diagnosis=diagnosis,
        )
    elif waiting:
        text = f"it waits in the queue: {waiting}"
        notification = notification_of(submission, application_id, WAITING, QUEUE, text, at_ms=clock.now_ms())
    sender = Sender(settings, outbox)
    sender.begin()
    if notification is not None:
        sender.enqueue(notification)
    return sender.wait(DEADLINE_S)


def _wait_for_lock(outbox: LocalOutbox) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    for pause_s in backoff_s(0.05, 2.0):
        try:
            return outbox.lock()
        except Unreachable:
            if time.monotonic() + pause_s >= deadline_s:
                raise
        time.sleep(pause_s)
    raise AssertionError
