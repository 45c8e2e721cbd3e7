"""Test as whom a cluster is used."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from dlapp.errors import ConfigError
from dlapp.login import Login, own_login
from dlapp.values.serialization import from_json, to_json


def test_the_login_is_the_named_hadoop_user_or_the_system_user() -> None:
    assert own_login({"HADOOP_USER_NAME": "tony"}) == Login("tony")
    assert own_login({"HADOOP_USER_NAME": ""}) == own_login({}) == Login(pwd.getpwuid(os.geteuid()).pw_name)


def test_a_user_without_a_name_gets_the_setting_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_234_567_890)
    with pytest.raises(ConfigError, match="HADOOP_USER_NAME"):
        own_login({})


def test_simple_authentication_sends_the_name_and_a_token_does_not() -> None:
    assert Login("tony").query == Login("tony").webhdfs_query == {"user.name": "tony"}
    assert Login("tony", "T0ken").webhdfs_query == {"delegation": "T0ken"}


def test_a_token_is_never_shown() -> None:
    assert "T0ken" not in repr(Login("tony", "T0ken"))


@pytest.mark.parametrize("login", [Login("tony"), Login("tony", "T0ken")])
def test_a_login_survives_serialization(login: Login) -> None:
    assert from_json(Login, json.loads(json.dumps(to_json(login)))) == login


def test_a_token_is_not_used_for_another_user() -> None:
    assert Login("tony", "T0ken").as_user("tony") == Login("tony", "T0ken")
    assert Login("tony", "T0ken").as_user("alice") == Login("alice")
