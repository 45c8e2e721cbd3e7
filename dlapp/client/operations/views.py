"""The operations of a client that read views of applications, for commands: no class of values is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.client.operations.connections import Connections
from dlapp.cluster import LOG_NAMES
from dlapp.errors import Unreachable

if TYPE_CHECKING:
    from dlapp.cluster.engine import Engine
    from dlapp.cluster.view_forms import ViewForms

FINISHED_SHOWN = 20


class Views(Connections):
    """Reader of the views of applications."""

    def views_of_all(
        self,
        *,
        user: str | None = None,
        everybody: bool = False,
        finished: int | None = FINISHED_SHOWN,
        wanted: Callable[[dict[str, Any]], bool] | None = None,
        unanswered: Callable[[Unreachable], None] | None = None,
        unread: Callable[[str], None] = lambda _: None,
    ) -> Sequence[ViewForms]:
        """Return the views of applications on all engines that the caller uses, oldest first.

        Args:
            user, everybody, finished: see `dlapp.client.Client.list`.
            wanted: selects views by their JSON; None for all.
            unanswered: called with an engine that is not the configured one and does not answer; None to raise the
                error.
            unread: called with each of your applications whose receipt could not be read, or not in a bounded time.
        """
        from dlapp.cluster.view_forms import ViewForms

        limit = finished if wanted is None else None
        by_engine: list[tuple[Engine, list[dict[str, Any]]]] = []
        for engine in (self.engine, *self._engines.used()[1:]):
            self._ensure_runner(engine)
            try:
                views = engine.views(everybody=everybody, user=user, limit=limit)
            except Unreachable as error:
                if unanswered is None or engine is self.engine:
                    raise
                unanswered(error)
                continue
            by_engine.append((engine, [one.json for one in views]))
        found = [one for _, those in by_engine for one in those]
        shown = _latest(found if wanted is None else list(filter(wanted, found)), finished)
        kept = {id(one) for one in shown}
        for engine, those in by_engine:
            for application_id in engine.add_receipts([one for one in those if id(one) in kept]):
                unread(application_id)
        return [ViewForms(json=one) for one in shown]

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


def _latest(views: list[dict[str, Any]], finished: int | None) -> list[dict[str, Any]]:
    """Merge views of several engines in one order, with a maximum number of ended ones."""
    views.sort(key=lambda one: int(one["submitted_ms"]))
    if finished is None:
        return views
    ended = [place for place, one in enumerate(views) if one["finished_ms"] is not None]
    left_out = set(ended[: max(0, len(ended) - finished)])
    return [one for place, one in enumerate(views) if place not in left_out]


def log_file_url(log_url: str, name: str) -> str:
    """Return the URL of one log file: a file, or a page that shows its last 4 KiB."""
    return f"{log_url}/{name}" if log_url.startswith("file:") else f"{log_url}/{name}/?start=-4096"
