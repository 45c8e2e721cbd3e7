"""A webhook of a user, which takes notifications, or not for a while."""

from __future__ import annotations

import json

from tests.services.http_server import Answer, Request


class Hook:
    """A webhook that takes events, or not while ``is_up`` is false."""

    def __init__(self) -> None:
        self.is_up = True
        self.tries: list[str] = []
        self.taken: list[dict[str, object]] = []

    def answer(self, request: Request) -> Answer:
        """Take an event."""
        found = json.loads(request.body)
        self.tries.append(found["event"])
        if not self.is_up:
            return Answer(503)
        self.taken.append(found)
        return Answer(200)

    def events(self) -> list[object]:
        """Return what was taken, each event once."""
        return list({one["id"]: one["event"] for one in self.taken}.values())
