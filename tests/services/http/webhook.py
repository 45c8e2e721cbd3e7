"""A webhook of a user, which takes notifications, or not for a while."""

from __future__ import annotations

import json

from tests.services.http.http_server import Answer, Request


class Hook:
    """A webhook that takes events, or not while ``is_up`` is false.

    On a cluster that tests share, a command also delivers what the application of an earlier test left: events are
    looked for by their application.
    """

    def __init__(self) -> None:
        self.is_up = True
        self._tries: list[dict[str, object]] = []
        self._taken: list[dict[str, object]] = []

    def answer(self, request: Request) -> Answer:
        """Take an event."""
        found = json.loads(request.body)
        self._tries.append(found)
        if not self.is_up:
            return Answer(503)
        self._taken.append(found)
        return Answer(200)

    def tries(self, application: str) -> list[object]:
        """Return the events of an application that were sent, as often as they were."""
        return [attempt["event"] for attempt in self._tries if attempt["application_id"] == application]

    def received(self, *applications: str) -> list[dict[str, object]]:
        """Return what was taken of applications."""
        return [view for view in self._taken if view["application_id"] in applications]

    def events(self, *applications: str) -> list[object]:
        """Return the events of applications that were taken, each once."""
        return list({item["id"]: item["event"] for item in self.received(*applications)}.values())
