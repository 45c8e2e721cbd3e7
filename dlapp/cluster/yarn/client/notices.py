"""Notifications that no ApplicationMaster delivers: it died before that, or YARN has not started it yet. The user's
commands deliver them.

The commands use the user's own configuration, so no file on HDFS determines where a notification is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.cluster.yarn.client import views
from dlapp.cluster.yarn.outbox import StagedOutbox
from dlapp.cluster.yarn.staging import OWN_FILE_MODE, StagingFiles, StagingPaths
from dlapp.errors import ConfigError, DlappError, Unreachable, UsageError
from dlapp.notifications.events import notification_of_end
from dlapp.notifications.outbox import MAX_AGE_MS, from_bytes, to_bytes
from dlapp.notifications.settings import settings_of
from dlapp.notifications.single_try import deliver_pending
from dlapp.system.clock import now_ms
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import EVENTS, QUEUE, WAITING, Notification, NotificationSettings, id_of
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.serialization import from_json
from dlapp.values.spec import Submission

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.rest import AppReport, EndedApplication
    from dlapp.config import Config

DELIVER_S = 5.0
"""Maximum time that a command waits for deliveries; it is reached only if a server does not answer."""
AM_STAYS_S, AM_DIES_S = 45.0, 5.0
"""Time after the end in which an ApplicationMaster may still deliver: one that ended by itself, and a killed one."""
MAX_AT_ONCE = 20
SENDING = "sending"
"""File in the directory of the outboxes, while one of the user's commands sends."""
SENDING_MS = 60_000
"""After that time its command has ended: `DELIVER_S` is over, and so is each attempt that was under way."""


class CommandNotices:
    """Recorder and deliverer of notifications of ends and of waits for an ApplicationMaster.

    Args:
        config: the user's configuration.
        files: the default file system, as the user.
    """

    def __init__(self, config: Config, files: StagingFiles) -> None:
        self._config, self._files = config, files

    def record_end(self, application_id: ApplicationId, kept: Mapping[str, Any]) -> None:
        """Record the end of an application that did not record it itself.

        Args:
            kept: its entry for the history: ``submission``, ``view``, ``state`` and ``finished_ms``.

        Raises:
            DlappError, OSError: the record cannot be written.
        """
        try:
            submission = from_json(Submission, kept["submission"])
            view = None if kept.get("view") is None else from_json(ApplicationView, kept["view"])
            settings = settings_of(self._config, submission.spec.notify)
        except (ConfigError, LookupError, ValueError):
            return  # the next submission refuses the configuration; a damaged file has no valid content
        if settings is None:
            return
        state = str(kept.get("state", view.state.value if view is not None else ""))
        final_status = FinalStatus.KILLED if state == State.KILLED.value else FinalStatus.FAILED
        if view is not None and view.final_status is not FinalStatus.UNDEFINED:
            final_status = view.final_status
        text = view.diagnostics if view is not None else ""
        one = notification_of_end(
            submission,
            application_id,
            final_status.value,
            "",
            text or f"YARN reports it as {state}",
            finished_ms=int(kept.get("finished_ms") or (view is not None and view.finished_ms) or now_ms()),
            diagnosis=None if view is None else view.diagnosis,
        )
        if one.event in settings.events:
            file = StagedOutbox(self._files, application_id)
            before = from_bytes(file.read())
            if (after := before.add(one, settings.channels)) is not before:
                file.write(to_bytes(after))

    def is_there_any(self) -> bool:
        """Return whether there are recorded notifications. Raises Unreachable."""
        return any(name != SENDING for name in self._files.names(StagingPaths(self._files.home).all_outboxes))

    def deliver_waits(self, reports: Sequence[AppReport]) -> None:
        """Record that these applications wait too long for their first ApplicationMaster, and deliver it.

        Each is recorded once, by an id that its ApplicationMaster will know, and tried once; return after at most
        `DELIVER_S`.

        Raises:
            Unreachable: the file system does not answer.
        """
        if (settings := self._settings()) is None:
            return
        outboxes = []
        for report in reports[:MAX_AT_ONCE]:
            file, one = StagedOutbox(self._files, report.application_id), _notification_of_wait(report, now_ms())
            try:
                before = from_bytes(file.read())
                after = before.add(one, settings.channels)
                if after.taken != (one.id,):
                    continue  # an ApplicationMaster has started since the report, and delivers its events
                if after is not before:
                    file.write(to_bytes(after))
            except Unreachable:
                raise
            except (DlappError, OSError):
                continue  # an outbox that cannot be read or written must not prevent the others
            if after.pending:
                outboxes.append(file)
        self._send(settings, outboxes, ended=False)

    def _send(self, settings: NotificationSettings, outboxes: Sequence[StagedOutbox], *, ended: bool = True) -> None:
        """Send the content of outboxes, unless another command of the user does; a later command sends the rest."""
        if not outboxes:
            return
        mark = f"{StagingPaths(self._files.home).all_outboxes}/{SENDING}"
        if not self._files.write(mark, b"", OWN_FILE_MODE, once=True):
            found = self._files.status(mark)
            if found is not None and now_ms() - found.modified_ms > SENDING_MS:
                self._files.remove(mark)  # its command was killed
            return
        if deliver_pending(settings, outboxes, DELIVER_S, ended=ended):
            self._files.remove(mark)

    def _settings(self) -> NotificationSettings | None:
        with contextlib.suppress(ConfigError):  # the next submission refuses the configuration
            return settings_of(self._config, EVENTS)
        return None

    def deliver(
        self, ended: Mapping[ApplicationId, EndedApplication], unfinished: Collection[ApplicationId] | None = None
    ) -> None:
        """Deliver the notifications of ended applications. Each is tried once; return after at most `DELIVER_S`.

        Args:
            ended: the applications.
            unfinished: all of the user's others that the ResourceManager knows; what is left of unknown ones is
                removed when it is too old to be sent. None: not read.

        Raises:
            Unreachable: the file system does not answer.
        """
        if (settings := self._settings()) is None:
            return
        outboxes = []
        places = StagingPaths(self._files.home)
        for name, _, changed_ms in self._files.entries(places.all_outboxes):
            try:
                application_id = ApplicationId.from_text(name.removesuffix(".json"))
            except UsageError:
                continue
            end = ended.get(application_id)
            is_forgotten = unfinished is not None and end is None and application_id not in unfinished
            if is_forgotten and now_ms() - changed_ms > 2 * MAX_AGE_MS:
                self._files.remove(places.outbox(application_id))
            if end is None or end.ago_s < (AM_STAYS_S if end.state is State.FINISHED else AM_DIES_S):
                continue  # its ApplicationMaster may still deliver them
            outboxes.append(StagedOutbox(self._files, application_id))
            if len(outboxes) == MAX_AT_ONCE:
                break
        self._send(settings, outboxes)


def _notification_of_wait(report: AppReport, at_ms: int) -> Notification:
    """Return the notification that an application waits for its first ApplicationMaster; its id is that of the
    ApplicationMaster's own notification of the wait since the submission."""
    view = views.merged(report, views.AmState())
    waited = f"it has waited for {(at_ms - report.started_ms) // 60_000} min for YARN to start its ApplicationMaster"
    return Notification(
        id=id_of(report.application_id, WAITING, QUEUE),
        event=WAITING,
        at_ms=at_ms,
        application_id=report.application_id,
        appname=view.appname,
        username=view.username,
        submitter=view.submitter,
        queue=view.queue,
        project=view.project,
        text=": ".join(filter(None, (waited, view.diagnostics))),
    )
