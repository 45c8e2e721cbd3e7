"""The Python API: what the commands do, for scripts, notebooks and schedulers.

    from dlapp.client import Client

    client = Client()
    application = client.submit("dl_app.properties")
    view = client.wait(application)
    print(view.final_status, [one.exit_code for one in view.containers])

Every call may be repeated but `submit`, which starts a new application each time. A `Client` keeps no connection and
needs no closing; it belongs to one thread at a time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dlapp.errors import (
    EXIT_FAILED,
    EXIT_KILLED,
    EXIT_TIMED_OUT,
    Denied,
    NotFound,
    TimedOut,
    UsageError,
)
from dlapp.ids import ApplicationId, ContainerId
from dlapp.report import ApplicationView, Cause, FinalStatus, State

if TYPE_CHECKING:
    from dlapp.client.logs import LogPiece
    from dlapp.cluster import LogFiles as LogFiles
    from dlapp.cluster.local.client_side import LocalEngine
    from dlapp.config import Config
    from dlapp.spec import AppSpec

LAST = "last"
FINISHED_SHOWN = 20
LOOK_EVERY_S = 0.1
TEND_EVERY_S = 5.0
"""While somebody waits, a runner that died is replaced within this time."""

_FULL = re.compile(r"application_\d{1,19}_\d{4,10}", re.ASCII)
_ENDING = re.compile(r"(?:([a-z]+)_)?[0-9_]*[0-9]", re.ASCII)


class Client:
    """What one user can do with applications.

    Args:
        config: None: the configuration files and DLAPP_* variables of the process.
        cluster: the engine, in place of the one that the configuration names.
        engine: one that is there already; None: made as configured.

    Raises:
        ConfigError: the configuration is refused.
        UsageError: it names an engine that there is not.
    """

    def __init__(
        self, config: Config | None = None, *, cluster: str | None = None, engine: LocalEngine | None = None
    ) -> None:
        if cluster == "yarn":
            raise UsageError("cluster yarn is not built yet: what there is is local")
        if config is None or cluster is not None:
            from dlapp.config import load_config

            texts = dict(config.texts) if config else {}
            config = load_config({**texts, "cluster": cluster} if cluster is not None else texts)
        if engine is None:
            from dlapp.cluster.local.client_side import LocalEngine

            engine = LocalEngine(config)
        self.config, self.engine = config, engine
        self._tended_at = float("-inf")

    # ---- naming an application ----

    def resolve(self, text: str, *, user: str | None = None) -> ApplicationId:
        """Find the application that ``text`` names: ``last``, a whole id, or the ending of just one.

        Args:
            user: whose application it must be; None: the caller's, or anybody's whose ending is given.

        Raises:
            UsageError: several end like this (it names them), or no id can.
            NotFound: none does.
            Denied: it is not ``user``'s.
        """
        if _FULL.fullmatch(text):
            application_id = ApplicationId.from_text(text)
            if user is not None:
                _check_owner(self.status(application_id), user)
            return application_id
        if not looks_like_id(text):
            raise UsageError(f"{text!r} is neither 'last' nor an application's id nor the ending of one")
        if text == LAST:
            mine = self.engine.views(user=user) if user else self.engine.views()
            if not mine:
                whose = f"{user} has" if user else "you have"
                raise NotFound(f"{whose} no application yet (dlapp-launcher FILE starts one)")
            return mine[-1].application_id
        found = matching(text, self.engine.views()) or matching(text, self.engine.views(everybody=True))
        if not found:
            raise NotFound(f"no application's id ends with {text!r} (dlapp-list shows yours)")
        if len(found) > 1:
            names = ", ".join(str(view.application_id) for view in found)
            raise UsageError(f"{len(found)} applications end with {text!r}: {names}")
        if user is not None:
            _check_owner(found[0], user)
        return found[0].application_id

    # ---- looking ----

    def status(self, application_id: ApplicationId) -> ApplicationView:
        """What is known of an application now. Raises NotFound."""
        self._tend()
        return self.engine.view(application_id)

    def list(
        self, *, user: str | None = None, everybody: bool = False, finished: int | None = FINISHED_SHOWN
    ) -> Sequence[ApplicationView]:
        """Applications, oldest first: the caller's, one user's, or everybody's.

        Args:
            finished: how many that have ended, the latest of them; None: all.
        """
        self._tend()
        return shortened(self.engine.views(everybody=everybody, user=user), finished)

    def status_and_logs(self, application_id: ApplicationId) -> tuple[ApplicationView, Sequence[LogFiles]]:
        """`status` and `log_files` of one moment."""
        view = self.status(application_id)
        return view, self.engine.logs(application_id)

    def dashboard_urls(self, application_id: ApplicationId) -> tuple[str, str]:
        """Where a browser finds the application: while it runs, and after it is completed."""
        return self.engine.dashboard_urls(application_id)

    def log_files(self, application_id: ApplicationId) -> Sequence[LogFiles]:
        """Where the logs of all containers that ran are, in CONTAINER_INDEX order. Raises NotFound."""
        return self.engine.logs(application_id)

    def logs(
        self,
        application_id: ApplicationId,
        *,
        container: int | ContainerId | None = None,
        streams: Sequence[str] = ("stdout", "stderr"),
        last_lines: int | None = None,
        follow: bool = False,
        on_change: Callable[[ApplicationView], None] = lambda _: None,
    ) -> Iterator[LogPiece]:
        """What the payloads print, as bytes; with ``follow`` until the application has ended.

        Args:
            container: CONTAINER_INDEX or id of the only one wanted; None: all.
            streams: of ``stdout``, ``stderr`` and ``dlapp.log`` (our own words on the container).
            last_lines: begin with so many lines of each stream; None: with all.
            on_change: told of every new view while following.

        Raises:
            NotFound: there is no such application, or (it can be known) no such container.
        """
        from dlapp.client.logs import read_logs

        latest = self.status(application_id)

        def look() -> tuple[bool, Sequence[LogFiles]]:
            nonlocal latest
            seen, latest = latest, self.status(application_id)
            if latest != seen:
                on_change(latest)
            logs = self.engine.logs(application_id)
            _check_container(container, latest, logs)
            return latest.state.ended, logs

        on_change(latest)
        wanted = (lambda log: container in (None, log.index, log.container_id)) if container is not None else None
        return read_logs(
            look,
            streams=streams,
            wanted=wanted or (lambda _: True),
            last_lines=last_lines,
            follow=follow,
            pause=lambda: time.sleep(LOOK_EVERY_S),
        )

    # ---- doing ----

    def spec(self, path: str) -> AppSpec:
        """The spec that a properties file stands for here, defaults resolved.

        Raises:
            FileRefused: the file has faults; all are named.
        """
        return self.spec_and_env(path)[0]

    def spec_and_env(self, path: str) -> tuple[AppSpec, dict[str, str]]:
        """`spec`, and the values of the variables that the file sets."""
        from dlapp.launcher.application import read_application

        application = read_application(path, self.config, self.engine.info())
        return application.spec, application.env

    def submit(
        self,
        path: str,
        *,
        say: Callable[[str], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ApplicationId:
        """Check, pack and submit what a properties file describes; it runs whatever becomes of the caller.

        Args:
            say: told the lines that ``dlapp-launcher`` prints.
            note: told what the user should know beside them.
            progress: told how many bytes of the workspace are packed, of how many.

        Raises:
            FileRefused: the file has faults; all are named.
            UsageError: the ask fits nowhere, an output may not be replaced, the workspace is too large.
            NotFound: input is missing.
        """
        from dlapp.launcher.submit import launch

        return launch(path, self.config, self.engine, say=say, note=note, progress=progress)

    def wait(
        self,
        application_id: ApplicationId,
        on_change: Callable[[ApplicationView], None] = lambda _: None,
        *,
        timeout_s: float | None = None,
    ) -> ApplicationView:
        """Wait until an application has ended; its last view.

        Args:
            on_change: told the first view and each that differs from the one before.

        Raises:
            NotFound: there is no such application.
            TimedOut: it has not ended within ``timeout_s``; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        seen = None
        while True:
            view = self.status(application_id)
            if view != seen:
                on_change(view)
            if view.state.ended:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(f"{application_id} has not ended within {timeout_s:g} s, it is {view.state.value}")
            seen = view
            time.sleep(LOOK_EVERY_S)

    def softkill(self, application_id: ApplicationId, *, user: str | None = None) -> str:
        """Ask for a soft-kill: SIGTERM, the grace time, output committed; a line on what comes of it.

        Args:
            user: whose it must be; None: not asked.

        Raises:
            NotFound: there is no such application.
            Denied: it is another user's, or not ``user``'s.
        """
        self._check_before_the_end(application_id, user)
        return self.engine.soft_kill(application_id, caller())

    def kill(self, application_id: ApplicationId, *, user: str | None = None) -> str:
        """Kill an application; nothing of it is left after the return. Arguments and errors as for `softkill`."""
        self._check_before_the_end(application_id, user)
        return self.engine.kill(application_id, caller())

    # ---- within ----

    def _tend(self) -> None:
        now = time.monotonic()
        if now - self._tended_at >= TEND_EVERY_S:
            self.engine.tend()
            self._tended_at = now

    def _check_before_the_end(self, application_id: ApplicationId, user: str | None) -> None:
        view = self.status(application_id)
        if user is not None:
            _check_owner(view, user)


def exit_code(view: ApplicationView) -> int:
    """The exit code that speaks of an application's end: 0, 1 (failed), 6 (timed out) or 7 (killed)."""
    by_cause = {
        Cause.SUCCEEDED: 0,
        Cause.FAILED: EXIT_FAILED,
        Cause.TIMED_OUT: EXIT_TIMED_OUT,
        Cause.SOFT_KILLED: EXIT_KILLED,
        Cause.KILLED: EXIT_KILLED,
    }
    if view.cause is not None:
        return by_cause[view.cause]
    if view.state is State.KILLED or view.final_status is FinalStatus.KILLED:
        return EXIT_KILLED
    return 0 if view.final_status is FinalStatus.SUCCEEDED else EXIT_FAILED


def looks_like_id(text: str) -> bool:
    """Whether ``text`` could name an application: ``last``, or digits at the end of ``application_…``."""
    if text == LAST:
        return True
    match = _ENDING.fullmatch(text)
    return match is not None and "application".endswith(match[1] or "")


def matching(ending: str, views: Iterable[ApplicationView]) -> list[ApplicationView]:
    """The views of the applications whose id ends with ``ending``."""
    return [view for view in views if str(view.application_id).endswith(ending)]


def shortened(views: Sequence[ApplicationView], finished: int | None) -> list[ApplicationView]:
    """``views`` with only the last ``finished`` of those that have ended; the order stays."""
    ended = [view for view in views if view.state.ended]
    dropped = set() if finished is None else {view.application_id for view in ended[: max(0, len(ended) - finished)]}
    return [view for view in views if view.application_id not in dropped]


def caller() -> str:
    """The operating system's user."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _check_owner(view: ApplicationView, user: str) -> None:
    if user not in (view.submitter, view.username):
        raise Denied(f"{view.application_id} is {view.username}'s, not {user}'s")


def _check_container(container: int | ContainerId | None, view: ApplicationView, logs: Sequence[LogFiles]) -> None:
    """Refuse a container that the application cannot have; one that may still come is waited for."""
    if isinstance(container, int):
        if view.total_containers and not 0 <= container < view.total_containers:
            count = view.total_containers
            raise NotFound(f"{view.application_id} has no container {container}: it has {count}, counted from 0")
    elif container is not None and all(log.container_id != container for log in logs):
        raise NotFound(f"{view.application_id} has no logs of {container}")
