"""dlapp-cache: input that this machine keeps, so that it is fetched once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dlapp.errors import EXIT_FAILED, UsageError
from dlapp.tools.common import command, json_option, note, print_json, say

if TYPE_CHECKING:
    from dlapp.client.input_cache import CacheEntry, InputCache

_KEY_WIDTH = 12
_ACTIONS = ("list", "clear", "pin", "unpin")


@command("dlapp-cache", example="dlapp-cache pin hdfs://namenode:8020/data/imagenet")
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("entries", metavar="[ENTRY]...", nargs=-1)
@click.option("--directory", metavar="DIR", help="Use the cache in DIR, for example on a node of a cluster.")
@json_option("Print the answer as JSON.")
def main(action: str, entries: tuple[str, ...], directory: str | None, as_json: bool) -> int:
    """Show and change the input that this machine caches for your applications.

    \b
    list              list the entries, least recently used first
    clear             remove all entries that are neither in use nor pinned
    clear ENTRY...    remove these entries, pinned or not
    pin ENTRY...      never remove these entries to make room
    unpin ENTRY...    undo pin

    ENTRY is the beginning of the name in list's first column, or the source.
    """
    if action == "list" and entries:
        raise UsageError("list takes no ENTRY")
    if action in ("pin", "unpin") and not entries:
        raise UsageError(f"{action} needs an ENTRY; dlapp-cache list shows them")
    from dlapp.client import Client
    from dlapp.client.input_cache import open_input_cache

    client = Client()
    kept = open_input_cache(client.config, client.state_path, directory)
    if action == "list":
        return _list(kept, as_json)
    chosen = list({one.key: one for text in entries for one in kept.find(text)}.values())
    if action == "clear":
        return _clear(kept, chosen, named=bool(entries), as_json=as_json)
    for one in chosen:
        kept.pin(one.key, action == "pin")
    if as_json:
        print_json({"directory": kept.place.directory, "entries": [one.key for one in chosen]})
    else:
        say(*(f"{_name(one)}: {action}ned" for one in chosen))
    return 0


def _list(kept: InputCache, as_json: bool) -> int:
    found = kept.entries()
    if as_json:
        entries = [one._asdict() for one in found]
        print_json({"directory": kept.place.directory, "limit_bytes": kept.place.limit_bytes, "entries": entries})
        return 0
    from dlapp.system.text import human_size
    from dlapp.tools.display.view import local_time, table

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
    if rows:
        say(*table(("ENTRY", "SIZE", "FILES", "LAST USED", "STATE", "SOURCE"), rows))
    taken = human_size(sum(one.room_bytes for one in found))
    count = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    note(f"{count}, {taken} of {human_size(kept.place.limit_bytes)}, in {kept.place.directory}")
    return 0


def _clear(kept: InputCache, chosen: Sequence[CacheEntry], *, named: bool, as_json: bool) -> int:
    from dlapp.system.text import human_size

    if not named:
        kept.sweep()
        chosen = kept.entries()
    removed: list[CacheEntry] = []
    stays: list[tuple[CacheEntry, str]] = []
    for one in chosen:
        if one.pinned and not named:
            stays.append((one, "pinned"))
        elif kept.remove(one.key):
            removed.append(one)
        else:
            stays.append((one, "in use"))
    if as_json:
        freed_bytes = sum(one.size_bytes for one in removed)
        keys = [one.key for one in removed]
        left = [{"key": one.key, "source": one.source, "why": why} for one, why in stays]
        print_json({"directory": kept.place.directory, "removed": keys, "freed_bytes": freed_bytes, "kept": left})
    else:
        if removed:
            say(*(f"{_name(one)}: removed, {human_size(one.size_bytes)}" for one in removed))
        for one, why in stays:
            note(f"{_name(one)}: kept, it is {why}")
    return EXIT_FAILED if named and stays else 0


def _name(one: CacheEntry) -> str:
    return f"{one.key[:_KEY_WIDTH]}  {one.source}"
