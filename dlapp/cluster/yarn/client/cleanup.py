"""Clean-up of the file system: leftovers of applications that were ended from outside, and files beyond their age.

An ApplicationMaster settles its outputs, writes its history and removes its staging directory itself. YARN gives a
killed one only 250 ms, so the next command of its user does it: one that reads or ends the application, each list, and
each submission. Archives and histories have age and size limits, as on one machine.

The last use of an archive is the modification time of a file beside it, ``<name>.used``, renewed once a day. The
archive's own time must never change, because YARN fails every container whose resource has another time than
registered.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.cluster.yarn.client.rest import EndedApplication
from dlapp.cluster.yarn.staging import (
    COMMIT,
    HISTORY_SUFFIX,
    JOURNAL_PREFIX,
    MAX_CLAIM_BYTES,
    MAX_GROUP_BYTES,
    MAX_HISTORY_BYTES,
    MAX_SUBMISSION_BYTES,
    MAX_VIEW_BYTES,
    OWN_FILE_MODE,
    OWN_MODE,
    SUBMISSION,
    TRIALS,
    TRIALS_SUFFIX,
    USAGE,
    USAGE_SUFFIX,
    VIEW,
    StagingFiles,
    StagingPaths,
    history_json,
)
from dlapp.errors import Denied, DlappError, NotFound, SpecError, Unreachable, UsageError
from dlapp.locations import shown
from dlapp.sweep.spec import MAX_RESULTS_BYTES
from dlapp.system import clock
from dlapp.system.retention import KeptItem, Retention, files_in
from dlapp.values.ids import ApplicationId
from dlapp.values.report import CommitClaim, OutputView, State
from dlapp.values.serialization import from_json, parse_json, to_json
from dlapp.values.spec import OutputSpec
from dlapp.values.usage import MAX_USAGE_BYTES

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.notices import CommandNotices
    from dlapp.cluster.yarn.client.rest import YarnRest

USED = ".used"
USED_EVERY_S = 86_400.0
"""How often the use of an archive is recorded."""
_TEMPORARY_S = 86_400.0
"""A temporary file is renamed within seconds, a large archive within hours."""
_BUSY_S = 3600.0
_MAX_STARTS, _MAX_STARTS_BYTES = 1000, 32 << 10
"""Maximum number of kept start times of a cluster's ResourceManagers, and size limit of their file."""
_FORGOTTEN_S = 2 * 86_400.0
"""A directory that the ResourceManager has forgotten and that is unchanged for this long belongs to an ended
application."""
MAX_AT_ONCE = 100
"""The submitter waits for the clean-up."""
GONE_AFTER_S = 5.0
"""Time from the ResourceManager's report of an application's end to the end of its processes: the node learns of it
with its next heartbeat (1 s), and SIGKILL follows SIGTERM after 250 ms. Seen: up to 1.3 s. Until then its
ApplicationMaster may still commit, and its tasks may store output."""
NOTHING_KEPT, COMMITTED = "no output kept", "the commit of its output, which had begun, is finished"
KEPT = "its output is kept as partial output"


class OwnApplications(NamedTuple):
    """A user's applications, as known to a cluster.

    Args:
        ended: those that have ended, their states, and how long ago.
        unfinished: the others, with their submission times [ms since 1970].
    """

    ended: Mapping[ApplicationId, EndedApplication]
    unfinished: Mapping[ApplicationId, int]


def settle(
    files: StagingFiles, application_id: ApplicationId, ended: EndedApplication, notices: CommandNotices | None = None
) -> str | None:
    """Write the history of an application that was ended from outside, and remove its staging directory.

    Its outputs come first. If their commit was decided, it is completed, whatever happened to the application since.
    Otherwise stored output is kept as partial output, whoever killed the application: which of it is complete is not
    known without the ApplicationMaster.

    Args:
        files: the default file system, as the application's user.
        application_id: id of the application.
        ended: its last state, and how long ago it ended.
        notices: records of notifications of the end; None: none are sent.

    Returns:
        The result of its outputs, as text; None: it has outputs and ended so recently that its processes may still be
        working on them, and nothing was done.

    Raises:
        DlappError, OSError: an output cannot be settled. Everything needed by a later try is kept.
    """
    try:
        return _settled(files, application_id, ended, notices)
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        if isinstance(error, DlappError) and not isinstance(error, SpecError):
            raise
        staging = StagingPaths(files.home).staging(application_id)
        raise DlappError(f"{staging} has files that cannot be parsed: {error!r}") from error


def _settled(
    files: StagingFiles, application_id: ApplicationId, ended: EndedApplication, notices: CommandNotices | None
) -> str | None:
    places = StagingPaths(files.home)
    staging, history = places.staging(application_id), places.history(application_id)
    result = NOTHING_KEPT
    if files.status(staging) is None:
        return result
    if files.status(history) is None:
        entry: dict[str, Any] = {}
        for name, key, most in ((VIEW, "view", MAX_VIEW_BYTES), (SUBMISSION, "submission", MAX_SUBMISSION_BYTES)):
            with contextlib.suppress(NotFound, ValueError):
                entry[key] = parse_json(files.read(f"{staging}/{name}", max_bytes=most))
        if "submission" in entry:
            outputs = entry["submission"].get("spec", {}).get("outputs", ())
            if outputs:
                if ended.ago_s < GONE_AFTER_S:
                    return None
                result, views = _settle_outputs(files, staging, application_id, outputs)
                entry["outputs"] = to_json(views)
            files.make(places.all_history, OWN_MODE)
            with contextlib.suppress(NotFound):
                usage = files.read(f"{staging}/{USAGE}", max_bytes=MAX_USAGE_BYTES)
                files.write(places.usage(application_id), usage, 0o600, once=True)
            if (sweep := entry["submission"].get("spec", {}).get("sweep")) is not None:
                files.write(places.trials(application_id), _trials(files, staging, sweep), 0o600, once=True)
            # The ApplicationMaster may be doing the same right now: its version is the later one.
            finished_ms = clock.now_ms() - int(ended.ago_s * 1000)
            kept = {"view": None, "state": ended.state.value, "finished_ms": finished_ms, **entry}
            if notices is not None:
                notices.record_end(application_id, kept)
            files.write(history, history_json(kept), 0o600, once=True)
    else:
        with contextlib.suppress(NotFound, ValueError):
            kept = parse_json(files.read(history, max_bytes=MAX_HISTORY_BYTES))
            if notices is not None:
                notices.record_end(application_id, kept)
            view = kept.get("view") or {}
            outputs = view.get("outputs", ())
            if any(one.get("committed") for one in outputs):
                result = COMMITTED
            else:
                result = kept_text([one.get("partial") for one in outputs])
    files.remove(staging)
    return result


def _trials(files: StagingFiles, staging: str, sweep: Any) -> bytes:
    """Return the results of a sweep whose ApplicationMaster died, including the ends that only its journal has."""
    from dlapp.sweep.results import with_ended_trials
    from dlapp.sweep.spec import SweepSpec

    text, records = "", []
    with contextlib.suppress(NotFound):
        text = files.read(f"{staging}/{TRIALS}", max_bytes=MAX_RESULTS_BYTES).decode(errors="replace")
    for name in files.names(staging):
        if name.startswith(JOURNAL_PREFIX):
            with contextlib.suppress(NotFound):  # another file has its lines by now
                for line in files.read(f"{staging}/{name}", max_bytes=MAX_GROUP_BYTES).splitlines():
                    with contextlib.suppress(ValueError):
                        records += [parse_json(line)] if b'"trial' in line else []
    return with_ended_trials(text, from_json(SweepSpec, sweep), records).encode()


def _settle_outputs(
    files: StagingFiles, staging: str, application_id: ApplicationId, outputs: Sequence[Any]
) -> tuple[str, tuple[OutputView, ...]]:
    """Complete the commit by its claim or, without a claim, keep the stored output.

    Returns:
        The result, as text and for each output.
    """
    claim = None
    with contextlib.suppress(NotFound):
        claim = from_json(CommitClaim, parse_json(files.read(f"{staging}/{COMMIT}", max_bytes=MAX_CLAIM_BYTES)))
    specs = from_json(tuple[OutputSpec, ...], outputs)
    done = files.settle_outputs(application_id, specs, claim)
    kept = kept_text([one.partial for one in done])
    if claim is None:
        result = kept
    elif all(one.committed for one in done):
        result = COMMITTED
    else:
        result = f"its output could not be committed; {kept}"
    return result, done


def kept_text(partial: Iterable[str | None]) -> str:
    """Return where output is kept as partial output, as text.

    Args:
        partial: the location of each output; None: nothing of it is kept.
    """
    places = [shown(one) for one in partial if one]
    return f"{KEPT} at {', '.join(places)}" if places else NOTHING_KEPT


def own_applications(rest: YarnRest, files: StagingFiles, user: str) -> OwnApplications:
    """Return a user's applications; those that the ResourceManager has forgotten count as ended.

    Raises:
        Unreachable: it does not answer, or was just restarted and has not recovered its applications.
    """
    started_ms = int(rest.info().get("id") or 0)  # read first: only then an unlisted application is a forgotten one
    reports = rest.reports(user=user)
    ended = {
        one.application_id: EndedApplication(one.state, rest.ended_ago_s(one)) for one in reports if one.state.ended
    }
    known = {one.application_id for one in reports}
    starts = _with_earlier_starts(files, rest.cluster_key(), {one.cluster_timestamp_ms for one in known} | {started_ms})
    ended |= forgotten(files, known, starts, clock.now_ms())
    return OwnApplications(ended, {one.application_id: one.started_ms for one in reports if not one.state.ended})


def _with_earlier_starts(files: StagingFiles, cluster: str, starts: set[int]) -> set[int]:
    """Return the start times of a cluster's ResourceManagers, with those that this user's commands saw before.

    A failover or a restart changes the time in new ids, and applications with an older one are forgotten some day. A
    file on HDFS keeps the times, so that what such an application left is still known as this cluster's.

    Args:
        files: the default file system, as the user.
        cluster: key of the cluster.
        starts: those that are known now, as in ids [ms since 1970].
    """
    location, kept = StagingPaths(files.home).starts(cluster), set[int]()
    with contextlib.suppress(NotFound, ValueError, TypeError):
        kept = {one for one in parse_json(files.read(location, max_bytes=_MAX_STARTS_BYTES)) if type(one) is int}
    both = kept | starts
    if both != kept:
        with contextlib.suppress(Denied):  # with a quota that is used up there is most to remove
            files.make(location.rpartition("/")[0], OWN_MODE)
            files.write(location, json.dumps(sorted(both)[-_MAX_STARTS:]).encode(), OWN_FILE_MODE)
    return both


def settle_all(
    files: StagingFiles, ended: Mapping[ApplicationId, EndedApplication], notices: CommandNotices | None
) -> int:
    """Settle at most `MAX_AT_ONCE` applications that left a staging directory, the latest first; return their number.

    An application whose outputs are on an unavailable file system does not block the others.

    Raises:
        Unreachable: the default file system does not answer.
    """
    over = {str(one): one for one in ended}
    count, all_staging = 0, StagingPaths(files.home).all_staging
    for name in [name for name in reversed(files.names(all_staging)) if name in over][:MAX_AT_ONCE]:
        try:
            count += settle(files, over[name], ended[over[name]], notices) is not None
        except Unreachable:
            files.status(all_staging)  # raises if this is the unavailable one
        except (DlappError, OSError):
            continue  # missing rights or a damaged marker of one application must not block the others
    return count


def forgotten(
    files: StagingFiles, known: Collection[ApplicationId], started_ms: Collection[int], now_ms: int
) -> dict[ApplicationId, EndedApplication]:
    """Return the applications with a staging directory that the ResourceManager has forgotten.

    It does not forget running ones. Applications of another cluster on the same file system have the start time of
    another ResourceManager in their ids; in any case, a recently changed directory is left alone.

    Args:
        files: the default file system, as the user.
        known: all of the user's applications that the ResourceManager knows.
        started_ms: start times of this cluster's ResourceManager, as in ids [ms since 1970].
        now_ms: the time [ms since 1970].
    """
    found, places = {}, StagingPaths(files.home)
    for name in files.names(places.all_staging):
        try:
            application_id = ApplicationId.from_text(name)
        except UsageError:
            continue
        if application_id in known or application_id.cluster_timestamp_ms not in started_ms:
            continue
        staging = places.staging(application_id)
        changed = [ms for _, _, ms in files.entries(staging)]
        if not changed and (empty := files.status(staging)) is not None:
            changed = [empty.modified_ms]  # the submission ended before its first write
        changed_ms = max(changed, default=now_ms)
        if now_ms - changed_ms > _FORGOTTEN_S * 1000:
            found[application_id] = EndedApplication(State.FAILED, (now_ms - changed_ms) / 1000)
    return found


def clean_up(
    files: StagingFiles,
    applications: OwnApplications,
    archives: Retention,
    histories: Retention,
    now_ms: int,
    notices: CommandNotices | None = None,
) -> int:
    """Remove all that need not be kept; return the number of removed files and directories.

    Args:
        files: the default file system, as the user.
        applications: the user's applications.
        archives, histories: their limits.
        now_ms: the time [ms since 1970].
        notices: see `settle`.
    """
    places = StagingPaths(files.home)
    count = settle_all(files, applications.ended, notices)
    cache = _entries(files, places.cache)
    names = _archives_to_remove(cache, archives, now_ms, now_ms)
    if names:
        # An application unknown to this cluster may run on another one that shares the file system.
        over = {str(one) for one in applications.ended}
        staged = [one for one in files.names(places.all_staging) if one.startswith("application_") and one not in over]
        submitted = [_submitted_ms(files, f"{places.all_staging}/{name}", now_ms) for name in staged]
        # An archive used since the oldest submission may belong to one of these applications; a use is recorded once a
        # day. Applications that wait in a queue have no staging directory yet.
        since_ms = min([now_ms, *submitted, *applications.unfinished.values()]) - int(USED_EVERY_S * 1000)
        names = _archives_to_remove(cache, archives, since_ms, now_ms)
    gone = [f"{places.cache}/{name}" for name in names]
    endings = (HISTORY_SUFFIX, USAGE_SUFFIX, TRIALS_SUFFIX)
    kept = [one for one in _entries(files, places.all_history) if one.name.endswith(endings)]
    gone += [f"{places.all_history}/{one.name}" for one in histories.expired(kept, now_ms, now_ms)]
    for location in gone[:MAX_AT_ONCE]:
        mark = files.status(location + USED)
        if mark is not None and mark.modified_ms >= now_ms:
            continue  # just taken into use
        files.remove(location)
        count += 1
    return count


def mark_use(files: StagingFiles, location: str, modified_ms: int, now_ms: int) -> None:
    """Record that an archive is in use, unless recorded within the last day.

    Args:
        files: the default file system.
        location: location of the archive.
        modified_ms: modification time of the archive [ms since 1970].
        now_ms: the time [ms since 1970].
    """
    due_ms = now_ms - int(USED_EVERY_S * 1000)
    if modified_ms > due_ms:
        return
    mark = files.status(location + USED)
    if mark is None or mark.modified_ms <= due_ms:
        files.write(location + USED, b"", 0o600)


def clean_up_cache(directory: str, limits: Retention) -> None:
    """Remove archives made on this machine; each can be made again at any time."""
    now_ms = clock.now_ms()
    # A new one is still being uploaded to the cluster.
    for one in limits.expired(files_in(directory), now_ms, now_ms - int(_BUSY_S * 1000)):
        with contextlib.suppress(OSError):
            os.unlink(one.name)


def _entries(files: StagingFiles, location: str) -> list[KeptItem]:
    return [KeptItem(*one) for one in files.entries(location)]


def _submitted_ms(files: StagingFiles, staging: str, now_ms: int) -> int:
    """Return when an application was submitted, or up to a day earlier; 0 if its submission does not have it."""
    try:
        submission = files.read(f"{staging}/{SUBMISSION}", max_bytes=MAX_SUBMISSION_BYTES)
        return int(parse_json(submission)["submitted_ms"])
    except NotFound:
        # Its ApplicationMaster has not started. Its tokens were written after its archives, which may take hours; an
        # empty directory without tokens was never submitted.
        written_ms = min((ms for _, _, ms in files.entries(staging)), default=now_ms)
        return written_ms - int(_TEMPORARY_S * 1000)
    except (ValueError, KeyError, TypeError):
        return 0


def _archives_to_remove(cache: Sequence[KeptItem], limits: Retention, since_ms: int, now_ms: int) -> list[str]:
    """Return the names of archives beyond the limits, with their marks, and of leftovers of dead writers; anything used
    after ``since_ms`` may be in use."""
    by_name = {one.name: one for one in cache}
    archives = []
    for one in cache:
        if not one.name.startswith(".") and not one.name.endswith(USED):
            mark = by_name.get(one.name + USED)
            archives.append(one._replace(used_ms=max(one.used_ms, mark.used_ms if mark else 0)))
    found = []
    for one in limits.expired(archives, now_ms, since_ms):
        found += [one.name, *([one.name + USED] if one.name + USED in by_name else [])]
    for one in cache:
        if one.name.startswith("."):
            left = now_ms - one.used_ms > _TEMPORARY_S * 1000
        else:
            left = one.name.endswith(USED) and one.name.removesuffix(USED) not in by_name
        if left:
            found.append(one.name)
    return found
