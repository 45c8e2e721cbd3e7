"""Ids of applications, their attempts and containers, in YARN's text form on every engine.

Source: Hadoop's ApplicationId, ApplicationAttemptId and ContainerId, method toString; a container's epoch (``e17_``)
appears once the ResourceManager was restarted.
"""

from __future__ import annotations

import re

from dlapp.errors import UsageError
from dlapp.id_text import APPLICATION_ID
from dlapp.value import Value

_APPLICATION = re.compile(APPLICATION_ID, re.ASCII)
_CONTAINER = re.compile(r"container_(?:e(\d{1,10})_)?(\d{1,19})_(\d{4,10})_(\d{2,10})_(\d{6,13})", re.ASCII)
_TRIAL_PART = re.compile(r"trial_(0|[1-9][0-9]{0,8})_[1-9][0-9]{0,8}", re.ASCII)


class ApplicationId(Value):
    """Id of an application: ``application_1700000000000_0042``.

    Args:
        cluster_timestamp_ms: when the engine that issued the id began to count [ms since 1970].
        number: the engine's count, from 1.
    """

    cluster_timestamp_ms: int
    number: int

    def __lt__(self, other: ApplicationId) -> bool:
        return bool(type(self).record_key(self) < type(self).record_key(other))

    def __str__(self) -> str:
        return f"application_{self.cluster_timestamp_ms}_{self.number:04d}"

    @classmethod
    def from_text(cls, text: str) -> ApplicationId:
        """Parse an id.

        Raises:
            UsageError: the text is not an application id.
        """
        if not (match := _APPLICATION.fullmatch(text)):
            raise UsageError(f"{text!r} is not an application id like application_1700000000000_0042")
        return cls(int(match[1]), int(match[2]))


class ContainerId(Value):
    """Id of a container of one attempt: ``container_1700000000000_0042_01_000002``."""

    application: ApplicationId
    attempt: int
    number: int
    epoch: int = 0

    def __lt__(self, other: ContainerId) -> bool:
        return bool(type(self).record_key(self) < type(self).record_key(other))

    def __str__(self) -> str:
        epoch = f"e{self.epoch:02d}_" if self.epoch else ""
        app = self.application
        return f"container_{epoch}{app.cluster_timestamp_ms}_{app.number:04d}_{self.attempt:02d}_{self.number:06d}"

    @classmethod
    def from_text(cls, text: str) -> ContainerId:
        """Parse an id.

        Raises:
            UsageError: the text is not a container id.
        """
        if not (match := _CONTAINER.fullmatch(text)):
            raise UsageError(f"{text!r} is not a container id like container_1700000000000_0042_01_000002")
        return cls(ApplicationId(int(match[2]), int(match[3])), int(match[4]), int(match[5]), int(match[1] or 0))


def trial_part(number: int, try_number: int) -> str:
    """Return the name of the output part of one try of a trial; other parts have the id of their container."""
    return f"trial_{number}_{try_number}"


def is_trial_part(text: str) -> bool:
    """Return whether a text is a `trial_part`."""
    return _TRIAL_PART.fullmatch(text) is not None
