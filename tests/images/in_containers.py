"""The images' package sets can be had, and their programs run: `make test-images`.

No registry is needed. Each image's stand-in is made of Debian's and PyPI's packages by docker/from-debian.sh, at the
locked versions and with the same dl-smoke, and runs it on the CPU as a user without a name. This takes ten minutes or
more and several gigabytes, so `make test` leaves this file out. DLAPP_TEST_IMAGES names the images, if not all.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.images.images import DOCKER, NAMES, apt_packages, locked

CHOSEN = [name for name in NAMES if name in os.environ.get("DLAPP_TEST_IMAGES", " ".join(NAMES)).split()]


def run(*command: str | Path, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@pytest.mark.parametrize("name", [name for name in CHOSEN if name != "caffe"])
def test_the_locked_packages_can_be_installed_on_the_base_image(name: str, tmp_path: Path) -> None:
    """Ubuntu 24.04's Python 3.12 and C library, whatever this machine has; every hash is known, nothing is fetched."""
    (tmp_path / "none").mkdir()
    uv = ["uv", "pip", "install", "--dry-run", "--no-cache", f"--target={tmp_path}/none", "--only-binary=:all:"]
    target = ["--python-version=3.12", "--python-platform=x86_64-manylinux_2_39"]
    done = run(*uv, *target, "--require-hashes", f"--requirement={DOCKER / name}/requirements.txt")
    found = dict(re.findall(r"^ \+ ([\w.-]+)==(\S+)$", done.stderr, re.MULTILINE))
    assert found == locked(name)


@pytest.fixture(scope="module", params=CHOSEN)
def image(request: pytest.FixtureRequest) -> Generator[tuple[str, str], None, None]:
    """An image's name, and the tag of its stand-in."""
    name = str(request.param)
    tag = f"naver/c3_dl-{name}:latest"
    run(DOCKER / "from-debian.sh", name, tag, timeout_s=3600)
    yield name, tag
    run("docker", "image", "rm", "--force", tag)


def test_the_program_of_an_image_trains_something(image: tuple[str, str]) -> None:
    _, tag = image
    done = run("docker", "run", "--rm", "--network=none", "--user=12345:12345", "--env=HOME=/tmp", tag, "dl-smoke")
    assert re.search(r"^.+: (.+ )?[\d.]+%? right$", done.stdout, re.MULTILINE), done.stdout


def test_a_program_of_an_image_fails_where_gpus_were_granted_and_none_is_seen(image: tuple[str, str]) -> None:
    _, tag = image
    command = ["docker", "run", "--rm", "--network=none", "--env=NV_GPU=0", tag, "dl-smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "right" not in done.stdout


def test_the_distributions_packages_of_an_image_are_installed(image: tuple[str, str]) -> None:
    name, tag = image
    for package in apt_packages(name):
        run("docker", "run", "--rm", "--network=none", tag, "dpkg-query", "--status", package)


@pytest.mark.parametrize("image", [name for name in CHOSEN if name == "caffe"], indirect=True)
@pytest.mark.usefixtures("image")
def test_the_example_of_the_original_trains_lenet(tmp_path: Path) -> None:
    # The copy keeps the way to docker/ that demo.sh knows.
    example = tmp_path / "examples" / "caffe_mnist"
    example.parent.mkdir()
    run("cp", "-r", DOCKER.parent / "examples" / "caffe_mnist", example)
    run("rm", "-rf", example / "hdfs")
    demo = run(example / "demo.sh", timeout_s=1200)
    assert "\nDL App Name : 'c3 deeplearning app caffe mnist example'\n" in demo.stdout
    assert "\nfinalStatus : SUCCEEDED\n" in demo.stdout
    accuracies = [float(found) for found in re.findall(r"accuracy = ([\d.]+)", demo.stdout)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.75
    assert (example / "hdfs/user/tony/caffe_mnist_example_output/lenet_iter_200.caffemodel").stat().st_size > 1 << 20
