"""Credentials for registries come from the submitter's own Docker configuration, each for its registry alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from dlapp.launcher.registry_credentials import collect_credentials
from dlapp.node_policy import RegistryPolicy

HUB = "https://index.docker.io/v1/"


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def collected(
    home: Path, config: Any, *images: str, policy: RegistryPolicy | None = None, messages: list[str] | None = None
) -> dict[str, dict[str, str]]:
    """Return image -> what Docker is sent for it."""
    home.mkdir(exist_ok=True)
    (home / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    environ = {"DOCKER_CONFIG": str(home), "PATH": f"{home}:/usr/bin:/bin"}
    notes = messages if messages is not None else []
    found = collect_credentials(images, policy, notes.append, environ)
    assert messages is not None or not notes
    return {image: json.loads(base64.urlsafe_b64decode(one.header)) for image, one in found.items()}


def helper(home: Path, name: str, script: str) -> None:
    home.mkdir(exist_ok=True)
    program = home / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_each_image_has_the_credentials_of_its_registry_and_others_stay(tmp_path: Path) -> None:
    auths = {"r.org:5000": auth("tony", "a:b"), HUB: auth("hub", "secret"), "other.org": auth("x", "y")}
    found = collected(tmp_path, {"auths": auths}, "r.org:5000/net:1", "ubuntu", "tony/net", "quay.io/net")
    hub = {"username": "hub", "password": "secret", "serveraddress": HUB}
    assert found == {
        "r.org:5000/net:1": {"username": "tony", "password": "a:b", "serveraddress": "r.org:5000"},
        "ubuntu": hub,
        "tony/net": hub,
    }


@pytest.mark.parametrize("key", ["r.org", "https://r.org", "https://r.org/v1/"])
@pytest.mark.parametrize(
    ("entry", "sent"),
    [
        (auth("me", "pass"), {"username": "me", "password": "pass"}),
        ({"username": "me", "password": "pass"}, {"username": "me", "password": "pass"}),
        ({"identitytoken": "abc", **auth("<token>", "")}, {"identitytoken": "abc"}),
        ({}, None),  # as beside a credsStore
    ],
)
def test_auths_are_read_in_all_their_forms(key: str, entry: Any, sent: Any, tmp_path: Path) -> None:
    found = collected(tmp_path, {"auths": {key: entry}}, "r.org/net")
    assert found == ({} if sent is None else {"r.org/net": {**sent, "serveraddress": "r.org"}})


def test_a_credential_helper_is_called_with_the_registry(tmp_path: Path) -> None:
    helper(tmp_path, "one", 'read -r url; echo "{\\"Username\\": \\"of $url\\", \\"Secret\\": \\"s\\"}"')
    helper(tmp_path, "all", 'echo \'{"Username": "<token>", "Secret": "t"}\'')
    config = {"credHelpers": {"r.org": "one"}, "credsStore": "all"}
    assert collected(tmp_path, config, "r.org/net", "q.org/net") == {
        "r.org/net": {"username": "of r.org", "password": "s", "serveraddress": "r.org"},
        "q.org/net": {"identitytoken": "t", "serveraddress": "q.org"},
    }


def test_a_helper_that_has_none_is_no_problem(tmp_path: Path) -> None:
    helper(tmp_path, "empty", "echo credentials not found in native keychain; exit 1")
    assert collected(tmp_path, {"credsStore": "empty"}, "r.org/net") == {}


@pytest.mark.parametrize(
    ("config", "script", "why"),
    [
        ({"credsStore": "gone"}, "", "docker-credential-gone is not installed"),
        ({"credsStore": "../sh"}, "", "'../sh' is not the name of a credential helper"),
        ({"credsStore": "bad"}, "echo locked >&2; exit 3", "docker-credential-bad failed: locked"),
        ({"credsStore": "bad"}, "echo hello", "docker-credential-bad does not answer as a credential helper does"),
        ({"auths": {"r.org": {"auth": "%%"}}}, "", "auths.r.org.auth is not base64 of NAME:PASSWORD"),
        ("{", "", "config.json is not JSON"),
        ("[1]", "", "config.json is not a configuration of Docker"),
    ],
)
def test_unusable_credentials_are_reported_and_the_image_pulled_without_them(
    config: Any, script: str, why: str, tmp_path: Path
) -> None:
    if script:
        helper(tmp_path, "bad", script)
    messages: list[str] = []
    assert collected(tmp_path, config, "r.org/net", "r.org/other", messages=messages) == {}
    (line,) = messages
    assert line.startswith("images of r.org are pulled without your credentials: ")
    assert line.endswith(why)


def test_without_a_configuration_or_for_an_id_there_are_none(tmp_path: Path) -> None:
    assert collect_credentials(["r.org/net"], None, print, {"DOCKER_CONFIG": str(tmp_path)}) == {}
    assert collected(tmp_path, {"credsStore": "gone"}, "a" * 64) == {}


def test_a_name_without_a_registry_has_the_credentials_of_the_operators(tmp_path: Path) -> None:
    auths = {"r.org": auth("a", "b"), HUB: auth("hub", "secret")}
    policy = RegistryPolicy(prefix="r.org/team")
    assert collected(tmp_path, {"auths": auths}, "net:1", policy=policy)["net:1"]["serveraddress"] == "r.org"
