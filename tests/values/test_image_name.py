"""Names of images are read as Docker reads them."""

from __future__ import annotations

import re

import pytest

from dlapp.values.image_name import parse_image_name

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "place", "version", "names_registry"),
    [
        ("ubuntu", "docker.io/library/ubuntu", "latest", False),
        ("ubuntu:22.04", "docker.io/library/ubuntu", "22.04", False),
        ("tony/net:1", "docker.io/tony/net", "1", False),
        ("docker.io/ubuntu", "docker.io/library/ubuntu", "latest", True),
        ("index.docker.io/tony/net", "docker.io/tony/net", "latest", True),
        ("localhost/net", "localhost/net", "latest", True),
        ("registry:5000/net", "registry:5000/net", "latest", True),
        ("registry.example.com/a/b/net:2", "registry.example.com/a/b/net", "2", True),
        (f"net@{DIGEST}", "docker.io/library/net", DIGEST, False),
        (f"registry:5000/net:3@{DIGEST}", "registry:5000/net", DIGEST, True),
    ],
)
def test_a_name_has_a_registry_and_a_repository(text: str, place: str, version: str, names_registry: bool) -> None:
    name = parse_image_name(text)
    assert (f"{name.registry}/{name.repository}", name.version, name.names_registry) == (place, version, names_registry)


@pytest.mark.parametrize("text", ["ubuntu", "ubuntu:22.04", "r:5000/a/b:1", f"a@{DIGEST}", DIGEST, "a" * 64])
def test_docker_gets_the_image_name_as_written(text: str) -> None:
    assert parse_image_name(text).text == text


def test_an_id_has_no_registry() -> None:
    assert parse_image_name(DIGEST).registry == ""


def test_a_digest_takes_precedence_over_a_tag() -> None:
    assert parse_image_name(f"r:5000/a:1@{DIGEST}").text == f"r:5000/a@{DIGEST}"


def test_a_digest_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'sha256:12' is not a digest"):
        parse_image_name("net@sha256:12")


def test_an_image_at_another_place_has_its_repository_and_version() -> None:
    assert parse_image_name("ubuntu:1").at("mirror:5000").text == "mirror:5000/library/ubuntu:1"
    assert parse_image_name(f"r:5000/a/b@{DIGEST}").at("mirror.org/cache").text == f"mirror.org/cache/a/b@{DIGEST}"


@pytest.mark.parametrize(
    ("text", "proposal"),
    [
        ("docker://env:1", "env:1"),
        ("https://index.docker.io/env:1", "index.docker.io/env:1"),
        ("oras://registry.example.com/team/env:1", "registry.example.com/team/env:1"),
        (f"dockerd://env@{DIGEST}", f"env@{DIGEST}"),
        ("env:1/", "env:1"),
        ("/env:1", "env:1"),
        ("library/env//x:1", "library/env/x:1"),
        ("registry:5000//env", "registry:5000/env"),
        ("ENV:1", "env:1"),
        ("tony/Net:V1", "tony/net:V1"),
        ("registry.example.com/Team/Net", "registry.example.com/team/net"),
    ],
)
def test_the_nearest_valid_name_is_proposed_for_a_refused_one(text: str, proposal: str) -> None:
    with pytest.raises(ValueError, match=f": write {re.escape(proposal)}$"):
        parse_image_name(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("docker:env:1", "'env:1' is not a tag"),
        ("ubuntu:22.04:latest", "'22.04:latest' is not a tag"),
        ("env:", "'' is not a tag"),
        ("env:-1", "'-1' is not a tag"),
        (f"env:{'1' * 129}", "is not a tag"),
        ("registry:port/net", "'registry:port' is not a registry"),
        ("registry.:5000/net", "'registry.:5000' is not a registry"),
        ("a/b:1/c", "'b:1' is not a part"),
        ("net..x", "'net..x' is not a part"),
        ("net-", "'net-' is not a part"),
        ("a___b", "'a___b' is not a part"),
        ("net+x", "'net\\+x' is not a part"),
        (f"{'a/' * 128}b", "is too long: 257 characters, the maximum is 255"),
        ("https://", "begins with 'https://', names of images do not$"),
    ],
)
def test_a_name_that_docker_never_accepts_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_image_name(text)


@pytest.mark.parametrize("text", ["a--b__c/d.e_f:V_1.2-x", "r-1.example.com:5000/a:1", "10.0.0.1/a", "Host/a", "a:_1"])
def test_each_character_that_docker_allows_is_allowed(text: str) -> None:
    assert parse_image_name(text).text == text
