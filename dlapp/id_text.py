"""Text form of an application's id, for commands that need no class: `dlapp.values.ids` takes long to load.

Source: Hadoop's ApplicationId, method toString.
"""

from __future__ import annotations

import re

APPLICATION_ID = r"application_(\d{1,19})_(\d{4,10})"
"""A pattern with two groups: the cluster's time and the number."""
LAST = "last"
"""The name of the application that a user submitted last."""
_APPLICATION = re.compile(APPLICATION_ID, re.ASCII)
_ENDING = re.compile(r"(?:([a-z]+)_)?[0-9_]*[0-9]", re.ASCII)


def is_application_id(text: str) -> bool:
    """Return whether a text is an application's id, as `dlapp.values.ids.ApplicationId` writes it."""
    return _APPLICATION.fullmatch(text) is not None


def looks_like_id(text: str) -> bool:
    """Return whether ``text`` could name an application: ``last``, or digits at the end of ``application_…``."""
    if text == LAST:
        return True
    match = _ENDING.fullmatch(text)
    return match is not None and "application".endswith(match[1] or "")
