"""The client of dlapp: one method for each operation of the commands."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.client.polling import ENDED, poll_pause_s
from dlapp.cluster import LOG_NAMES
from dlapp.errors import (
    Denied,
    DlappError,
    NotFound,
    TimedOut,
    Unreachable,
    UsageError,
)
from dlapp.id_text import LAST, is_application_id, looks_like_id
from dlapp.value import Closeable

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from typing import Unpack

    from dlapp.application.description import Snapshot, Source
    from dlapp.application.keywords import SubmitOptions
    from dlapp.application.overrides import Overrides
    from dlapp.client.application import Application
    from dlapp.client.logs import LogPiece
    from dlapp.client.streams.opening import StreamOpener
    from dlapp.client.sweep import Sweep
    from dlapp.cluster.engine import Engine, LogFiles
    from dlapp.config import Config
    from dlapp.launcher.origin import Origin
    from dlapp.locations import HdfsPlace
    from dlapp.node_policy import DockerPolicy
    from dlapp.sweep.trial import TrialSpec
    from dlapp.values.ids import ApplicationId, ContainerId
    from dlapp.values.report import ApplicationView
    from dlapp.values.spec import AppSpec, Submission
    from dlapp.values.usage import UsageHistory

    AnyApplication = Application | ApplicationId | str
    """An application, its id, or a text for `Client.resolve`: ``last``, an id, the end of one."""

FINISHED_SHOWN = 20
LOG_AGGREGATION_S = 20.0
"""How long after an application's end a cluster may take to aggregate its logs; until then they may be unavailable."""
DOCKER_TIMEOUT_S = 2.0
"""Time limit for dockerd to list its networks before a submission."""
TAIL_BYTES = 4 << 10
"""Maximum size of a stream's last lines that is read."""
TAIL_TIMEOUT_S = 5.0
"""How long to wait for the last lines of a log that a cluster is just aggregating."""
RUNNER_CHECK_INTERVAL_S = 5.0
"""Interval at which a waiting command checks for a dead runner and replaces it."""


class Client(Closeable):
    """Operations of one user on applications.

    Args:
        config: the configuration; None reads the configuration files and DLAPP_* variables of the process.
        cluster: the engine to submit to, instead of the configured one. Submitted applications are found on any engine.
        engine: an existing engine to use for everything; None to create the configured ones.
        note: called once if something keeps applications from running: a full disk of this machine's state; and with
            the application that a number means, if several have it.

    Raises:
        ConfigError: the configuration is invalid.
        UsageError: it names an unknown engine.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        cluster: str | None = None,
        engine: Engine | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        if config is None or cluster is not None:
            from dlapp.config import load_config

            texts = dict(config.texts) if config else {}
            config = load_config({**texts, "cluster": cluster} if cluster is not None else texts)
        from dlapp.client.engines import Engines

        self._engines = Engines(config, engine)
        self.config, self.engine = config, self._engines.configured
        self._runner_checked_at: dict[int, float] = {}
        self._note, self._noted = note, ""

    def close(self) -> None:
        """Close the connections to a cluster."""
        self._engines.close()

    @property
    def state_path(self) -> str:
        """Return the directory of this machine's own state, on any engine."""
        from dlapp.cluster.local.state import open_state

        local = self.config.local
        return open_state(local.state_dir, shared=local.shared).path

    # ---- resolving application ids ----

    def resolve(self, text: str, *, user: str | None = None) -> ApplicationId:
        """Find the application for ``text``: ``last``, a complete id, its number, or a unique suffix of an id.

        Args:
            user: the required owner; None for the caller, or anybody if a suffix is given.

        Raises:
            UsageError: the suffix is ambiguous (the message lists the matches), or impossible.
            NotFound: there is no match.
            Denied: it is neither owned by ``user`` nor the caller's with ``username=user``.
        """
        from dlapp.values.ids import ApplicationId

        return ApplicationId.from_text(self.resolve_text(text, user=user))

    def application(self, text: str) -> Application:
        """Return the application for ``text``. Raises the errors of `resolve`, and NotFound for an unknown id."""
        from dlapp.client.application import Application

        application = Application(self, self.resolve(text))
        application.status()
        return application

    def resolve_text(self, text: str, *, user: str | None = None) -> str:
        """Call `resolve`, for callers that need only the id as text."""
        if not looks_like_id(text):
            raise UsageError(f"{text!r} is neither 'last' nor an application's id nor the ending of one")
        if text == LAST:
            return self._last_id(user)
        found = [text] if is_application_id(text) else self._ids_with_suffix(text)
        if not found:
            raise NotFound(f"no application's id ends with {text!r} (dlapp-list shows yours)")
        if len(found) > 1:
            raise UsageError(f"{len(found)} applications end with {text!r}: {', '.join(found)}")
        if user is not None:
            self._check_owner(found[0], user)
        return found[0]

    def _last_id(self, user: str | None) -> str:
        mine = self.engine.ids() if user is None else self._ids_of(user)
        other = self._engines.other_last() if user in (None, caller()) else None
        if other is not None and (not mine or self.engine.view_json(mine[-1])["submitted_ms"] < other[1]):
            return other[0]
        if not mine:
            whose = "you have" if user is None else f"{user} has"
            how = " (dlapp-launcher FILE starts one)" if user is None else ""
            raise NotFound(f"{whose} no application yet{how}")
        return mine[-1]

    def _ids_with_suffix(self, text: str) -> list[str]:
        """Return the caller's own ids with this suffix; if there are none, everybody's. If some have exactly this
        number, return only those.

        YARN numbers applications from 1 again after each start or failover of a ResourceManager: of the caller's own on
        one cluster the latest has the number.
        """
        for everybody in (False, True):
            by_engine = [
                [one for one in each.ids(everybody=everybody) if one.endswith(text)] for each in self._engines.used()
            ]
            exact = [
                [one for one in those if text.isdecimal() and int(one.rpartition("_")[2]) == int(text)]
                for those in by_engine
            ]
            if not everybody and len(numbered := [those for those in exact if those]) == 1:
                *earlier, latest = numbered[0]
                if earlier:
                    self._note(f"{text} is {latest}, the latest of your {len(earlier) + 1} with this number")
                return [latest]
            for those in exact, by_engine:
                if found := [one for each in those for one in each]:
                    return found
        return []

    def _ids_of(self, user: str) -> list[str]:
        """Return the id of the last application of a user, if there is one."""
        found = [str(view["application_id"]) for view in self.engine.views_json(user=user)]
        last = next((one for one in reversed(found) if self._owner_unless_of(one, user) is None), None)
        return [] if last is None else [last]

    # ---- reading ----

    def status(self, application_id: AnyApplication) -> ApplicationView:
        """Return the current state of an application. Raises NotFound."""
        application_id = self._id(application_id)
        engine = self._engine_of(application_id)
        self._ensure_runner(engine)
        return engine.view(application_id)

    def list(
        self, *, user: str | None = None, everybody: bool = False, finished: int | None = FINISHED_SHOWN
    ) -> Sequence[ApplicationView]:
        """Return applications on all engines that the caller uses, oldest first: the caller's, one user's, or
        everybody's.

        Args:
            finished: maximum number of ended applications, the latest ones; None for all. Of their containers only the
                one that determines the exit code is included.
        """
        from dlapp.values.report import ApplicationView
        from dlapp.values.serialization import from_json

        found = self.list_json(user=user, everybody=everybody, finished=finished)
        return [from_json(ApplicationView, one) for one in found]

    def status_json(self, application_id: str) -> dict[str, Any]:
        """Return `status` in its JSON form, as the engine provides it: fields with default values may be missing."""
        engine = self._engine_of(application_id)
        self._ensure_runner(engine)
        return engine.view_json(application_id)

    def why(self, application_id: AnyApplication) -> ApplicationView:
        """Return the current state of an application; if it waits, ``waiting`` also has the smallest change that would
        let it start now, and an estimate of its start. Raises NotFound."""
        from dlapp.values.report import ApplicationView
        from dlapp.values.serialization import from_json

        return from_json(ApplicationView, self.why_json(str(self._id(application_id))))

    def why_json(self, application_id: str) -> dict[str, Any]:
        """Return `why` in its JSON form."""
        engine = self._engine_of(application_id)
        self._ensure_runner(engine)
        return engine.view_in_full_json(application_id)

    def queue_json(self, *, unanswered: Callable[[Unreachable], None] | None = None) -> dict[str, Any]:
        """Return running and waiting applications of all users on all engines that the caller uses; docs/json.md has
        the fields.

        Args:
            unanswered: called with an engine that is not the configured one and does not answer; None to raise the
                error.
        """
        from dlapp.client.queue import queue_of

        applications, shares = list[dict[str, Any]](), list[dict[str, Any]]()
        for place, engine in enumerate((self.engine, *self._engines.used()[1:])):
            try:
                self._ensure_runner(engine)
                found = queue_of(engine)
            except Unreachable as error:
                if place == 0 or unanswered is None:
                    raise
                unanswered(error)
                continue
            applications += found["applications"]
            shares += found["shares"]
        return {"applications": applications, "shares": shares}

    def usage(self, application_id: AnyApplication) -> UsageHistory:
        """Return the resource usage of an application's containers over time; while it runs, as of some minutes ago.

        Raises:
            NotFound: there is no such application.
            DlappError: it cannot be read.
        """
        from dlapp.errors import SpecError
        from dlapp.values.serialization import from_json
        from dlapp.values.usage import UsageHistory

        found = self._id(application_id)
        data = self._engine_of(found).usage_json(found)
        try:
            return from_json(UsageHistory, {} if data is None else data)
        except (SpecError, UsageError) as error:
            raise DlappError(f"the use of the containers of {found} cannot be read: {error}") from error

    def sweep(self, application_id: AnyApplication) -> Sweep:
        """Return the sweep of an application, with access to its trials. Raises NotFound."""
        from dlapp.client.sweep import Sweep

        found = self._id(application_id)
        return Sweep(found, self._engine_of(found))

    def submission(self, application_id: AnyApplication) -> Submission:
        """Return what was submitted: the spec, the properties file without values of variables, the digest of the
        packed workspace, versions.

        Raises:
            NotFound: there is no such application, or this record was removed.
            Denied: it is owned by another user.
        """
        application_id = self._id(application_id)
        return self._engine_of(application_id).submission(application_id)

    def hdfs_of(self, application_id: AnyApplication, username: str | None = None) -> HdfsPlace | None:
        """Return the HDFS for reading the locations of an application; None if none is configured.

        Args:
            application_id: the id of the application.
            username: its Hadoop user (`AppSpec.username`); None for the caller.
        """
        place = self._engine_of(self._id(application_id)).info().hdfs
        return place if place is None or username is None else place._replace(login=place.login.as_user(username))

    def list_json(
        self,
        *,
        user: str | None = None,
        everybody: bool = False,
        finished: int | None = FINISHED_SHOWN,
        wanted: Callable[[dict[str, Any]], bool] | None = None,
        unanswered: Callable[[Unreachable], None] | None = None,
        unread: Callable[[str], None] = lambda _: None,
    ) -> Sequence[dict[str, Any]]:
        """Return `list` in its JSON form, as the engines provide it: fields with default values may be missing.

        Args:
            user, everybody, finished: see `list`.
            wanted: selects views; None for all.
            unanswered: called with an engine that is not the configured one and does not answer; None to raise the
                error.
            unread: called with each of your applications whose receipt could not be read, or not in a bounded time.
        """
        limit = finished if wanted is None else None
        by_engine: list[tuple[Engine, list[dict[str, Any]]]] = []
        for engine in (self.engine, *self._engines.used()[1:]):
            self._ensure_runner(engine)
            try:
                by_engine.append((engine, engine.views_json(everybody=everybody, user=user, limit=limit)))
            except Unreachable as error:
                if unanswered is None or engine is self.engine:
                    raise
                unanswered(error)
        found = [one for _, views in by_engine for one in views]
        shown = _latest(found if wanted is None else list(filter(wanted, found)), finished)
        kept = {id(one) for one in shown}
        for engine, views in by_engine:
            for application_id in engine.add_receipts([one for one in views if id(one) in kept]):
                unread(application_id)
        return shown

    def log_urls(self, view: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        """Return the log files of a view (in its JSON form), in CONTAINER_INDEX order: fields of `LogFiles`."""
        names = ("container_id", "role", "role_index", "index")
        return [
            {
                **{name: one[name] for name in names},
                "files": {name: log_file_url(one["log_url"], name) for name in LOG_NAMES},
            }
            for one in sorted(view["containers"], key=lambda one: int(one["index"]))
            if one["log_url"]
        ]

    def unstored(self, view: Mapping[str, Any]) -> Sequence[str]:
        """Return the directories with output of an application that could not be stored.

        They are on this machine, and are never removed automatically. On a cluster each is ``host:path``, on the node
        of its container, and a NodeManager that starts without recovery removes it.

        Args:
            view: the view of the application, in its JSON form.
        """
        return self._engine_of(str(view["application_id"])).unstored(view)

    def dashboard_urls(self, application_id: AnyApplication) -> tuple[str, str]:
        """Return the URLs of the application for a browser: while it runs, and after its completion."""
        application_id = self._id(application_id)
        return self._engine_of(application_id).dashboard_urls(application_id)

    def log_files(self, application_id: AnyApplication) -> Sequence[LogFiles]:
        """Return the log files of all containers that have run, in CONTAINER_INDEX order. Raises NotFound."""
        application_id = self._id(application_id)
        return self._engine_of(application_id).logs(application_id)

    def logs(
        self,
        application_id: AnyApplication,
        *,
        container: int | ContainerId | None = None,
        try_number: int | None = None,
        generation: int | None = None,
        trial: int | None = None,
        streams: Sequence[str] = ("stdout", "stderr"),
        last_lines: int | None = None,
        since_ms: int | None = None,
        times: bool = False,
        follow: bool = False,
        on_change: Callable[[ApplicationView], None] = lambda _: None,
        missing: Callable[[str], None] = lambda _: None,
    ) -> Iterator[LogPiece]:
        """Yield the output of the payloads, as bytes; stdout and stderr of a container in the order of time.

        Args:
            application_id: the id of the application.
            container: CONTAINER_INDEX or id of a single container; None for all.
            try_number: the try of each index, from 1; None for the last one, or the one in the container's id.
            generation: the generation of the gang, from 0, to read output from before a restart; None for the last one.
            trial: number of a trial of a sweep, to read the output of its last try instead of that of containers.
            streams: any of ``stdout``, ``stderr`` and ``dlapp.log`` (dlapp's own log of the container).
            last_lines: start with this number of last lines of each stream; None for all.
            since_ms: start with the lines that were complete at this time [ms since 1970], and with those whose time is
                unknown; None for all.
            times: include the time of writing with each piece of stdout or stderr; if both are read, it is always
                included.
            follow: continue until the application has ended.
            on_change: called with every new view while following.
            missing: called with a line for each log of an ended application that does not exist any more; and for each
                that cannot be read now while its application runs, which is retried.

        Raises:
            NotFound: there is no such application, or (if that can be known) no such container, try or generation.
        """
        from dlapp.client.logs import STREAMS, Logs, of_generation, of_trial, pieces_since, read_logs
        from dlapp.system.logs.log_times import former_name
        from dlapp.values.foreign import CUT

        application_id, trial_name = self._id(application_id), ""
        if trial is not None:
            container, trial_name = self._try_of_trial(application_id, trial)
            application_id = container.application  # this sweep may continue the one that ran it
        latest, engine = self.status(application_id), self._engine_of(application_id)
        for line in latest.changes:
            if line.startswith(CUT):
                missing(line)
        wanted = (lambda log: container in (None, log.index, log.container_id)) if container is not None else None

        def poll() -> tuple[bool, Sequence[LogFiles]]:
            nonlocal latest
            logs: Sequence[LogFiles] | None = None
            try:
                logs = engine.logs(application_id, _try_of(container, latest, try_number))
            except Unreachable:
                if not follow:
                    raise
            try:
                seen, latest = latest, self.status(application_id)
            except Unreachable:
                if not follow:
                    raise
                return False, logs or ()
            if latest != seen:
                on_change(latest)
            if latest.state.ended:
                # The logs may have moved since the end of the application, and the last container may be new.
                logs = engine.logs(application_id, _try_of(container, latest, try_number))
            if logs is None:
                return False, ()
            _check_container(container, latest, logs)
            if try_number is not None and not (follow and not latest.state.ended):
                _check_try(try_number, latest, [log for log in logs if wanted is None or wanted(log)])
            if trial_name:
                return latest.state.ended, [of_trial(log, trial_name) for log in logs]
            former = _before_generation(generation, latest, logs)
            return latest.state.ended, [of_generation(log, one) if one is not None else log for log, one in former]

        def aggregated(log: LogFiles, stream: str) -> Iterator[bytes] | None:
            if trial_name:
                return engine.aggregated_log(latest, log, f"{trial_name}.{stream}")
            ((_, former),) = _before_generation(generation, latest, [log])
            name = stream if former is None or stream not in STREAMS else former_name(stream, former)
            return engine.aggregated_log(latest, log, name)

        on_change(latest)
        pieces = read_logs(
            poll,
            streams=streams,
            wanted=wanted or (lambda _: True),
            opened=Logs(
                last_lines,
                aggregated,
                lambda: _log_aggregation_left_s(latest),
                lambda: self._engines.login,
                lambda: self._engines.certificates,
            ),
            times=times or since_ms is not None,
            follow=follow,
            pause=lambda quiet: time.sleep(poll_pause_s(quiet)),
            missing=missing,
        )
        return pieces if since_ms is None else pieces_since(pieces, since_ms)

    def _try_of_trial(self, application_id: ApplicationId, number: int) -> tuple[ContainerId, str]:
        """Return the container of the last try of a trial, and the name of the try.

        Raises:
            NotFound: it was never started.
        """
        from dlapp.values.ids import ContainerId, trial_part

        results = self.sweep(application_id).results()
        found = next((one for one in results.trials if one.number == number), None)
        if found is None or not found.container_id:
            known = f"it has {results.total}, numbered from 0" if number >= results.total else "it was not started yet"
            raise NotFound(f"{application_id} has no logs of trial {number}: {known}")
        return ContainerId.from_text(found.container_id), trial_part(number, found.tries)

    def log_tail(
        self, application_id: AnyApplication, container: int, *, stream: str = "stderr", lines: int = 10
    ) -> bytes:
        """Return the last lines of one stream of a container, from its last `TAIL_BYTES` bytes; the first line may be
        cut.

        Args:
            application_id: the id of the application.
            container: CONTAINER_INDEX.
            stream: ``stdout``, ``stderr`` or ``dlapp.log``.
            lines: number of lines.

        Raises:
            NotFound: there is no such application, or a log of an ended one does not exist.
            Denied, Unreachable: it cannot be read.
        """
        return self.log_tails(self.status(application_id))(container, stream, lines)

    def log_tails(self, view: ApplicationView) -> Callable[[int, str, int], bytes]:
        """Return a function of a container, a stream and a number of lines that calls `log_tail`.

        The locations of the logs are read once, at its first call.

        Args:
            view: the view of the application.
        """
        from dlapp.client.logs import Logs, read_logs

        engine = self._engine_of(view.application_id)
        found: list[Sequence[LogFiles]] = []

        def poll() -> tuple[bool, Sequence[LogFiles]]:
            if not found:
                found.append(engine.logs(view.application_id))
            return view.state.ended, found[0]

        def log_tail(container: int, stream: str, lines: int) -> bytes:
            deadline = time.monotonic() + TAIL_TIMEOUT_S
            missing: list[str] = []
            opened = Logs(
                lines,
                lambda log, name: engine.aggregated_log(view, log, name),
                lambda: min(_log_aggregation_left_s(view), deadline - time.monotonic()),
                lambda: self._engines.login,
                lambda: self._engines.certificates,
                last_bytes=TAIL_BYTES,
            )
            data = bytearray()
            with contextlib.closing(opened):
                for piece in read_logs(
                    poll,
                    streams=(stream,),
                    wanted=lambda log: log.index == container,
                    opened=opened,
                    missing=missing.append,
                ):
                    data += piece.data
                    if len(data) > TAIL_BYTES:
                        break  # still being written
            if missing:
                raise NotFound(missing[0])
            return bytes(data[:TAIL_BYTES])

        return log_tail

    def stream_opener(self, application_id: AnyApplication) -> StreamOpener:
        """Return a thread-safe opener of streams to the containers of an application: the caller's own, or one whose
        `view_acl` contains the caller, to ports only.

        Raises:
            NotFound: it does not exist, or has ended.
            Denied: it is owned by another user, or was submitted from another machine.
            StreamRefused: it has not started yet.
        """
        from dlapp.client.streams.opening import StreamOpener

        application_id = self._id(application_id)
        return StreamOpener(*self._engine_of(application_id).control_access(application_id))

    def index_of(self, application_id: AnyApplication, role: str, number: int) -> int:
        """Return the CONTAINER_INDEX of a container, by its role and its number in the role, from 0.

        Raises:
            NotFound: there is no such application, or it has no such role or number.
        """
        application_id = self._id(application_id)
        try:
            spec = self.submission(application_id).spec
        except Denied:
            # Only the owner can read what was submitted; a user in `view_acl` sees the started containers.
            for container in self.status(application_id).containers:
                if (container.role, container.role_index) == (role, number):
                    return container.index
            raise NotFound(f"{application_id} has no container {role}:{number} that was started") from None
        first = 0
        for one in spec.roles:
            if one.name == role:
                if number < one.instances:
                    return first + number
                count = one.instances
                raise NotFound(f"{application_id} has no container {role}_{number}: the role has {count}, from 0")
            first += one.instances
        names = ", ".join(one.name for one in spec.roles)
        raise NotFound(f"{application_id} has no role {role}, it has {names}")

    def index_of_rank(self, application_id: AnyApplication, rank: int) -> int:
        """Return the CONTAINER_INDEX of a rank: the number of a container in the role that decides.

        Raises:
            NotFound: there is no such application or rank.
            UsageError: several roles decide.
        """
        application_id = self._id(application_id)
        spec = self.submission(application_id).spec
        names = [role.name for role in spec.roles if spec.decides(role)]
        if len(names) != 1:
            example = f"--container {names[0]}_{rank}" if names else "--container"
            raise UsageError(f"{application_id} has no ranks: {' and '.join(names)} decide; use {example}")
        return self.index_of(application_id, names[0], rank)

    # ---- changing ----

    def submit(
        self,
        source: str | os.PathLike[str] | Snapshot | AppSpec | None = None,
        *,
        env: Mapping[str, str] | None = None,
        role_env: Mapping[str, Mapping[str, str]] | None = None,
        args: Sequence[str] | None = None,
        overrides: Mapping[str, object] | Overrides | None = None,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] | None = None,
        **fields: Any,
    ) -> Application:
        """Check, pack and submit an application; it runs independently of the caller.

        Args:
            source: the path of a properties file, what that was at another moment, or a spec. None: the application is
                described by keywords. The paths of a spec and of keywords are as in a file that lies in the working
                directory: relative ones begin there.
            env: variables of the program; they are added to those of a file, and override equal names.
            role_env: with a spec: role -> variables for its containers only, overriding equal names.
            args: arguments of the program, instead of a file's user_shell_args.
            overrides: values that override a file's, such as ``{"resources.containers": 2}``.
            say: called with the lines that ``dlapp-launcher`` prints.
            note: called with notices for the user.
            progress: called with the packed bytes of the workspace and the total.
            fields: the application, instead of a source: every key of ``[application]`` and ``[resources]``, some of
                them by shorter names (``workspace``, ``script``, ``exclude``), ``inputs``, ``outputs``, ``overwrite``,
                ``caches``, ``links``, ``roles``, ``services``, ``checkpoint`` and ``sweep``; docs/python.md has them.

        Raises:
            FileRefused: the file or spec has errors; the message lists all of them.
            SpecError: a keyword, an argument or a variable has an invalid value.
            UsageError: the resource request fits nowhere, args or overrides are given with a spec, an output may not be
                replaced, or the workspace is too large.
            NotFound: input is missing.
        """
        from dlapp.application.overrides import NO_OVERRIDES
        from dlapp.values.spec import AppSpec

        self.engine.prepare()
        if source is not None and (env or args is not None or role_env is not None):
            from dlapp.application.keywords import check_texts

            check_texts(args or (), env or {})
            if role_env is not None and not isinstance(source, AppSpec):
                raise UsageError("role_env is for a spec; a file has env.NAME in [role NAME]")
            for variables in (role_env or {}).values():
                check_texts((), variables)
        described: Source
        own_overrides = NO_OVERRIDES
        if source is None:
            from dlapp.application.build import Keywords

            if overrides is not None:
                raise UsageError("overrides are for a properties file; give the keywords themselves")
            described = Keywords(fields, env or {}, args or ())
        elif fields:
            raise UsageError(f"{', '.join(fields)}: keywords describe an application without a file or a spec")
        elif isinstance(source, AppSpec):
            from dlapp.application.description import UnresolvedSpec

            if args is not None or overrides is not None:
                raise UsageError("args and overrides are for a file; change a spec with dlapp.replace")
            described = UnresolvedSpec(source, env or {}, role_env or {})
        else:
            own_overrides = _overrides_of(overrides, env, args)
            described = os.fspath(source) if isinstance(source, os.PathLike) else source
        return self._launch(described, self.engine, own_overrides, say=say, note=note, progress=progress)

    def resume(
        self,
        application_id: AnyApplication,
        source: str | os.PathLike[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Application:
        """Submit an application that continues from the newest checkpoint of an ended one.

        Args:
            application_id: the id of the ended one; the caller must own it.
            source: the path of a properties file; None to reuse the recorded application, including the workspace.
            options: see `submit`. The values of variables are not recorded, so all of the application's variables must
                be in ``env``, or in the file.

        Raises:
            NotFound: there is no such application, no complete checkpoint of it, or no packed workspace any more.
            Denied: it is owned by another user.
            UsageError: it has not ended, has no checkpoints, another application already continues from them, or a
                variable has no value. See also `submit`.
        """
        return self._resubmit(application_id, source, resumes=True, **options)

    def again(
        self,
        application_id: AnyApplication,
        source: str | os.PathLike[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Application:
        """Submit an application again, from its beginning; it need not have ended.

        Args:
            application_id: the id of the caller's own application.
            source: the path of a properties file; None to reuse the recorded application, including the workspace.
            options: see `resume`, also for errors.
        """
        return self._resubmit(application_id, source, resumes=False, **options)

    def again_as_trial(
        self, application_id: AnyApplication, number: int, **options: Unpack[SubmitOptions]
    ) -> Application:
        """Submit the program of a sweep once, with the parameters of one of its trials; the output goes beside those
        of the sweep, to ``TARGET/trial-NUMBER``, unless the overrides name another target.

        Args:
            application_id: the id of the caller's own sweep; it need not have ended.
            number: the number of the trial.
            options: see `resume`, also for errors.

        Raises:
            NotFound: there is no such application, or trial.
            UsageError: it has no sweep.
        """
        trial = self.sweep(application_id).trial(number)
        return self._resubmit(application_id, None, resumes=False, trial=trial, **options)

    def _resubmit(
        self,
        application_id: AnyApplication,
        source: str | os.PathLike[str] | None,
        *,
        resumes: bool,
        trial: TrialSpec | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] | None = None,
        overrides: Mapping[str, object] | Overrides | None = None,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Application:
        from dlapp.launcher.origin import Origin

        own_overrides = _overrides_of(overrides, env, args)
        application_id = self._id(application_id)
        engine = self._engine_of(application_id)
        view = engine.view_json(str(application_id))
        self._check_owner(str(application_id), caller())
        recorded = engine.submission(application_id)
        engine.prepare()  # only now: it may remove an expired history
        stored = tuple(one["target"] if one["committed"] else one["partial"] for one in view["outputs"])
        origin = Origin(str(application_id), recorded, resumes, outputs=tuple(filter(None, stored)))
        if resumes:
            if view["state"] not in ENDED:
                raise UsageError(f"{application_id} is {view['state']}: only what has ended can be resumed")
            self._refuse_if_resumed(engine, origin)
        if source is not None:
            return self._launch(
                os.fspath(source), engine, own_overrides, say=say, note=note, progress=progress, origin=origin
            )
        if recorded.workspace_digest:
            try:
                archive = engine.find_archive(recorded.workspace_digest)
            except NotFound as error:
                raise NotFound(f"{error}; give FILE, whose workspace is packed") from error
            origin = origin._replace(archive=archive)
        if trial is None:
            described, own_overrides = origin.recorded_source(own_overrides)
        else:
            described, own_overrides = origin.recorded_trial(trial, own_overrides)
        return self._launch(described, engine, own_overrides, say=say, note=note, progress=progress, origin=origin)

    def _refuse_if_resumed(self, engine: Engine, origin: Origin) -> None:
        """Refuse to resume from checkpoints that an application which has not ended continues from. Raises
        UsageError.
        """
        for other in engine.views_json(limit=0):
            if other["state"] in ENDED or not (resumed := other.get("resumed_from")):
                continue
            if _checkpoints_of(engine, str(other["application_id"]), str(resumed)) == origin.checkpoints_of:
                text = f"{other['application_id']} continues from the same checkpoints, and is {other['state']}"
                text += "; wait for its end, or end it with dlapp-softkill"
                raise UsageError(text)

    def _launch(
        self,
        described: Source,
        engine: Engine,
        own_overrides: Overrides,
        *,
        say: Callable[[str], None],
        note: Callable[[str], None],
        progress: Callable[[int, int], None] | None,
        origin: Origin | None = None,
    ) -> Application:
        from dlapp.client.application import Application
        from dlapp.launcher.submit import launch

        application_id = launch(
            described,
            self.config,
            engine,
            say=say,
            note=note,
            progress=progress,
            overrides=own_overrides,
            leave_out=lambda spec: self._shell_input_patterns(spec, note),
            network_problem=self._network_problem,
            resolve=self.resolve_text,
            docker_policy=self._docker_policy,
            origin=origin,
        )
        return Application(self, application_id)

    def plan_json(
        self,
        source: str | os.PathLike[str],
        *,
        overrides: Overrides | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Return what a submission of a properties file would pack, request and wait for now; docs/json.md has the
        fields. Nothing is submitted.

        Args:
            source: the path of the file.
            overrides: values that override the file's.
            note: called with what is not packed because a shell copied it.

        Raises:
            FileRefused: the file has errors; the message lists all of them.
            UsageError: the resource request can never be met, or the workspace is too large.
        """
        from dlapp.application.overrides import NO_OVERRIDES
        from dlapp.launcher.plan import plan_submission

        return plan_submission(
            os.fspath(source),
            self.config,
            self.engine,
            overrides=overrides or NO_OVERRIDES,
            leave_out=lambda spec: self._shell_input_patterns(spec, note),
            network_problem=self._network_problem,
            resolve=self.resolve_text,
            docker_policy=self._docker_policy,
        )

    def wait(
        self,
        application_id: AnyApplication,
        on_change: Callable[[ApplicationView], None] = lambda _: None,
        *,
        timeout_s: float | None = None,
    ) -> ApplicationView:
        """Wait until an application has ended; return its last view.

        Args:
            on_change: called with the first view and each changed one.

        Raises:
            NotFound: there is no such application.
            TimedOut: it has not ended within ``timeout_s``; it continues to run.
        """
        for view in self.views(application_id, timeout_s=timeout_s):
            on_change(view)
        return view

    def views(self, application_id: AnyApplication, *, timeout_s: float | None = None) -> Iterator[ApplicationView]:
        """Yield the view of an application, and again each time that it differs, up to that of the end.

        Raises:
            NotFound: there is no such application.
            TimedOut: it has not ended within ``timeout_s``; it continues to run.
        """
        application_id = self._id(application_id)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        seen = None
        for polls in itertools.count():
            view = self.status(application_id)
            if view != seen:
                yield view
            if view.state.ended:
                return
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimedOut(f"{application_id} has not ended within {timeout_s:g} s, it is {view.state.value}")
            seen = view
            time.sleep(min(poll_pause_s(polls), left_s))

    def softkill(self, application_id: AnyApplication, *, user: str | None = None) -> str:
        """Request a soft-kill: SIGTERM, the grace time, output committed; return a line on what will happen.

        Args:
            user: the required owner; None to not check.

        Raises:
            NotFound: there is no such application.
            Denied: it is owned by another user, or not by ``user``.
        """
        application_id = self._id(application_id)
        self._check_can_end(application_id, user)
        return self._engine_of(application_id).soft_kill(application_id, caller())

    def kill(self, application_id: AnyApplication, *, user: str | None = None) -> str:
        """Kill an application; everything of it is removed on return. Arguments and errors as for `softkill`."""
        application_id = self._id(application_id)
        self._check_can_end(application_id, user)
        return self._engine_of(application_id).kill(application_id, caller())

    def release(self, application_id: AnyApplication) -> str:
        """Let a held application start; return a line on what will happen.

        Raises:
            NotFound: there is no such application.
            Denied: it is owned by another user.
        """
        application_id = self._id(application_id)
        return self._engine_of(application_id).release(application_id, caller())

    def remove(self, applications: AnyApplication | Iterable[AnyApplication]) -> None:
        """Remove one or more ended applications from this machine's history, with their logs.

        All are checked before the first is removed.

        Raises:
            NotFound: one does not exist.
            Denied: one is owned by another user.
            UsageError: one has not ended, or is on a cluster.
        """
        if isinstance(applications, str) or not isinstance(applications, Iterable):
            applications = [applications]
        ids = [self._id(one) for one in applications]
        for one in ids:
            self._engine_of(one).check_removal(one)
        for one in ids:
            self._engine_of(one).remove(one)

    # ---- internal ----

    def _id(self, application: AnyApplication) -> ApplicationId:
        from dlapp.values.ids import ApplicationId

        if isinstance(application, str):
            return self.resolve(application)
        return application if isinstance(application, ApplicationId) else application.application_id

    def _shell_input_patterns(self, spec: AppSpec, note: Callable[[str], None]) -> Sequence[str]:
        """Return gitignore patterns for the input that dlapp-shell copied into the workspace."""
        from dlapp.client.command_session import records_below
        from dlapp.client.shell.input_record import as_pattern, recorded_paths

        paths = recorded_paths(records_below(self.state_path), spec)
        for one in paths:
            note(f"{one} is not packed: dlapp-shell copied it, and the run fetches its own")
        return [as_pattern(one) for one in paths]

    def _network_problem(self, spec: AppSpec) -> str:
        """Return why an application's network is not available here; empty if it is.

        Raises:
            ConfigError: node.yaml of this machine is invalid.
        """
        if self.config.cluster != "local":
            return ""
        from dlapp.node_policy import node_policy

        policy = node_policy()  # with an invalid file no program runs, with or without Docker
        in_docker = [role for role in spec.roles if spec.image_of(role) is not None]
        networks = list(dict.fromkeys(filter(None, map(spec.network_of, in_docker))))
        if not networks:
            return ""
        from dlapp.net.dockerd import Dockerd, DockerRefused, DockerSilent
        from dlapp.runtime.docker.container import forbidden_network, missing_network

        dockerd = Dockerd(self.config.runtime.docker.host, DOCKER_TIMEOUT_S)
        for network in networks:
            try:
                missing = missing_network(dockerd, network)
            except (DockerRefused, DockerSilent):
                missing = ""  # dockerd may be running by the time the application starts
            if problem := missing or forbidden_network(policy.docker, network):
                return problem
        return ""

    def _docker_policy(self) -> DockerPolicy | None:
        """Return what the operator of the machine that runs the containers allows; None if it is not known here."""
        if self.config.cluster != "local":
            return None
        from dlapp.node_policy import node_policy

        return node_policy().docker

    def _engine_of(self, application_id: ApplicationId | str) -> Engine:
        """Return the engine that an application is on."""
        return self._engines.of(str(application_id))

    def _ensure_runner(self, engine: Engine) -> None:
        now = time.monotonic()
        if now - self._runner_checked_at.get(id(engine), float("-inf")) >= RUNNER_CHECK_INTERVAL_S:
            obstacle = engine.ensure_runner()
            if obstacle and obstacle.partition(";")[0] != self._noted.partition(";")[0]:
                self._note(obstacle)
                self._noted = obstacle
            self._runner_checked_at[id(engine)] = now

    def _check_can_end(self, application_id: ApplicationId, user: str | None) -> None:
        self._ensure_runner(self._engine_of(application_id))
        if user is not None:
            self._check_owner(str(application_id), user)

    def _check_owner(self, application_id: str, user: str) -> None:
        if (owner := self._owner_unless_of(application_id, user)) is not None:
            raise Denied(f"{application_id} is {owner}'s, not {user}'s")

    def is_own(self, application_id: AnyApplication) -> bool:
        """Return whether an application is the caller's, as the kernel or the cluster reports it. Raises NotFound."""
        return self._owner_unless_of(str(self._id(application_id)), caller()) is None

    def _owner_unless_of(self, application_id: str, user: str) -> str | None:
        """Return the owner of an application that is not ``user``'s; None if it is.

        The caller's own applications are also of the user that ``username`` in their files names. In another owner's
        application this name says nothing, as that owner wrote it.
        """
        owner = self._engine_of(application_id).owner(application_id)
        if user == owner or (owner == caller() and self.status_json(application_id)["username"] == user):
            return None
        return owner


def _overrides_of(
    overrides: Mapping[str, object] | Overrides | None, env: Mapping[str, str] | None, args: Sequence[str] | None
) -> Overrides:
    """Return the overrides of a file that the arguments of `Client.submit` describe."""
    from dlapp.application.overrides import OptionNames, Overrides

    if env or args is not None:
        from dlapp.application.keywords import check_texts

        check_texts(args or (), env or {})
    if isinstance(overrides, Overrides):
        return overrides
    settings = {key: str(value) for key, value in (overrides or {}).items()}
    words = None if args is None else tuple(args)
    return Overrides(settings, env or {}, words, OptionNames("overrides", "env", "args"))


def _checkpoints_of(engine: Engine, application_id: str, resumed: str) -> str:
    """Return the application whose checkpoints an application continues from.

    Args:
        engine: the engine of both.
        application_id: the id of the continuing one. On a cluster, what was submitted of it cannot be read before it
            starts.
        resumed: the application that it was resumed from.
    """
    from dlapp.values.ids import ApplicationId

    for one in (application_id, resumed):
        with contextlib.suppress(NotFound, Denied, UsageError):
            if found := engine.submission(ApplicationId.from_text(one)).checkpoints_of:
                return found
    return resumed


def _log_aggregation_left_s(view: ApplicationView) -> float:
    """Return how long from now the logs of an ended application may be unavailable."""
    return LOG_AGGREGATION_S + (view.finished_ms or 0) / 1000 - time.time()


def log_file_url(log_url: str, name: str) -> str:
    """Return the URL of one log file: a file, or a page that shows its last 4 KiB."""
    return f"{log_url}/{name}" if log_url.startswith("file:") else f"{log_url}/{name}/?start=-4096"


def caller() -> str:
    """Return the operating system's user."""
    from dlapp.system.owners import user_name

    return user_name(os.geteuid())


def _latest(views: list[dict[str, Any]], finished: int | None) -> list[dict[str, Any]]:
    """Merge views of several engines in one order, with a maximum number of ended ones."""
    views.sort(key=lambda one: int(one["submitted_ms"]))
    if finished is None:
        return views
    ended = [place for place, one in enumerate(views) if one["finished_ms"] is not None]
    left_out = set(ended[: max(0, len(ended) - finished)])
    return [one for place, one in enumerate(views) if place not in left_out]


def _check_container(container: int | ContainerId | None, view: ApplicationView, logs: Sequence[LogFiles]) -> None:
    """Refuse a container that the application cannot have; one that may still be started is waited for."""
    if isinstance(container, int):
        if view.total_containers and not 0 <= container < view.total_containers:
            count = view.total_containers
            raise NotFound(f"{view.application_id} has no container {container}: it has {count}, counted from 0")
    elif container is not None and all(log.container_id != container for log in logs):
        raise NotFound(f"{view.application_id} has no logs of {container}")


def _try_of(container: int | ContainerId | None, view: ApplicationView, try_number: int | None) -> int | None:
    """Return the requested try: each earlier container of an index has its own."""
    earlier = (old for one in view.containers for old in one.earlier if old.container_id == container)
    return try_number if try_number is not None else next((old.attempt for old in earlier), None)


def _check_try(try_number: int, view: ApplicationView, logs: Sequence[LogFiles]) -> None:
    """Refuse a try that no index has had, or that is not shown."""
    if not logs:
        most = max((one.attempt for one in view.containers), default=0)
        times = "once" if most == 1 else f"{most} times at the most"
        raise NotFound(f"{view.application_id} has no try {try_number}: each container was started {times}")


def _before_generation(
    generation: int | None, view: ApplicationView, logs: Sequence[LogFiles]
) -> list[tuple[LogFiles, int | None]]:
    """Yield each log, with the generation if its file names contain it: None means the last one.

    Raises:
        NotFound: no container has had such a generation yet.
    """
    if generation is None:
        return [(log, None) for log in logs]
    last = {one.index: one.generation for one in view.containers}
    if logs and all(generation > last.get(log.index, 0) for log in logs):
        most = max(last.get(log.index, 0) for log in logs)
        raise NotFound(f"{view.application_id} has no generation {generation}: its last one is {most}")
    return [(log, generation if generation < last.get(log.index, 0) else None) for log in logs]
