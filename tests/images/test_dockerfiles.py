"""The images' files fit each other: what is pinned, what is copied, what README.md says of them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from dlapp.version import __version__
from tests.images.images import DOCKER, NAMES, dockerfile, locked, parent_of, requested_versions

SMOKE = {name: DOCKER / name / ("smoke.sh" if name == "caffe" else "smoke.py") for name in NAMES}


def test_there_are_the_originals_seven_images() -> None:
    expected = ["base", "caffe", "tensorflow", "tensorflow-keras", "theano", "theano-keras", "torch"]
    assert expected == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_image_builds_on_a_digest_or_on_another_of_them_at_this_version(name: str) -> None:
    (origin,) = re.findall(r"^FROM (.*)$", dockerfile(name), re.MULTILINE)
    if (parent := parent_of(name)) is None:
        assert re.fullmatch(r"[a-z/]+:[\w.-]+@sha256:[0-9a-f]{64}", origin)
    else:
        assert origin == "${BASE}"
        assert parent in NAMES
        assert f"ARG BASE=naver/c3_dl-{parent}:{__version__}\n" in dockerfile(name)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_labels_and_the_program_that_tries_it(name: str) -> None:
    text = dockerfile(name)
    for label in ("title", "description", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in text
    assert f'image.title="{name}"' in text
    assert f"ARG VERSION={__version__}\n" in text
    assert re.search(rf"^COPY {SMOKE[name].name} \S+/bin/dl-smoke$", text, re.MULTILINE)
    assert os.access(SMOKE[name], os.X_OK)
    if name != "caffe":
        compile(SMOKE[name].read_text(encoding="utf-8"), str(SMOKE[name]), "exec")


@pytest.mark.parametrize("name", NAMES)
def test_each_dockerfile_copies_exactly_the_existing_files(name: str) -> None:
    copied = {file for line in re.findall(r"^COPY (.*) \S+$", dockerfile(name), re.MULTILINE) for file in line.split()}
    existing = {path.name for path in (DOCKER / name).iterdir()} - {"Dockerfile", "requirements.in"}
    assert copied == existing


@pytest.mark.parametrize("name", NAMES)
def test_every_python_package_is_locked_with_hashes_to_the_requested_version(name: str) -> None:
    path = DOCKER / name / "requirements.txt"
    if not path.exists():
        assert name == "caffe"
        return
    for entry in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").strip()):
        assert re.match(r"[\w.-]+==\S+ \\\n", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert requested_versions(name).items() <= locked(name).items()
    assert "--require-hashes" in dockerfile(name)


@pytest.mark.parametrize("name", [name for name in NAMES if parent_of(name)])
def test_an_image_changes_no_package_of_its_base_image(name: str) -> None:
    mine, parents = locked(name), locked(parent_of(name) or "")
    assert {package: mine.get(package) for package in parents} == parents


def test_the_readme_has_a_row_for_each_image_with_the_versions_that_it_has() -> None:
    rows = re.findall(r"^\| `naver/c3_dl-([\w-]+)` \|(.*)$", (DOCKER / "README.md").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == NAMES
    for name, row in rows:
        for version in requested_versions(name).values():
            assert version in row, (name, version)


@pytest.mark.parametrize("script", ["build.sh", "from-debian.sh"])
def test_an_unknown_image_is_refused_with_the_names_of_those_there_are(script: str) -> None:
    done = subprocess.run([DOCKER / script, "troch"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr == f"Error: no image is called troch; there are: {' '.join(NAMES)}\n"
