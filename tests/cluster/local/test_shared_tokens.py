"""Tokens for others than an application's owner, on one machine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.local.client.shared_tokens import check_access, find_access, grant_reading
from dlapp.cluster.local.state import StateDir
from dlapp.errors import SpecError
from dlapp.system.owners import user_name
from dlapp.values.access import VIEWERS, AccessList, SharedToken
from dlapp.values.spec import AppSpec

APP, TOKEN = "application_1700000000000_0001", "ab" * 32
OWN_NAME = user_name(os.getuid())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of an application."""
    made = tmp_path / "applications" / APP
    made.mkdir(parents=True)
    return made


def spec(**lists: Any) -> AppSpec:
    return AppSpec(username="tony", appname="a", command=("true",), **lists)


def test_only_a_queue_that_users_share_has_names_and_these_must_be_known(tmp_path: Path) -> None:
    shared, alone = StateDir(str(tmp_path), shared=True), StateDir(str(tmp_path))
    check_access(spec(), alone)
    check_access(spec(view_acl=AccessList((OWN_NAME,))), shared)
    with pytest.raises(SpecError, match=r"application\.modify_acl: needs a queue that users share"):
        check_access(spec(modify_acl=AccessList((OWN_NAME,))), alone)
    with pytest.raises(SpecError, match=r"application\.view_acl: there is no user no-such on this machine"):
        check_access(spec(view_acl=AccessList(("no-such",))), shared)
    with pytest.raises(SpecError, match=r"application\.modify_acl: there is no group no-such on this machine"):
        check_access(spec(modify_acl=AccessList((), ("no-such",))), shared)


def test_a_file_is_let_be_read_by_those_named_alone(home: Path) -> None:
    fd = os.open(home / "viewers.token", os.O_WRONLY | os.O_CREAT, 0o600)
    grant_reading(fd, SharedToken("viewers.token", TOKEN, AccessList((OWN_NAME,))))
    os.close(fd)
    # The bits of the group are the mask now (acl(5)); nobody may write it but its owner.
    assert (home / "viewers.token").stat().st_mode & 0o777 == 0o640


@pytest.mark.proves("ports-services")
@pytest.mark.root
def test_an_address_at_which_another_user_listens_is_not_used(home: Path, tmp_path: Path) -> None:
    (home / "viewers.token").write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def found_of(owner: StateDir) -> tuple[str, str] | None:
            access = find_access(owner, APP, VIEWERS)
            return None if access is None else (access.url, access.token)

        def found(address: str) -> tuple[str, str] | None:
            (home / "am.json").write_text(json.dumps({"control_url": address}))
            return found_of(StateDir(str(tmp_path)))

        for wrong in (f"{url}@elsewhere", "http://10.0.0.1:80", "http://127.0.0.1:99999"):
            assert found(wrong) == ("", TOKEN)
        assert found(url) == (url, TOKEN)
        for name in ("", "applications", f"applications/{APP}"):
            os.chown(tmp_path / name, 12_345, -1)
        for one in home.iterdir():
            os.chown(one, 12_345, -1)
        assert found_of(StateDir(str(tmp_path), uid=12_345)) == ("", TOKEN)


def test_a_user_who_cannot_read_the_token_has_no_access(home: Path, tmp_path: Path) -> None:
    state = StateDir(str(tmp_path))
    assert find_access(state, APP, VIEWERS) is None
    (home / "viewers.token").write_text("no token")
    assert find_access(state, APP, VIEWERS) is None
    (home / "viewers.token").unlink()
    (home / "viewers.token").symlink_to("/etc/hostname")
    assert find_access(state, APP, VIEWERS) is None
