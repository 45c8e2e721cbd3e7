"""Names of images are read as Docker reads them."""

from __future__ import annotations

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
def test_docker_is_asked_for_the_name_as_it_is_written(text: str) -> None:
    assert parse_image_name(text).text == text


def test_an_id_has_no_registry() -> None:
    assert parse_image_name(DIGEST).registry == ""


def test_of_a_tag_and_a_digest_the_digest_counts() -> None:
    assert parse_image_name(f"r:5000/a:1@{DIGEST}").text == f"r:5000/a@{DIGEST}"


def test_a_digest_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'sha256:12' is not a digest"):
        parse_image_name("net@sha256:12")


def test_an_image_at_another_place_has_its_repository_and_version() -> None:
    assert parse_image_name("ubuntu:1").at("mirror:5000").text == "mirror:5000/library/ubuntu:1"
    assert parse_image_name(f"r:5000/a/b@{DIGEST}").at("mirror.org/cache").text == f"mirror.org/cache/a/b@{DIGEST}"
