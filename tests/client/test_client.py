"""Naming applications, waiting for them, and what their ends mean as exit codes; against an engine in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.client import Client, polling
from dlapp.client.exit_status import exit_code
from dlapp.client.operations import waiting as waiting_module
from dlapp.client.operations.connections import caller
from dlapp.client.operations.queries import Queries
from dlapp.client.operations.views import Views
from dlapp.cluster.engine import LogFiles
from dlapp.cluster.view_forms import ViewForms
from dlapp.config import load_config
from dlapp.errors import Denied, NotFound, TimedOut, UsageError
from dlapp.id_text import looks_like_id
from dlapp.tools.kill_target import targets
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, Cause, FinalStatus, State


def view(number: int, state: State = State.FINISHED, **more: Any) -> ApplicationView:
    values: dict[str, Any] = {"attempt": 1, "username": "tony", "submitter": "tony", "submitted_ms": number}
    return ApplicationView(application_id=ApplicationId(1700000000000, number), state=state, **{**values, **more})


class EngineInMemory:
    """Engine with as much as naming and waiting need: ``coming`` replaces a view at each look."""

    def __init__(self, *views: ApplicationView) -> None:
        self.known = {view.application_id: view for view in views}
        self.coming: list[ApplicationView] = []
        self.ended: list[tuple[str, ApplicationId, str]] = []
        self.tended = 0

    def ensure_runner(self) -> None:
        self.tended += 1

    def view(self, application_id: ApplicationId | str) -> ViewForms:
        found = ApplicationId.from_text(str(application_id))
        if found not in self.known:
            raise NotFound(f"{found} is not known here")
        if self.coming:
            self.known[found] = self.coming.pop(0)
        return ViewForms(value=self.known[found])

    def owner(self, application_id: str) -> str:
        return self.view(application_id).value.submitter

    def ids(self, *, everybody: bool = False) -> list[str]:
        return [str(view.application_id) for view in self.known.values() if everybody or view.submitter == "tony"]

    def views(self, *, user: str) -> list[ViewForms]:
        return [ViewForms(value=item) for item in self.known.values() if item.submitter == user]

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        return []

    def kill(self, application_id: ApplicationId, by: str) -> str:
        self.ended.append(("kill", application_id, by))
        return "killed"

    def check_removal(self, application_id: ApplicationId) -> None:
        if not self.view(application_id).value.state.ended:
            raise UsageError(f"{application_id} has not ended")

    def remove(self, application_id: ApplicationId) -> None:
        del self.known[application_id]


def client(*views: ApplicationView) -> Client:
    return Client(load_config(), engine=EngineInMemory(*views))  # type: ignore[arg-type]


APP = ApplicationId(1700000000000, 42)


@pytest.mark.parametrize("text", ["last", "42", "0042", "_0042", "000_0042", "n_1700000000000_0042", str(APP)])
def test_an_application_is_named_by_last_by_its_id_or_by_a_unique_ending(text: str) -> None:
    assert client(view(7), view(42)).resolve(text) == APP


def test_an_ending_of_several_is_refused_with_all_their_names() -> None:
    with pytest.raises(UsageError, match=r"2 applications end with '2': .*_0012, .*_0042"):
        client(view(12), view(42)).resolve("2")


@pytest.mark.parametrize("text", ["5", "05", "0005"])
def test_the_number_of_an_application_names_it_where_others_end_so_too(text: str) -> None:
    api = client(view(5), view(15), view(10005), view(42))
    assert api.resolve(text).number == 5
    assert api.resolve("15").number == 15
    assert client(view(15)).resolve("5").number == 15


def test_a_number_reused_by_yarn_means_the_users_latest_application() -> None:
    later = ApplicationId(1700000009999, 5)
    views = [view(5), replace(view(5), application_id=later), view(15)]
    notes: list[str] = []
    api = Client(load_config(), engine=EngineInMemory(*views), note=notes.append)  # type: ignore[arg-type]
    assert api.resolve("5") == later
    assert notes == [f"5 is {later}, the latest of your 2 with this number"]
    assert api.resolve("1700000000000_0005").cluster_timestamp_ms == 1700000000000
    of_others = [replace(item, submitter="kim", username="kim") for item in views]
    with pytest.raises(UsageError, match="2 applications end with '5'"):
        client(*of_others).resolve("5")


def test_an_id_suffix_is_searched_among_the_users_own_first() -> None:
    theirs = view(142, submitter="kim", username="kim")
    assert client(theirs, view(42)).resolve("42") == APP
    assert client(theirs).resolve("42") == ApplicationId(1700000000000, 142)


def test_a_suffix_without_a_matching_id_is_not_found() -> None:
    with pytest.raises(NotFound, match="'99'"):
        client(view(42)).resolve("99")
    with pytest.raises(NotFound, match="you have no application yet"):
        client().resolve("last")


@pytest.mark.parametrize("text", ["tony", "", "application", "application_", "tony1", "x_12", "../1", "1 2"])
def test_an_invalid_id_is_a_usage_error(text: str) -> None:
    assert not looks_like_id(text)
    with pytest.raises(UsageError):
        client(view(42)).resolve(text)


def test_a_user_that_is_named_must_own_the_application() -> None:
    mine = client(view(42), view(43, submitter="kim", username="kim"))
    assert mine.resolve("42", user="tony") == APP
    assert mine.resolve("last", user="kim").number == 43
    for text in ("42", str(APP)):
        with pytest.raises(Denied, match="application_1700000000000_0042 is tony's, not kim's"):
            mine.resolve(text, user="kim")


def test_a_kill_checks_the_owner_first() -> None:
    one = client(view(42, State.RUNNING))
    with pytest.raises(Denied):
        one.kill(APP, user="kim")
    assert one.engine.ended == []  # type: ignore[attr-defined]
    assert one.kill(APP, user="tony") == "killed"
    assert one.engine.ended == [("kill", APP, caller())]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "numbers", "user"),
    [
        (["42"], [42], None),
        (["41", "last"], [41, 43], None),
        (["41", str(APP), "0041", "41"], [41, 42], None),
        (["tony", "42", "last"], [42, 43], "tony"),
        (["kim", "44"], [44], "kim"),
    ],
)
def test_id_like_arguments_are_ids_and_another_first_word_is_the_user(
    words: list[str], numbers: list[int], user: str | None
) -> None:
    api = client(*(view(number) for number in (41, 42, 43)), view(44, submitter="kim"))
    found, whose = targets(api, words, "dlapp-kill")
    assert ([item.number for item in found], whose) == (numbers, user)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([], UsageError, "which application"),
        (["tony"], UsageError, "a user's name alone ends nothing"),
        (["42", "2"], UsageError, r"2 applications end with '2': .*_0012, .*_0042"),
        (["42", "tony"], UsageError, "'tony' is neither 'last'"),
        (["42", "99"], NotFound, "'99'"),
        (["42", "application_1700000000000_0099"], NotFound, "is not known"),
        (["tony", "42", "44"], Denied, "_0044 is kim's, not tony's"),
    ],
)
def test_one_unknown_application_refuses_all(words: list[str], error: type[Exception], message: str) -> None:
    api = client(view(12, State.RUNNING), view(42, State.RUNNING), view(44, submitter="kim"))
    with pytest.raises(error, match=message):
        targets(api, words, "dlapp-kill")


def test_if_one_of_several_cannot_be_removed_none_is() -> None:
    api = client(view(41), view(42, State.RUNNING), view(43))
    with pytest.raises(UsageError, match="_0042 has not ended"):
        api.remove([item.application_id for item in (view(41), view(42), view(43))])
    assert len(api.engine.ids()) == 3
    api.remove([view(41).application_id, view(43).application_id])
    assert api.engine.ids() == [str(APP)]


def test_waiting_reports_each_change_once_and_returns_the_last_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "POLL_INTERVAL_S", 0.0)
    waiting = client(view(42, State.ACCEPTED))
    running = view(42, State.RUNNING, phase="running 1 of 1")
    ended = view(42, State.FINISHED, cause=Cause.SUCCEEDED)
    waiting.engine.coming = [view(42, State.ACCEPTED), running, running, ended]  # type: ignore[attr-defined]
    views: list[ApplicationView] = []
    assert waiting.wait(APP, views.append) == ended
    assert views == [view(42, State.ACCEPTED), running, ended]
    assert waiting.engine.tended == 1  # type: ignore[attr-defined]


def test_a_client_polls_less_often_the_longer_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], []

    def sleep(pause_s: float) -> None:
        asked.append(pause_s)
        now[0] += pause_s

    monkeypatch.setattr(waiting_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    waiting = client(view(42, State.ACCEPTED))
    views = [view(42, State.RUNNING)] * 1000
    waiting.engine.coming = [*views, view(42, State.FINISHED, cause=Cause.SUCCEEDED)]  # type: ignore[attr-defined]
    waiting.wait(APP)
    assert (asked[0], asked[-1]) == (0.1, 1.0)
    assert asked == sorted(asked)


def test_a_reader_of_views_gives_its_engine_to_further_operations() -> None:
    """dlapp-status reads a view first, and only of a failed application the end of a log."""
    reader = Views(load_config(), engine=EngineInMemory(view(42, State.RUNNING)))  # type: ignore[arg-type]
    further = Queries.on(reader)
    assert further.engine is reader.engine
    assert further.status(APP) == reader.view_of(str(APP)).value == view(42, State.RUNNING)
    assert reader.engine.tended == 1  # type: ignore[attr-defined]
    assert Queries.on(further) is further


def test_views_can_be_left_before_the_end_and_are_over_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "POLL_INTERVAL_S", 0.0)
    waiting, ended = view(42, State.ACCEPTED), view(42, State.FINISHED, cause=Cause.SUCCEEDED)
    one = client(waiting)
    assert next(one.views(APP)) == waiting
    one.engine.coming = [waiting, waiting, ended]  # type: ignore[attr-defined]
    assert list(one.views(APP)) == [waiting, ended]


def test_waiting_with_a_limit_ends_and_the_application_continues() -> None:
    with pytest.raises(TimedOut, match="it is RUNNING"):
        client(view(42, State.RUNNING)).wait(APP, timeout_s=0)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.SUCCEEDED, 0),
        (Cause.FAILED, 1),
        (Cause.TIMED_OUT, 6),
        (Cause.SOFT_KILLED, 7),
        (Cause.KILLED, 7),
    ],
)
def test_the_cause_decides_the_exit_code(cause: Cause, code: int) -> None:
    assert exit_code(view(1, cause=cause)) == code


def test_without_a_cause_state_and_final_status_decide() -> None:
    bare = view(1, final_status=FinalStatus.SUCCEEDED)
    assert exit_code(bare) == 0
    assert exit_code(replace(bare, final_status=FinalStatus.FAILED)) == 1
    assert exit_code(replace(bare, final_status=FinalStatus.UNDEFINED, state=State.KILLED)) == 7


def test_a_container_that_the_application_cannot_have_is_not_found() -> None:
    one = client(view(42, total_containers=2))
    assert list(one.logs(APP, container=1)) == []
    with pytest.raises(NotFound, match="has no container 2: it has 2, counted from 0"):
        list(one.logs(APP, container=2))


def test_a_cluster_without_a_configured_address_is_refused() -> None:
    with pytest.raises(UsageError, match=r"set yarn.conf_dir, or HADOOP_CONF_DIR"):
        Client(cluster="yarn")
