"""Test the calls to several ResourceManagers of which none is active, with servers of a few lines and a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dlapp.cluster.yarn.client.local_files import node_cache
from dlapp.cluster.yarn.client.rest import ACTIVE_TIMEOUT_S, YarnRest
from dlapp.errors import EXIT_UNREACHABLE, Unreachable
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.login import Login
from dlapp.system import waits
from dlapp.values.ids import ApplicationId
from dlapp.values.report import State
from tests.services.http.http_server import Answer, Request, as_json, http_server

NOBODY = "http://127.0.0.1:1"
APP = ApplicationId(1700000000000, 7)


class Clock:
    """A clock that only sleep moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Manager:
    """A ResourceManager that is active from its n-th question on, and counts the questions."""

    def __init__(self) -> None:
        self.standby_for = 0
        self.forgets_for = 0
        self.is_away = False
        self.questions = 0
        self.url = ""


@contextmanager
def serving() -> Iterator[Manager]:
    one = Manager()

    def answer(request: Request) -> Answer | None:
        if request.path.startswith("/conf"):
            return Answer(404, b"<html>not found</html>")
        if "/apps/" in request.path:
            if one.is_away:
                return None
            one.forgets_for -= 1
            if one.forgets_for >= 0:
                return as_json({"RemoteException": {"message": "not found", "javaClassName": "NotFoundException"}}, 404)
            return as_json({"app": {"id": str(APP), "state": "RUNNING", "finalStatus": "UNDEFINED"}})
        one.standby_for -= 1
        one.questions += 1
        state = "STANDBY" if one.standby_for >= 0 else "ACTIVE"
        return as_json({"clusterInfo": {"haState": state, "resourceManagerVersion": "3.4.2"}})

    with http_server(answer) as one.url:
        yield one


@pytest.fixture
def manager() -> Iterator[Manager]:
    with serving() as one:
        yield one


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_resourcemanager_that_becomes_active_is_waited_for(manager: Manager, clock: Clock) -> None:
    manager.standby_for = 5
    with YarnRest([NOBODY, manager.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        assert rest.info()["haState"] == "ACTIVE"
    assert 0 < clock.now_s < ACTIVE_TIMEOUT_S


def test_a_standby_resourcemanager_that_served_before_is_tried_again(manager: Manager, clock: Clock) -> None:
    with YarnRest([NOBODY, manager.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        assert rest.active_url() == manager.url
        manager.standby_for = 3
        assert rest.info()["haState"] == "ACTIVE"


def test_of_two_active_resourcemanagers_the_one_that_knows_an_application_counts(
    manager: Manager, clock: Clock
) -> None:
    manager.forgets_for = 1000
    with serving() as other, YarnRest([manager.url, other.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        assert rest.report(APP).state is State.RUNNING
        assert rest.active_url() == other.url


@pytest.mark.parametrize("forgets_for", [1, 2])
def test_an_unknown_application_is_checked_again_at_several_resourcemanagers(
    manager: Manager, clock: Clock, forgets_for: int
) -> None:
    manager.forgets_for = forgets_for
    with YarnRest([NOBODY, manager.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        if forgets_for == 1:
            assert rest.report(APP).state is State.RUNNING
        else:
            with pytest.raises(ApplicationNotFound):
                rest.report(APP)
    with YarnRest([manager.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        manager.forgets_for = 1
        with pytest.raises(ApplicationNotFound):
            rest.report(APP)


def test_the_last_active_resourcemanager_is_tried_first(manager: Manager, clock: Clock) -> None:
    """Ask three times for the active one of two, each time as a new command: only the first asks the standby one.

    Then the other one becomes active, and the first command that finds it does not ask it alone. A file that names none
    of the two has no effect.
    """

    def ask() -> tuple[int, int]:
        before = manager.questions, other.questions
        with YarnRest(
            node_cache.active_first(urls),
            Login("u"),
            keep_active=partial(node_cache.keep_active, urls),
            clock=clock,
            sleep=clock.sleep,
        ) as rest:
            rest.active_url()
        return manager.questions - before[0], other.questions - before[1]

    with serving() as other:
        urls = [manager.url, other.url]
        manager.standby_for = 1000
        assert [ask() for _ in range(3)] == [(1, 1), (0, 1), (0, 1)]
        manager.standby_for, other.standby_for = 0, 1000
        assert [ask() for _ in range(2)] == [(1, 1), (1, 0)]
        (file,) = Path(node_cache.directory()).iterdir()
        file.write_bytes(NOBODY.encode() + b"\xff")
        assert node_cache.active_first(urls) == urls
        assert ask() == (1, 0)
    node_cache.keep_active([NOBODY], NOBODY)
    assert [*Path(node_cache.directory()).iterdir()] == [file]


def test_an_unresponsive_resourcemanager_is_tried_last(manager: Manager, clock: Clock) -> None:
    """Let one of two close its connections when it is asked for an application: then the other one is asked first."""
    with serving() as other, YarnRest([manager.url, other.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        assert rest.active_url() == manager.url
        manager.is_away, before = True, manager.questions
        assert rest.report(APP).state is State.RUNNING
        assert manager.questions == before
        assert rest.active_url() == other.url


def test_a_resourcemanager_that_answers_with_a_page_is_still_tried_first(manager: Manager, clock: Clock) -> None:
    """Ask one of two twice for a setting that is not set, which it answers with a page."""
    with serving() as other, YarnRest([manager.url, other.url], Login("u"), clock=clock, sleep=clock.sleep) as rest:
        assert [rest.configuration("yarn.not-set") for _ in range(2)] == [None, None]
        assert (rest.active_url(), other.questions) == (manager.url, 0)


def test_no_active_resourcemanager_for_half_a_minute_is_an_error(
    manager: Manager, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    manager.standby_for, shown = 1000, list[str]()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        shown.append(waits.longest_text())

    with (
        YarnRest([NOBODY, manager.url], Login("u"), clock=clock, sleep=sleep) as rest,
        pytest.raises(Unreachable) as caught,
    ):
        rest.info()
    assert ACTIVE_TIMEOUT_S - 3 < clock.now_s < ACTIVE_TIMEOUT_S
    assert str(caught.value).startswith(f"no active ResourceManager in 30 s: {NOBODY}: connection refused")
    assert str(caught.value).endswith(f"{manager.url}: is STANDBY")
    assert caught.value.exit_code == EXIT_UNREACHABLE
    assert all(text.startswith("waits for an active ResourceManager since ") for text in shown)
    assert all(text.endswith(f"{manager.url}: is STANDBY") for text in shown)


def test_a_single_one_is_not_waited_for(clock: Clock) -> None:
    with (
        YarnRest([NOBODY], Login("u"), clock=clock, sleep=clock.sleep) as rest,
        pytest.raises(Unreachable, match=f"^{NOBODY}: connection refused"),
    ):
        rest.info()
    assert clock.now_s == 0


@pytest.mark.parametrize(
    ("answer", "labels"),
    [
        ({"nodeLabelInfo": [{"name": "fast", "exclusivity": True}, {"name": "slow"}]}, ["fast", "slow"]),
        ({"nodeLabelInfo": {"name": "fast"}}, ["fast"]),
        ({"nodeLabelsInfo": {"nodeLabelInfo": [{"name": "fast"}]}}, ["fast"]),
        ({"nodeLabelsInfo": None}, []),
        ({}, []),
    ],
)
def test_the_labels_of_nodes_are_read_in_the_forms_of_all_versions(answer: object, labels: list[str]) -> None:
    def labelled(request: Request) -> Answer:
        return as_json(answer) if "/get-node-labels" in request.target else as_json({"clusterInfo": {}})

    with http_server(labelled) as url, YarnRest([url], Login("u")) as rest:
        assert rest.node_labels() == labels
    with http_server(lambda _: Answer(404)) as url, YarnRest([url], Login("u")) as rest:
        assert rest.node_labels() == []


@pytest.mark.parametrize(("raw", "priority"), [({}, None), ({"priority": -1}, None), ({"priority": 0}, 0)])
def test_an_application_without_a_priority_has_none(raw: dict[str, int], priority: int | None) -> None:
    app = {"id": "application_1700000000000_0001", "state": "RUNNING", **raw}

    with (
        http_server(lambda _: as_json({"app": app})) as url,
        YarnRest([url], Login("u")) as rest,
    ):
        assert rest.report(ApplicationId(1700000000000, 1)).priority == priority
