"""Notifications that an application's ApplicationMaster could not deliver, because it died: its user's commands do.

They read the user's own configuration, so nothing on HDFS decides where something is sent.
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
from dlapp.notifications.single_try import deliver_left
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
"""How long a command stays for deliveries at most: so long only if a server does not answer."""
AM_STAYS_S, AM_DIES_S = 45.0, 5.0
"""How long after the end an ApplicationMaster may still send: one that ended by itself, and one that was killed."""
MAX_AT_ONCE = 20


class EndNotices:
    """Records ends of applications, and delivers what is recorded.

    Args:
        config: of the user.
        files: the default file system, as the user.
    """

    def __init__(self, config: Config, files: StagingFiles) -> None:
        self._config, self._files = config, files

    def record_end(self, application_id: ApplicationId, kept: Mapping[str, Any]) -> None:
        """Record the end of an application that did not tell it itself.

        Args:
            application_id: of the application.
            kept: what its history gets: ``submission``, ``view``, ``state`` and ``finished_ms``.

        Raises:
            DlappError, OSError: it cannot be recorded.
        """
        try:
            submission = from_json(Submission, kept["submission"])
            view = None if kept.get("view") is None else from_json(ApplicationView, kept["view"])
            settings = settings_of(self._config, submission.spec.notify)
        except (ConfigError, LookupError, ValueError):
            return  # the configuration is refused at the next submission; a damaged file has nothing to tell
        if settings is None:
            return
        state = str(kept.get("state", view.state.value if view is not None else ""))
        final_status = FinalStatus.KILLED if state == State.KILLED.value else FinalStatus.FAILED
        if view is not None and view.final_status is not FinalStatus.UNDEFINED:
            final_status = view.final_status
        said = view.diagnostics if view is not None else ""
        one = notification_of_end(
            submission,
            application_id,
            final_status.value,
            "",
            said or f"YARN says that it is {state}",
            finished_ms=int(kept.get("finished_ms") or (view is not None and view.finished_ms) or now_ms()),
            diagnosis=None if view is None else view.diagnosis,
        )
        if one.event in settings.events:
            file = StagedOutbox(self._files, application_id)
            before = from_bytes(file.read())
            if (after := before.take(one, settings.channels)) is not before:
                file.write(to_bytes(after))

    def is_there_any(self) -> bool:
        """Return whether something is recorded. Raises Unreachable."""
        return bool(self._files.names(StagingPaths(self._files.home).all_outboxes))

    def deliver(self, ended: Mapping[ApplicationId, EndedApplication]) -> None:
        """Deliver what ended applications left; each is tried once, and waited for for at most `DELIVER_S`.

        Args:
            ended: the user's applications that have ended, how, and how long ago.

        Raises:
            Unreachable: the file system does not answer.
        """
        try:
            settings = settings_of(self._config, EVENTS)
        except ConfigError:
            return
        if settings is None:
            return
        left = []
        places = StagingPaths(self._files.home)
        for name, _, changed_ms in self._files.entries(places.all_outboxes):
            try:
                application_id = ApplicationId.from_text(name.removesuffix(".json"))
            except UsageError:
                continue
            end = ended.get(application_id)
            if end is None and now_ms() - changed_ms > 2 * MAX_AGE_MS:
                # The ResourceManager has forgotten it, or nobody looked for so long: nothing in it is sent any more.
                self._files.remove(places.outbox(application_id))
            if end is None or end.ago_s < (AM_STAYS_S if end.state is State.FINISHED else AM_DIES_S):
                continue  # its ApplicationMaster may send it now
            left.append(StagedOutbox(self._files, application_id))
            if len(left) == MAX_AT_ONCE:
                break
        deliver_left(settings, left, DELIVER_S)
