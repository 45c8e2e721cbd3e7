"""Test pages in Debian's Chromium: keyboard, contrast in both schemes of colours, a phone, paper, many containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.pages.log_page import PageQuery, log_page
from dlapp.pages.page import Extras, page
from dlapp.value import replace
from dlapp.values.messages import Phase
from dlapp.values.report import LinkView, State
from tests.pages.rendering import check_page
from tests.pages.samples import APP, START_MS, application, container, everything
from tests.services.http.browser import Browser, browser
from tests.services.polling import wait_until

__all__ = ["browser"]
pytestmark = pytest.mark.slow

NOW_MS = START_MS + 200_000
LONG = "a-name-without-any-place-to-break-it/" * 8


def opened(browser: Browser, directory: Path, text: str) -> None:
    path = directory / "page.html"
    path.write_text(text)
    browser.open(f"file://{path}")


def test_a_report_can_be_read_by_keyboard_in_the_dark_on_a_phone_and_on_paper(browser: Browser, tmp_path: Path) -> None:
    view = application(
        container(0, host=LONG), container(1, exit_code=1, message=LONG, metrics={LONG: 1.0}), diagnostics=LONG
    )
    opened(browser, tmp_path, page(view, NOW_MS, everything()))
    assert check_page(browser) > 3


def test_a_link_to_the_end_of_a_log_opens_it(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, page(application(container(1)), NOW_MS, everything()))
    is_open = "document.querySelector('#log-1').checkVisibility()"
    assert not browser.value(is_open)
    browser.value("document.querySelector('a[href=\"#log-1\"]').focus()")
    browser.press("Enter")
    wait_until(lambda: browser.value(is_open), what="the link is followed")


@pytest.mark.proves("page-text")
def test_a_page_runs_no_script_even_if_one_came_into_it(browser: Browser, tmp_path: Path) -> None:
    text = page(application(container(0)), NOW_MS, Extras(facts=[("a", "MARK")]))
    script = "<script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
    opened(browser, tmp_path, text.replace("MARK", script))
    assert browser.value("document.images.length") == 1
    assert browser.value("document.title") == f"resnet {APP}"


def test_a_live_page_and_a_log_pass_the_same_checks(browser: Browser, tmp_path: Path) -> None:
    one = container(0, phase=Phase.RUNNING, finished_ms=None, exit_code=None, log_url="http://node7:8042/x")
    view = application(one, state=State.RUNNING, cause=None, finished_ms=None, diagnosis=None)
    link = LinkView(name="tensorboard 0", url="http://10.0.0.1:6006/", container=0)
    opened(browser, tmp_path, page(replace(view, links=(link,)), NOW_MS, everything(), refreshes=False))
    check_page(browser)
    text = b"".join(b"line %d of a log\n" % number for number in range(500))
    opened(browser, tmp_path, log_page("resnet", one, PageQuery(0, "stderr", False), text, NOW_MS))
    check_page(browser)
    place = "(one => one.scrollHeight - one.clientHeight + one.scrollTop)(document.querySelector('.log'))"
    assert browser.value("document.querySelector('.log').scrollTop") == 0  # of a reversed column that is its end
    assert browser.value(place) > 1000


def test_a_timeline_of_a_thousand_containers_fits(browser: Browser, tmp_path: Path) -> None:
    browser.resize(1200)
    opened(browser, tmp_path, page(application(*map(container, range(1000))), NOW_MS))
    assert browser.value("document.querySelector('svg').getBBox().height") == 2000
    assert browser.value("document.querySelector('svg').getBoundingClientRect().height") == 2000
    assert browser.value("document.documentElement.scrollWidth") <= 1200
