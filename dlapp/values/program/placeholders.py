"""Placeholders in the words of commands and arguments, ``{NAME}``, and their replacement by values.

    {app_id} {index} {role} {role_index} {role_size}    known to the ApplicationMaster
    {port} {address} {cache.NAME}                       known to the task
    {trial} {PARAMETER}                                 of a trial
    {hosts:ROLE} {master}                               known when the payload may start

Other text in braces is passed on unchanged: ``${index}`` is a shell's, ``{{index}}`` a template's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dlapp.system.text import lazy_pattern

APP_ID, MASTER, TRIAL = "app_id", "master", "trial"
HOSTS, CACHE = "hosts:", "cache."
"""Beginnings of the placeholders that are followed by the name of a role, or of a cache."""
OF_CONTAINER = ("index", "role", "role_index", "role_size", APP_ID)
OF_PORT = ("port", "address")
_NAME = r"\{([A-Za-z_][A-Za-z0-9_.:-]*)\}"
_PLACEHOLDER = lazy_pattern(rf"(?<![${{]){_NAME}|(?<!\$){_NAME}(?!\}})", re.ASCII)
"""A name in braces, neither after ``$`` nor in two pairs of braces; ``{"seed":{index}}`` has one."""


def names_in(word: str) -> Iterator[str]:
    """Yield the names in braces, known or not."""
    for found in _PLACEHOLDER.finditer(word):
        yield found[1] or found[2]


def substitute(words: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return words with the placeholders of some names replaced; what is put in is not searched again."""
    return tuple(
        _PLACEHOLDER.sub(lambda found: values.get(found[1] or found[2], found[0]), word) if "{" in word else word
        for word in words
    )
