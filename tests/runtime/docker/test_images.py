"""Images are pulled from a registry: once, with the user's credentials, with progress, and with whose fault it is."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.net.dockerd import Dockerd as Client
from dlapp.node_policy import ANY_REGISTRY, RegistryPolicy
from dlapp.runtime.docker.images import ImageStore, LocalImage, pull_error
from dlapp.runtime.payload import PayloadError
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.messages import Fault
from tests.services.containers.dockerd import IMAGE, Dockerd, busybox_root
from tests.services.containers.registry import Registry
from tests.services.polling import wait_until


@pytest.fixture
def client(dockerd: Dockerd) -> Client:
    return Client(dockerd.host, 120)


def filled(megabytes: int) -> bytes:
    return busybox_root({"ballast": os.urandom(megabytes << 20)})


@pytest.fixture
def registry(dockerd: Dockerd) -> Iterator[Registry]:
    with Registry(filled(1)) as one:
        yield one
        dockerd.docker("rmi", "-f", one.image, check=False)


def get(
    client: Client,
    image: str,
    lock_dir: Path,
    messages: list[str] | None = None,
    *,
    policy: RegistryPolicy = ANY_REGISTRY,
    credentials: RegistryCredentials | None = None,
) -> LocalImage:
    note = (messages if messages is not None else []).append
    return ImageStore(client, str(lock_dir), note, policy, credentials).require(image)


def login(registry: str, user: str = "tony", password: str = "secret") -> RegistryCredentials:
    given = json.dumps({"username": user, "password": password, "serveraddress": registry})
    return RegistryCredentials(registry, base64.urlsafe_b64encode(given.encode()).decode())


def test_a_missing_image_is_pulled_and_its_digest_noted(client: Client, registry: Registry, tmp_path: Path) -> None:
    messages: list[str] = []
    found = get(client, registry.image, tmp_path, messages)
    assert found.digest == f"{registry.address}/it@{registry.digest}"
    assert messages == [f"image {registry.image}: pulling", f"image {registry.image}: {found.digest}"]
    get(client, registry.image, tmp_path)
    assert registry.layers_sent == 1


def test_an_image_can_be_named_by_its_digest(client: Client, registry: Registry, tmp_path: Path) -> None:
    image = f"{registry.address}/it@{registry.digest}"
    assert get(client, image, tmp_path).digest == image
    other = f"{registry.address}/it@sha256:{'0' * 64}"
    with pytest.raises(PayloadError, match="there is no such image"):
        get(client, other, tmp_path)
    # With a tag besides the digest counts alone.
    assert get(client, f"{registry.address}/it:2@{registry.digest}", tmp_path).digest == image
    client.call("DELETE", f"/images/{image}")


@pytest.mark.slow
def test_many_tasks_that_need_an_image_pull_it_once_and_wait_for_it(
    client: Client, dockerd: Dockerd, tmp_path: Path
) -> None:
    with Registry(filled(1), slow_s=1000.0) as registry:
        messages: list[str] = []
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.append(get(client, registry.image, tmp_path, messages)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        waits = f"image {registry.image}: another task is pulling it"
        wait_until(lambda: messages.count(waits) == 3, what="the others wait")
        registry.slow_s = 0.0
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert registry.layers_sent == 1
        assert messages.count(f"image {registry.image}: pulling") == 1
        assert messages.count(waits) == 3
        dockerd.docker("rmi", registry.image)


@pytest.mark.slow
def test_a_pull_reports_its_progress(client: Client, dockerd: Dockerd, tmp_path: Path) -> None:
    with Registry(filled(8), slow_s=10.0) as registry:
        progress_calls: list[tuple[int, int]] = []

        def tell(done: int, total: int) -> None:
            progress_calls.append((done, total))
            registry.slow_s = 0.0  # dockerd tells only what is the latest: all at once would be one line

        ImageStore(client, str(tmp_path), lambda _: None).require(registry.image, tell)
        assert progress_calls == sorted(progress_calls)
        assert 0 < progress_calls[0][0] < progress_calls[-1][0] == progress_calls[-1][1]
        assert progress_calls[-1][1] > 8 << 20
        dockerd.docker("rmi", registry.image)


@pytest.mark.parametrize("by_token", [False, True])
def test_an_image_is_pulled_with_the_submitters_credentials(
    by_token: bool, client: Client, dockerd: Dockerd, tmp_path: Path
) -> None:
    with Registry(filled(1), login="tony:secret", by_token=by_token) as registry:
        where = registry.address
        with pytest.raises(
            PayloadError, match=rf"its registry denies it .*asked without credentials for {where}"
        ) as no:
            get(client, registry.image, tmp_path)
        assert no.value.fault is Fault.USER
        with pytest.raises(PayloadError, match=rf"its registry denies it .*asked with your credentials for {where}"):
            get(client, registry.image, tmp_path, credentials=login(where, password="wrong"))
        assert registry.layers_sent == 0
        get(client, registry.image, tmp_path, credentials=login(where))
        dockerd.docker("rmi", registry.image)


@pytest.mark.proves("registry-credentials")
def test_credentials_are_sent_to_their_registry_and_to_no_mirror(
    client: Client, dockerd: Dockerd, tmp_path: Path
) -> None:
    with (
        Registry(filled(1), login="tony:secret") as registry,
        Registry(busybox_root(), login="a:mirror") as mirror,
    ):
        policy = RegistryPolicy(mirror=((registry.address, mirror.address),))
        messages: list[str] = []
        found = get(client, registry.image, tmp_path, messages, policy=policy, credentials=login(registry.address))
        assert (found.name, registry.layers_sent, mirror.layers_sent) == (registry.image, 1, 0)
        assert mirror.refused > 0
        assert not mirror.authorizations
        assert any(
            line.startswith(f"image {registry.image}: the mirror {mirror.address}/it does not") for line in messages
        )
        with pytest.raises(PayloadError, match="asked without credentials"):
            get(client, f"{mirror.address}/it:1", tmp_path, credentials=login(registry.address, "a", "mirror"))
        dockerd.docker("rmi", registry.image)


def test_a_mirror_serves_images_by_digest_and_a_down_mirror_is_skipped(
    client: Client, dockerd: Dockerd, registry: Registry, tmp_path: Path
) -> None:
    with Registry(filled(1), repository="cache/it") as mirror:
        policy = RegistryPolicy(mirror=(("registry.example.com", f"{mirror.address}/cache"),))
        messages: list[str] = []
        found = get(client, "registry.example.com/it:1", tmp_path, messages, policy=policy)
        assert (found.name, found.digest) == (mirror.image, f"{mirror.address}/cache/it@{mirror.digest}")
        named = get(client, f"registry.example.com/it@{mirror.digest}", tmp_path, policy=policy)
        assert named.name == f"{mirror.address}/cache/it@{mirror.digest}"
        dockerd.docker("rmi", "-f", mirror.image)
    with socket.socket() as held:  # nobody else is given its port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", int(mirror.address.rpartition(":")[2])))
        down = RegistryPolicy(mirror=((registry.address, mirror.address),))
        messages.clear()
        assert get(client, registry.image, tmp_path, messages, policy=down).name == registry.image
        assert "does not have it" in messages[1]
        assert "connection refused" in messages[1]
        both = RegistryPolicy(mirror=(("127.0.0.1:1", mirror.address),))
        with pytest.raises(
            PayloadError, match=f"cannot be reached.*before that the mirror {mirror.address}/it did"
        ) as away:
            get(client, "127.0.0.1:1/it:1", tmp_path, policy=both)
        assert away.value.fault is Fault.SERVICE


def test_a_name_without_a_registry_is_of_the_operators(client: Client, registry: Registry, tmp_path: Path) -> None:
    policy = RegistryPolicy(prefix=registry.address)
    assert get(client, "it:1", tmp_path, policy=policy, credentials=login("docker.io")).name == registry.image
    assert not registry.authorizations


def test_an_image_that_the_operator_does_not_allow_is_not_used(client: Client, tmp_path: Path) -> None:
    policy = RegistryPolicy(allow=("registry.example.com/team",))
    with pytest.raises(PayloadError) as refused:
        get(client, IMAGE, tmp_path, policy=policy)  # it is there
    assert refused.value.fault is Fault.USER
    assert str(refused.value) == (
        f"image {IMAGE} is not allowed on this node: it is docker.io/{IMAGE.partition(':')[0]}, and "
        "docker.registry.allow of /etc/dlapp/node.yaml allows registry.example.com/team"
    )


def test_an_image_missing_at_the_registry_is_a_user_fault(client: Client, registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=f"image {registry.address}/it:2 cannot be pulled: there is no such") as none:
        get(client, f"{registry.address}/it:2", tmp_path)
    assert none.value.fault is Fault.USER
    with pytest.raises(PayloadError, match="not an image name") as odd:
        get(client, "Not A Name", tmp_path)
    assert odd.value.fault is Fault.USER


def test_an_unreachable_registry_is_a_service_to_wait_for(client: Client, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="its registry cannot be reached") as away:
        get(client, "127.0.0.1:1/it:1", tmp_path)
    assert away.value.fault is Fault.SERVICE


def test_the_lock_of_a_dead_puller_is_free(client: Client, registry: Registry, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # it takes the lock, and never pulls
        from dlapp.runtime.docker import images

        with images._pull_lock(str(tmp_path), client.host, registry.image, lambda _: None):
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
def test_a_failed_pull_is_assigned_to_user_node_or_service(why: str, fault: Fault, words: str) -> None:
    error = pull_error("x:1", why)
    assert error.fault is fault
    assert words in str(error)
    assert str(error).startswith("image x:1 cannot be pulled: ")
    assert why in str(error)


@pytest.mark.parametrize(
    ("image", "why", "words"),
    [
        ("timeout:1", "pull access denied for timeout, repository does not exist", "denies it"),
        ("net:timeout", "manifest for net:timeout not found: manifest unknown", "there is no such image"),
        ("r:5000/a/timeout", "Get https://r:5000/v2/a/timeout/manifests/latest: unauthorized", "denies it"),
        ("toomanyrequests:1", "manifest for toomanyrequests:1 not found: manifest unknown", "there is no such image"),
        ("timeout.example.com/a:1", "Get https://timeout.example.com/v2/: dial tcp: no such host", "does not exist"),
        ("a:1", "manifest for a:1 not found: manifest unknown", "there is no such image"),
    ],
)
def test_the_name_of_an_image_is_not_taken_for_an_outage_of_its_registry(image: str, why: str, words: str) -> None:
    error = pull_error(image, why)
    assert (error.fault, error.service) == (Fault.USER, "")
    assert words in str(error)
    assert why in str(error)
