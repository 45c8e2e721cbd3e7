"""Submission of an application to this machine: its directory, and its row."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlapp.cluster.local.notices import NOTIFY
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.row import DEPENDENT, HELD, WAITING
from dlapp.cluster.local.state import write_atomically
from dlapp.errors import ConfigError, Denied, DlappError, NotFound, Unreachable
from dlapp.system.disk_space import FULL, disk_full
from dlapp.system.files import sync_directory, write_all
from dlapp.system.processes.proc import status_fields

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession
    from dlapp.locations import HdfsPlace
    from dlapp.values.access import SharedToken
    from dlapp.values.ids import ApplicationId
    from dlapp.values.spec import AppSpec, Secrets, Submission


def archive_cache(session: LocalSession) -> str:
    """Return the caller's directory for packed workspaces; entries unused for long or beyond the limit are
    removed."""
    session.refuse_if_others()
    return session.state.cache(session.uid)


def find_archive(session: LocalSession, digest: str) -> str:
    """Return the location of the packed workspace of an earlier submission, and mark it as used now.

    Raises:
        NotFound: it was removed from the cache.
    """
    archive = os.path.join(archive_cache(session), f"{digest}.tar.gz")
    try:
        os.utime(archive)
    except FileNotFoundError as error:
        raise NotFound(f"the packed workspace {archive} is not in the cache any more") from error
    return archive


def submit(session: LocalSession, submission: Submission, secrets: Secrets) -> ApplicationId:
    """Submit an application; after the return it runs independently of the caller.

    Atomic: the files are first written in a temporary directory; then one transaction inserts the row and renames
        the directory.

    Raises:
        NotFound: the archive of its workspace no longer exists.
        Unreachable: the state cannot be written.
    """
    from dlapp.values.access import shared_tokens
    from dlapp.values.ids import ApplicationId
    from dlapp.values.serialization import to_json

    session.refuse_if_others()
    spec = submission.spec
    archive = submission.workspace_archive.removeprefix("file://")
    try:
        tokens = shared_tokens(spec.view_acl, spec.modify_acl, secrets.control_secret)
        staging = stage(session, to_json(submission), to_json(secrets), _hdfs_of(session, spec), tokens)
    except OSError as error:
        full = error.errno in FULL
        raise Unreachable(
            disk_full(session.state.staging) if full else f"{session.state.staging}: {error.strerror}"
        ) from error
    try:
        with session.queue().change() as queue:
            _refuse_too_many(session, queue)
            # Within the transaction, like the clean-up of the cache: an archive that exists now is kept for this
            # row.
            if archive and not os.path.exists(archive):
                raise NotFound(f"the packed workspace {archive} is gone: submit again")
            text = queue.insert(**_columns_of(session, submission, secrets))
            application_id = ApplicationId.from_text(text)
            if (named := submission.named(application_id)) is not submission:
                place = os.path.join(staging, "submission.json")
                write_atomically(place, json.dumps(to_json(named)), mode=0o640)
            _move_into_place(session, staging, session.state.application(text))
    except BaseException:
        from dlapp.system.files import remove_tree

        with contextlib.suppress(DlappError):
            remove_tree(staging)
        raise
    start_runner(session)
    return application_id


def _columns_of(session: LocalSession, submission: Submission, secrets: Secrets) -> dict[str, Any]:
    """Return the row of a new application."""
    spec = submission.spec
    memory_mib, vcores, gcores = spec.total()
    if submission.live is not None:
        memory_mib = vcores = 0  # a user's own shell does not wait for an application, nor does one wait for it
    if secrets.ledger is not None:
        gcores = 0  # its task leases them from that ledger
    return {
        "uid": session.uid,
        "submitter": submission.submitter,
        "username": spec.username,
        "appname": spec.appname,
        "memory_mib": memory_mib,
        "vcores": vcores,
        "gcores": gcores,
        "containers": spec.containers,
        "archive": submission.workspace_archive.removeprefix("file://"),
        "submitted_ms": submission.submitted_ms,
        "queue": spec.queue or "default",
        "priority": spec.priority,
        "project": spec.project or "",
        "tags": "\n".join(spec.tags),
        "resumed_from": submission.resumed_from,
        "again_of": submission.again_of,
        "state": DEPENDENT if spec.after else HELD if spec.hold else WAITING,
        "after": ", ".join(map(str, spec.after)),
        "hold": int(spec.hold),
        "runs_at_most_s": _runs_at_most_s(spec),
        "gpus": _gpus_of(spec) if gcores else "",
        "summary": _summary_of(submission),
    }


def _refuse_too_many(session: LocalSession, queue: Queue) -> None:
    """Reject a submission beyond the operator's limit of queued applications. Raises Denied."""
    from dlapp.cluster.local.queue_state import read_policy

    most = read_policy().user_queued
    if most is not None and (waiting := queue.count_waiting(session.uid)) >= most:
        text = f"{waiting} of your applications wait, and {most} may (queue.user_queued of node.yaml)"
        raise Denied(f"{text}; submit again when one has started")


def _hdfs_of(session: LocalSession, spec: AppSpec) -> HdfsPlace | None:
    """Return the HDFS that an application uses, resolved here: its processes do not have the client's variables."""
    from dlapp.locations import is_on_hdfs

    named = [source for one in spec.inputs for source in one.sources] + [one.target for one in spec.outputs]
    if not any(map(is_on_hdfs, named)):
        return None
    hdfs, why = session.hdfs
    if hdfs is None:
        raise ConfigError(why)
    # Set by a variable of OpenSSL, as on a cluster's clients.
    ca = os.environ.get("SSL_CERT_FILE")
    own = hdfs._replace(login=hdfs.login.as_user(spec.username), ca=os.path.abspath(ca) if ca else None)
    return own.for_locations(named)


def stage(
    session: LocalSession, submission: Any, secrets: Any, hdfs: HdfsPlace | None, tokens: Sequence[SharedToken] = ()
) -> str:
    """Write the files of an application in a directory of its own, and return its path.

    Args:
        session: the caller's.
        submission, secrets: as JSON.
        hdfs: the HDFS that it uses.
        tokens: files for other users.
    """
    staging = os.path.join(session.state.staging, f"{os.getpid()}-{os.urandom(8).hex()}")
    os.mkdir(staging, 0o700)
    if session.state.shared:
        os.chmod(staging, 0o2750)
    # The submitter's umask is for the files of the payload; dlapp's own files have explicit modes.
    engine = {"settings": session.settings.to_json(), "shared": session.state.shared, "umask": _umask()}
    from dlapp.system.processes.caller import caller_settings

    engine["caller"] = caller_settings()
    if hdfs is not None:
        from dlapp.values.serialization import to_json

        engine["hdfs"] = to_json(hdfs)
    os.mkdir(os.path.join(staging, "containers"))
    if session.state.shared:
        os.chmod(os.path.join(staging, "containers"), 0o2750)
    values = (
        ("submission.json", submission, 0o640),
        ("secrets.json", secrets, 0o600),
        # In its own file: it is needed until the end was notified, and the secrets are removed before that.
        *([(NOTIFY, secrets["notify"], 0o600)] if secrets.get("notify") else ()),
        ("engine.json", engine, 0o640),
        ("alive", None, 0o640),
    )
    with contextlib.ExitStack() as opened:
        fds = []
        for name, value, mode in values:
            fd = os.open(os.path.join(staging, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            opened.callback(os.close, fd)
            if value is not None:
                write_all(fd, json.dumps(value, separators=(",", ":")).encode())
                fds.append(fd)
        for token in tokens:
            from dlapp.cluster.local.client.shared_tokens import grant_reading

            path = os.path.join(staging, token.name)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, fd)
            grant_reading(fd, token)
            write_all(fd, token.text.encode())
            fds.append(fd)
        # Sync only after all files are written: the first call flushes most of them.
        for fd in fds:
            os.fsync(fd)
    sync_directory(staging)
    return staging


def _move_into_place(session: LocalSession, staging: str, application_dir: str) -> None:
    try:
        os.rename(staging, application_dir)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise Unreachable(f"{application_dir}: {error.strerror}") from error
        # The number is new, so this directory was left by a submission that died before it inserted its row.
        os.rename(application_dir, f"{staging}-left")
        os.rename(staging, application_dir)
    sync_directory(session.state.applications)


def start_runner(session: LocalSession) -> None:
    """Start a runner for what was submitted."""
    # The application is submitted; a failure to start the runner now is not a failure of the submission.
    with contextlib.suppress(DlappError, OSError):
        session.ensure_runner()


def _summary_of(submission: Submission) -> str:
    """Return the fields of a view that no column has, until the ApplicationMaster writes a view."""
    spec = submission.spec
    texts = {"program": spec.program_text, "source": submission.source, "comment": spec.comment}
    return json.dumps({name: text for name, text in texts.items() if text})


def _gpus_of(spec: AppSpec) -> str:
    """Return which GPUs an application requests, for the queue; empty: any whole ones."""
    if not spec.total()[2]:
        return ""
    from dlapp.gpuid.needs import demands_of, to_text

    return to_text(demands_of(spec))


def _runs_at_most_s(spec: AppSpec) -> int | None:
    """Return the time limit of an application's run [s]; None: no limit."""
    return None if spec.max_runtime_s is None else math.ceil(spec.max_runtime_s + spec.kill_grace_s)


def _umask() -> int:
    # os.umask can only read it by changing it, which other threads would see. Source: proc(5), since Linux 4.7.
    words = status_fields("self", "Umask")
    return int(words[0], 8) if words else 0o022
