"""The text form of an application's id, for who needs no class of it: `dlapp.ids` takes long to load for a command.

Source: Hadoop's ApplicationId, method toString.
"""

from __future__ import annotations

import re

APPLICATION_ID = r"application_(\d{1,19})_(\d{4,10})"
"""A pattern with two groups: the cluster's time and the number."""
_APPLICATION = re.compile(APPLICATION_ID, re.ASCII)


def is_application_id(text: str) -> bool:
    """Return whether a text is an application's id, as `dlapp.ids.ApplicationId` writes it."""
    return _APPLICATION.fullmatch(text) is not None
