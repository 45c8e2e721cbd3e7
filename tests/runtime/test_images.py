"""Images are pulled from a registry: once, with the user's credentials, with progress, and with whose fault it is."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.messages import Fault
from dlapp.net.dockerd import Dockerd as Client
from dlapp.runtime.images import digest_of, make_sure_of_image, pull_error
from dlapp.runtime.payload import PayloadError
from tests.services.containers.dockerd import Dockerd, busybox_root
from tests.services.containers.registry import Registry


@pytest.fixture
def client(dockerd: Dockerd) -> Client:
    return Client(dockerd.host, 20)


def filled(megabytes: int) -> bytes:
    return busybox_root({"ballast": os.urandom(megabytes << 20)})


@pytest.fixture
def registry(dockerd: Dockerd) -> Iterator[Registry]:
    with Registry(filled(1)) as one:
        yield one
        dockerd.docker("rmi", "-f", one.image, check=False)


def get(client: Client, image: str, lock_dir: Path, said: list[str] | None = None) -> dict[str, object]:
    return make_sure_of_image(client, image, str(lock_dir), (said if said is not None else []).append)


def test_a_missing_image_is_pulled_and_its_digest_noted(client: Client, registry: Registry, tmp_path: Path) -> None:
    said: list[str] = []
    found = get(client, registry.image, tmp_path, said)
    assert digest_of(found) == f"{registry.address}/it@{registry.digest}"
    assert said == [f"image {registry.image}: pulling", f"image {registry.image}: {digest_of(found)}"]
    get(client, registry.image, tmp_path)
    assert registry.layers_sent == 1


def test_an_image_can_be_named_by_its_digest(client: Client, registry: Registry, tmp_path: Path) -> None:
    image = f"{registry.address}/it@{registry.digest}"
    assert digest_of(get(client, image, tmp_path)) == image
    client.call("DELETE", f"/images/{image}")


@pytest.mark.slow
def test_many_tasks_that_need_an_image_pull_it_once_and_wait_for_it(
    client: Client, dockerd: Dockerd, tmp_path: Path
) -> None:
    with Registry(filled(1), slow_s=1.0) as registry:
        said: list[str] = []
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.append(get(client, registry.image, tmp_path, said))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert registry.layers_sent == 1
        assert said.count(f"image {registry.image}: pulling") == 1
        assert said.count(f"image {registry.image}: another task is pulling it") == 3
        dockerd.docker("rmi", registry.image)


@pytest.mark.slow
def test_a_pull_tells_how_far_it_is(client: Client, dockerd: Dockerd, tmp_path: Path) -> None:
    with Registry(filled(8), slow_s=1.0) as registry:
        told: list[tuple[int, int]] = []
        make_sure_of_image(
            client, registry.image, str(tmp_path), lambda _: None, lambda done, total: told.append((done, total))
        )
        assert told == sorted(told)
        assert 0 < told[0][0] < told[-1][0] == told[-1][1]
        assert told[-1][1] > 8 << 20
        dockerd.docker("rmi", registry.image)


def test_credentials_come_from_the_users_docker_configuration(
    client: Client, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    with Registry(busybox_root(), login="tony:secret") as registry:
        with pytest.raises(PayloadError, match="its registry denies it to you") as refused:
            get(client, registry.image, tmp_path)
        assert refused.value.fault is Fault.USER
        login = base64.b64encode(b"tony:secret").decode()
        (home / ".docker" / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": login}}}))
        get(client, registry.image, tmp_path)
        dockerd.docker("rmi", registry.image)
        (home / ".docker" / "config.json").write_text(json.dumps({"credsStore": "not-there"}))
        with pytest.raises(PayloadError, match=rf"the credentials for registry {registry.address} in your Docker conf"):
            get(client, registry.image, tmp_path)


def test_what_is_not_at_a_registry_is_the_users_fault(client: Client, registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=f"image {registry.address}/it:2 cannot be pulled: there is no such") as none:
        get(client, f"{registry.address}/it:2", tmp_path)
    assert none.value.fault is Fault.USER
    with pytest.raises(PayloadError, match="not an image name") as odd:
        get(client, "Not A Name", tmp_path)
    assert odd.value.fault is Fault.USER


def test_a_registry_that_is_away_is_a_service_to_wait_for(client: Client, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="its registry cannot be reached") as away:
        get(client, "127.0.0.1:1/it:1", tmp_path)
    assert away.value.fault is Fault.SERVICE


def test_who_dies_while_pulling_lets_the_next_one(client: Client, registry: Registry, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # it takes the lock, and never pulls
        from dlapp.runtime import images

        with images._turn(str(tmp_path), client.host, registry.image, lambda _: None):
            (tmp_path / "has-it").touch()
            time.sleep(60)
        os._exit(0)
    while not (tmp_path / "has-it").exists():
        time.sleep(0.01)
    thread = threading.Thread(target=lambda: get(client, registry.image, tmp_path))
    thread.start()
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    thread.join()
    assert client.image(registry.image) is not None


@pytest.mark.parametrize(
    ("why", "fault", "words"),
    [
        ("manifest for x:1 not found: manifest unknown", Fault.USER, "there is no such image"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", Fault.USER, "denies it"),
        ("unauthorized: authentication required", Fault.USER, "docker login"),
        ("Get https://r/v2/: dial tcp: lookup r: no such host", Fault.USER, "the host of its registry does not exist"),
        ("Get https://r/v2/: dial tcp: lookup r on 1.1.1.1:53: server misbehaving", Fault.SERVICE, "cannot be reached"),
        (
            "Get https://r/v2/: net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
            Fault.SERVICE,
            "cannot be reached",
        ),
        ("write /data/tmp/x: no space left on device", Fault.NODE, "Docker's disk is full"),
        ("Get http://localhost:1/v2/: connect: connection refused", Fault.SERVICE, "cannot be reached"),
        ("toomanyrequests: You have reached your pull rate limit", Fault.SERVICE, "limits the rate of requests"),
        ("invalid reference format", Fault.USER, "not an image name"),
        ("something new", Fault.NODE, "cannot be pulled: something new"),
    ],
)
def test_whose_fault_a_failed_pull_is(why: str, fault: Fault, words: str) -> None:
    error = pull_error("x:1", why)
    assert error.fault is fault
    assert words in str(error)
    assert str(error).startswith("image x:1 cannot be pulled: ")
    assert why in str(error)
