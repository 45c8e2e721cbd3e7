"""dlapp-cache: input and caches of programs that this machine keeps, so that they are fetched once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dlapp.errors import EXIT_FAILED, NotFound, UsageError
from dlapp.tools.common import ActionChoice, command, json_option, note, print_json, say

if TYPE_CHECKING:
    from dlapp.client.machine.input_cache import CacheEntry, CacheLocation, InputCache
    from dlapp.client.machine.payload_caches import PayloadCaches

_KEY_WIDTH = 12
_PROGRAMS = "cache."
"""Prefix of the names of the caches of programs, as in a properties file."""
_ACTIONS = ("list", "clear", "pin", "unpin")


@command("dlapp-cache", example="dlapp-cache pin hdfs://namenode:8020/data/imagenet")
@click.argument("action", type=ActionChoice(_ACTIONS))
@click.argument("entries", metavar="[ENTRY]...", nargs=-1)
@click.option("--directory", metavar="DIR", help="Use the input cache in DIR, for example on a node of a cluster.")
@json_option("Print the answer as JSON.")
def main(action: str, entries: tuple[str, ...], directory: str | None, as_json: bool) -> int:
    """Show and change what this machine caches for your applications: input, and the caches of programs (cache.NAME).

    \b
    list              list the entries, least recently used first
    clear             remove cached input that is neither in use nor pinned
    clear ENTRY...    remove these entries, pinned or not
    pin ENTRY...      never remove these entries to make room
    unpin ENTRY...    undo pin

    ENTRY is the beginning of the name in list's first column, the source, or cache.NAME. Only input can be pinned, and
    a cache of programs is removed only if it is named.
    """
    if action == "list" and entries:
        raise UsageError("list takes no ENTRY")
    if action in ("pin", "unpin") and not entries:
        raise UsageError(f"{action} needs an ENTRY; dlapp-cache list shows them")
    from dlapp.client import Client
    from dlapp.client.machine.input_cache import open_input_cache
    from dlapp.client.machine.payload_caches import open_payload_caches

    client = Client()
    kept = open_input_cache(client.config, client.state_path, directory)
    programs = open_payload_caches(client.config, client.state_path) if directory is None else None
    if action == "list":
        return _list(kept, programs, as_json)
    names = [text.removeprefix(_PROGRAMS) for text in entries if text.startswith(_PROGRAMS)]
    if names and action != "clear":
        raise UsageError(f"{_PROGRAMS}{names[0]}: only input can be {action}ned")
    sources = [text for text in entries if not text.startswith(_PROGRAMS)]
    chosen = list({one.key: one for text in sources for one in kept.find(text)}.values())
    if action == "clear":
        return _clear(kept, chosen, programs, names, as_json=as_json)
    for one in chosen:
        kept.pin(one.key, action == "pin")
    if as_json:
        print_json({"directory": kept.place.directory, "entries": [one.key for one in chosen]})
    else:
        say(*(f"{_name(one.key, one.source)}: {action}ned" for one in chosen))
    return 0


def _list(kept: InputCache, programs: PayloadCaches | None, as_json: bool) -> int:
    found, caches = kept.entries(), programs.entries() if programs else []
    if as_json:
        answer: dict[str, object] = {**_about(kept.place), "entries": [one._asdict() for one in found]}
        if programs:
            answer["programs"] = {**_about(programs.place), "caches": [one._asdict() for one in caches]}
        print_json(answer)
        return 0
    from dlapp.system.text import human_size
    from dlapp.tools.display.view import NOTHING, local_time, table

    rows = [
        (
            one.key[:_KEY_WIDTH],
            human_size(one.size_bytes),
            str(one.files),
            local_time(one.used_ms).partition(".")[0],
            ", ".join(filter(None, (one.use, "pinned" if one.pinned else ""))),
            one.source,
        )
        for one in found
    ]
    for cache in caches:
        used, use = local_time(cache.used_ms).partition(".")[0], "in use" if cache.in_use else ""
        rows.append((_PROGRAMS + cache.name, human_size(cache.size_bytes), NOTHING, used, use, "programs"))
    if rows:
        say(*table(("ENTRY", "SIZE", "FILES", "LAST USED", "STATE", "SOURCE"), rows))
    count = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    note(f"{count}, {_share(sum(one.room_bytes for one in found), kept.place)}")
    if programs:
        note(f"caches of programs: {_share(sum(cache.size_bytes for cache in caches), programs.place)}")
    return 0


def _about(place: CacheLocation) -> dict[str, object]:
    return {"directory": place.directory, "limit_bytes": place.limit_bytes}


def _share(size_bytes: int, place: CacheLocation) -> str:
    from dlapp.system.text import human_size

    return f"{human_size(size_bytes)} of {human_size(place.limit_bytes)}, in {place.directory}"


def _clear(
    kept: InputCache,
    chosen: Sequence[CacheEntry],
    programs: PayloadCaches | None,
    names: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Remove entries, and print which.

    Args:
        kept: cached input.
        chosen: the entries of it that the user named.
        programs: caches of programs; None: there are none.
        names: those of them that the user named. If nothing is named, all input is cleared.
        as_json: print it as JSON.
    """
    from dlapp.locations import shown
    from dlapp.system.text import human_size

    caches = {one.name: one for one in programs.entries(names)} if programs and names else {}
    if missing := [name for name in names if name not in caches]:
        raise NotFound(f"{shown(_PROGRAMS + missing[0])}: there is no such cache (dlapp-cache list shows them)")
    is_named = bool(chosen or names)
    if not is_named:
        kept.sweep()
        chosen = kept.entries()
    removed: list[tuple[str, str, int]] = []
    stays: list[tuple[str, str, str]] = []
    for one in chosen:
        if one.pinned and not is_named:
            stays.append((one.key, one.source, "pinned"))
        elif kept.remove(one.key):
            removed.append((one.key, one.source, one.size_bytes))
        else:
            stays.append((one.key, one.source, "in use"))
    for name in dict.fromkeys(names):
        if programs is not None and programs.remove(name):
            removed.append((_PROGRAMS + name, "programs", caches[name].size_bytes))
        else:
            stays.append((_PROGRAMS + name, "programs", "in use"))
    if as_json:
        freed_bytes = sum(size_bytes for _, _, size_bytes in removed)
        keys = [key for key, _, _ in removed]
        left = [{"key": key, "source": source, "why": why} for key, source, why in stays]
        print_json({"directory": kept.place.directory, "removed": keys, "freed_bytes": freed_bytes, "kept": left})
    else:
        if removed:
            say(*(f"{_name(key, source)}: removed, {human_size(size)}" for key, source, size in removed))
        for key, source, why in stays:
            note(f"{_name(key, source)}: kept, it is {why}")
    return EXIT_FAILED if is_named and stays else 0


def _name(key: str, source: str) -> str:
    return f"{key if key.startswith(_PROGRAMS) else key[:_KEY_WIDTH]}  {source}"
