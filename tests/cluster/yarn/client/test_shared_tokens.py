"""Tokens on HDFS for those whom `view_acl` and `modify_acl` name: who may read them, and when they are there."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client.shared_tokens import check_sharing, find_token, sharing_tokens
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.errors import Denied, DlappError, SpecError, Unreachable, UsageError
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.value import replace
from dlapp.values.access import MODIFIERS, VIEWERS, AccessList, derive_token
from dlapp.values.report import ApplicationView, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec
from tests.cluster.yarn.client.test_cleanup import APP, PLACES, Memory

SECRET = "ab" * 32
STAGING = PLACES.staging(APP)
NAMED = AppSpec(
    username="tony",
    appname="a",
    command=("true",),
    view_acl=AccessList(("ann",)),
    modify_acl=AccessList((), ("team",)),
)
VIEW = ApplicationView(application_id=APP, attempt=1, state=State.RUNNING, view_acl="ann")
THEIRS: Any = SimpleNamespace(user=PLACES.home.rpartition("/")[2], application_id=APP)
NOBODY = AppSpec(username="tony", appname="a", command=("true",))


class Files(Memory):
    """A file system with access control lists; ``acls`` has the last of each place."""

    home = PLACES.home

    def __init__(self, refusal: Exception | None = None) -> None:
        super().__init__()
        self.acls: dict[str, tuple[str, ...]] = {}
        self.modes: dict[str, int] = {}
        self._refusal = refusal

    def set_acl(self, location: str, entries: Sequence[str]) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.acls[location] = tuple(entries)

    def status(self, location: str) -> Any:
        return SimpleNamespace(mode=self.modes.get(location, 0o755))


def test_an_application_without_acls_leaves_no_token_files() -> None:
    files: Any = Files()
    assert check_sharing(files, NOBODY) == []
    with sharing_tokens(files, APP, NOBODY, SECRET):
        pass
    assert (files.files, files.acls) == ({}, {})


def test_named_users_may_reach_and_read_their_own_token() -> None:
    files: Any = Files()
    assert check_sharing(files, NAMED) == []
    with sharing_tokens(files, APP, NAMED, SECRET):
        pass
    tokens = {name.rpartition("/")[2]: data.decode() for name, (data, _) in files.files.items()}
    viewers, modifiers = derive_token(SECRET, VIEWERS), derive_token(SECRET, MODIFIERS)
    assert tokens == {"viewers.token": viewers, "modifiers.token": modifiers}
    own = "user::rwx", "group::---", "mask::--x", "other::---"
    assert set(files.acls[STAGING]) == {*own, "user:ann:--x", "group:team:--x"}
    assert set(files.acls[f"{STAGING}/viewers.token"]) == {
        *("user::rw-", "user:ann:r--", "group::---", "mask::r--", "other::---")
    }
    assert set(files.acls[f"{STAGING}/modifiers.token"]) == {
        *("user::rw-", "group:team:r--", "group::---", "mask::r--", "other::---")
    }
    assert files.acls[PLACES.all_staging] == ("user::rwx", "group::--x", "other::--x")


def test_hdfs_without_access_control_lists_is_refused_before_anything_is_sent() -> None:
    files: Any = Files(DlappError("Support for ACLs has been disabled"))
    with pytest.raises(SpecError, match=r"application\.view_acl: HDFS keeps no access .*Support for ACLs"):
        check_sharing(files, NAMED)
    for error in (Denied("no"), Unreachable("away")):
        with pytest.raises(type(error), match=str(error)):
            check_sharing(Files(error), NAMED)  # type: ignore[arg-type]


def test_a_private_home_directory_is_named() -> None:
    files: Any = Files()
    files.modes[PLACES.home] = 0o750
    (line,) = check_sharing(files, NAMED)
    assert line.startswith(f"application.view_acl: {PLACES.home} has mode 750: those whom it keeps out get no port")
    assert line.endswith("dlapp-softkill, dlapp-kill and dlapp-release refuse them")


@pytest.mark.parametrize(
    ("error", "stay"),
    [(UsageError("the queue is full"), False), (Denied("no"), False), (Unreachable("perhaps it has it"), True)],
)
def test_tokens_are_removed_if_yarn_refuses_the_application(error: DlappError, stay: bool) -> None:
    files: Any = Files()
    with pytest.raises(type(error)), sharing_tokens(files, APP, NAMED, SECRET):
        raise error
    assert bool(files.files) == bool(files.names(PLACES.all_staging)) == stay


def test_an_error_after_the_submission_keeps_the_applicationmasters_files() -> None:
    files: Any = Files()
    files.write(f"{STAGING}/submission.json", b"{}", 0o600)
    with pytest.raises(UsageError), sharing_tokens(files, APP, NAMED, SECRET):
        raise UsageError("the ResourceManager that took over answered with status 500")
    assert files.names(STAGING) == ["submission.json"]
    assert STAGING in files.directories


def test_tokens_that_cannot_be_closed_to_others_are_removed() -> None:
    files: Any = Files(DlappError("no such user"))
    with pytest.raises(DlappError), sharing_tokens(files, APP, NAMED, SECRET):
        raise AssertionError("nothing is handed in")
    assert files.files == {}


def session_of(user: str, files: Files) -> Any:
    """Return a session that does nothing in another user's name."""
    place = HdfsPlace(PLACES.home.partition("/user/")[0], (), Login(user))
    return SimpleNamespace(user=user, hdfs={user: place}.__getitem__, files={user: files}.__getitem__)


def test_users_in_the_acl_see_the_full_view_and_others_the_public_part() -> None:
    files, asked = Files(), list[str | None]()
    files.write(f"{STAGING}/viewers.token", ("ab" * 32).encode(), 0o600)

    def view(_: object, *, token: str | None = None) -> Any:
        asked.append(token)
        return to_json(replace(VIEW, phase="all" if token else "what everybody is shown"))

    masters: Any = SimpleNamespace(view=view)
    viewer = ApplicationReader(session_of("ann", files), masters)
    assert [viewer._view_of_another(THEIRS).phase for _ in range(2)] == ["all", "all"]
    assert asked == [None, "ab" * 32, "ab" * 32]
    files.remove(f"{STAGING}/viewers.token")
    stranger = ApplicationReader(session_of("eve", files), masters)
    assert [stranger._view_of_another(THEIRS).phase for _ in range(2)] == ["what everybody is shown"] * 2
    assert asked[3:] == [None, None]


@pytest.mark.parametrize("text", ["", "ab" * 31, "AB" * 32, f"{'ab' * 32}\r\nHost: elsewhere", "x" * 1000, None])
def test_only_what_has_the_form_of_a_token_is_used_as_one(text: str | None) -> None:
    files: Any = Files()
    session, report = session_of("ann", files), THEIRS
    files.write(f"{STAGING}/viewers.token", ("ab" * 32).encode(), 0o600)
    assert find_token(session, report, VIEWERS) == "ab" * 32
    assert find_token(session, report, MODIFIERS) is None
    files.remove(f"{STAGING}/viewers.token")
    if text is not None:
        files.write(f"{STAGING}/viewers.token", text.encode(), 0o600)
    assert find_token(session, report, VIEWERS) is None
