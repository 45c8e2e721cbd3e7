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
def application_dir(tmp_path: Path) -> Path:
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


def test_only_named_users_can_read_a_file(application_dir: Path) -> None:
    fd = os.open(application_dir / "viewers.token", os.O_WRONLY | os.O_CREAT, 0o600)
    grant_reading(fd, SharedToken("viewers.token", TOKEN, AccessList((OWN_NAME,))))
    os.close(fd)
    # The bits of the group are the mask now (acl(5)); nobody may write it but its owner.
    assert (application_dir / "viewers.token").stat().st_mode & 0o777 == 0o640


@pytest.mark.proves("ports-services")
@pytest.mark.root
def test_an_address_at_which_another_user_listens_is_not_used(application_dir: Path, tmp_path: Path) -> None:
    (application_dir / "viewers.token").write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def found_of(owner: StateDir) -> tuple[str, str] | None:
            access = find_access(owner, APP, VIEWERS)
            return None if access is None else (access.url, access.token)

        def access_at(address: str) -> tuple[str, str] | None:
            (application_dir / "am.json").write_text(json.dumps({"control_url": address}))
            return found_of(StateDir(str(tmp_path)))

        for wrong in (f"{url}@elsewhere", "http://10.0.0.1:80", "http://127.0.0.1:99999"):
            assert access_at(wrong) == ("", TOKEN)
        assert access_at(url) == (url, TOKEN)
        for name in ("", "applications", f"applications/{APP}"):
            os.chown(tmp_path / name, 12_345, -1)
        for path in application_dir.iterdir():
            os.chown(path, 12_345, -1)
        assert found_of(StateDir(str(tmp_path), uid=12_345)) == ("", TOKEN)


def test_a_user_who_cannot_read_the_token_has_no_access(application_dir: Path, tmp_path: Path) -> None:
    state = StateDir(str(tmp_path))
    assert find_access(state, APP, VIEWERS) is None
    (application_dir / "viewers.token").write_text("no token")
    assert find_access(state, APP, VIEWERS) is None
    (application_dir / "viewers.token").unlink()
    (application_dir / "viewers.token").symlink_to("/etc/hostname")
    assert find_access(state, APP, VIEWERS) is None
