"""Page with the end of one log of a running container, and the queries of an ApplicationMaster's pages.

The whole state is in the query, so that links work behind any proxy: ``?log=3.stderr&still=1``.
"""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

from dlapp.pages.page import NO_REFRESH, document, refresh_line
from dlapp.pages.report import plain_text
from dlapp.pages.timeline import container_name
from dlapp.values.report import ContainerView

LOG_BYTES = 64 << 10
"""Size of the end of a log that the page shows."""
_STREAMS = ("stdout", "stderr")
_LOG = re.compile(rf"log=(\d{{1,7}})\.({'|'.join(_STREAMS)})", re.ASCII)


class PageQuery(NamedTuple):
    """Query of a page: for the application, or for a log of the container with CONTAINER_INDEX ``container``.

    Args:
        container: None for the application's page.
        refreshes: whether a browser reloads the page by itself.
    """

    container: int | None = None
    stream: str = ""
    refreshes: bool = True

    @classmethod
    def of_path(cls, path: str) -> PageQuery:
        """Parse the query of a request's path. Unknown parts are ignored."""
        words = path.partition("?")[2].split("&")
        found = next(filter(None, map(_LOG.fullmatch, words)), None)
        refreshes = NO_REFRESH not in words
        return cls(refreshes=refreshes) if found is None else cls(int(found[1]), found[2], refreshes)


def log_page(appname: str, one: ContainerView, query: PageQuery, found: bytes | str, now_ms: int) -> str:
    """Return the page.

    Args:
        appname: the name of the application.
        one: the container.
        query: the query of the request.
        found: the end of the log; text: why it cannot be shown.
        now_ms: the time [ms since 1970].
    """
    name = f"{query.stream} of container {container_name(one)}"
    refreshes = query.refreshes and one.finished_ms is None
    other = next(stream for stream in _STREAMS if stream != query.stream)
    links = (
        f'<span><a href="?">all of {escape(appname) or "the application"}</a> · '
        f'<a href="?log={one.index}.{other}">{other}</a></span>'
    )
    if isinstance(found, str):
        text = f'<p class="note">{escape(found)}</p>'
    else:
        text = (
            f'<div class="log" tabindex="0" role="region" aria-label="{query.stream}"><pre>'
            f"{escape(plain_text(found))}</pre></div>"
            if found
            else '<p class="note">nothing was printed so far</p>'
        )
    more = f"its last {LOG_BYTES >> 10} KiB" if len(found) >= LOG_BYTES else ""
    return document(
        f"{name}, {appname}",
        f"{refresh_line(refreshes, f'log={query.container}.{query.stream}', now_ms, links)}"
        f'<main><h1>{escape(name)}</h1><p class="soft">{escape(", ".join(filter(None, (one.host, more))))}</p>'
        f"{text}</main>",
        refreshes=refreshes,
    )
