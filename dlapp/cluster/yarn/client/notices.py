"""Notifications of applications whose ApplicationMaster died before delivery; the user's commands deliver them.

The commands use the user's own configuration, so no file on HDFS determines where a notification is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlapp.cluster.yarn.outbox import StagedOutbox
from dlapp.cluster.yarn.staging import StagingFiles, StagingPaths
from dlapp.errors import ConfigError, UsageError
from dlapp.notifications.events import notification_of_end
from dlapp.notifications.outbox import MAX_AGE_MS, from_bytes, to_bytes
from dlapp.notifications.settings import settings_of
from dlapp.notifications.single_try import deliver_pending
from dlapp.system.clock import now_ms
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import EVENTS
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.serialization import from_json
from dlapp.values.spec import Submission

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.cleanup import EndedApplication
    from dlapp.config import Config

DELIVER_S = 5.0
"""Maximum time that a command waits for deliveries; it is reached only if a server does not answer."""
AM_STAYS_S, AM_DIES_S = 45.0, 5.0
"""Time after the end in which an ApplicationMaster may still deliver: one that ended by itself, and a killed one."""
MAX_AT_ONCE = 20


class EndNotices:
    """Recorder and deliverer of notifications of ends of applications.

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
        return bool(self._files.names(StagingPaths(self._files.home).all_outboxes))

    def deliver(self, ended: Mapping[ApplicationId, EndedApplication]) -> None:
        """Deliver the notifications of ended applications. Each is tried once; return after at most `DELIVER_S`.

        Raises:
            Unreachable: the file system does not answer.
        """
        try:
            settings = settings_of(self._config, EVENTS)
        except ConfigError:
            return
        if settings is None:
            return
        outboxes = []
        places = StagingPaths(self._files.home)
        for name, _, changed_ms in self._files.entries(places.all_outboxes):
            try:
                application_id = ApplicationId.from_text(name.removesuffix(".json"))
            except UsageError:
                continue
            end = ended.get(application_id)
            if end is None and now_ms() - changed_ms > 2 * MAX_AGE_MS:
                # The ResourceManager has forgotten the application, so its notifications are too old to be sent.
                self._files.remove(places.outbox(application_id))
            if end is None or end.ago_s < (AM_STAYS_S if end.state is State.FINISHED else AM_DIES_S):
                continue  # its ApplicationMaster may still deliver them
            outboxes.append(StagedOutbox(self._files, application_id))
            if len(outboxes) == MAX_AT_ONCE:
                break
        deliver_pending(settings, outboxes, DELIVER_S)
