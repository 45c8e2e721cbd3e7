"""Notifications of an application's events, created from its state."""

from __future__ import annotations

from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import Notification, event_of_end, id_of
from dlapp.values.report import ContainerDiagnosis
from dlapp.values.spec import Submission


def notification_of(
    submission: Submission, application_id: ApplicationId, event: str, key: str, text: str, *, at_ms: int
) -> Notification:
    """Return a notification.

    Args:
        submission, application_id: of the application.
        event: one of `dlapp.values.notification.EVENTS`.
        key: distinguishes events of the same kind.
        text: for the user.
        at_ms: when it happened [ms since 1970].
    """
    spec = submission.spec
    return Notification(
        id=id_of(application_id, event, key),
        event=event,
        at_ms=at_ms,
        application_id=application_id,
        appname=spec.appname,
        username=spec.username,
        submitter=submission.submitter,
        queue=spec.queue or "default",
        project=spec.project or "",
        text=text,
    )


def notification_of_end(
    submission: Submission,
    application_id: ApplicationId,
    final_status: str,
    cause: str,
    diagnostics: str,
    *,
    finished_ms: int,
    diagnosis: ContainerDiagnosis | None = None,
) -> Notification:
    """Return the notification of an application's end.

    Args:
        submission, application_id: of the application.
        final_status, cause: values of `dlapp.values.report`; an empty cause is unknown.
        diagnostics: reason, for the user.
        finished_ms: when it ended [ms since 1970].
        diagnosis: the diagnosis of the container that failed first. Program output is not sent.
    """
    text = diagnostics
    if diagnosis is not None:
        found = diagnosis.diagnosis
        text = "\n".join(filter(None, (text, f"cause: container {diagnosis.index}: {found.cause}", found.next_step)))
    event = event_of_end(final_status)
    one = notification_of(submission, application_id, event, "", text, at_ms=finished_ms)
    return replace(one, final_status=final_status, cause=cause)
