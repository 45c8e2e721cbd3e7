"""Test what a container may and may not: its user, its limits, what it sees of the host, what the operator allows."""

from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path

import pytest

from dlapp.node_policy import DockerPolicy, Mount
from dlapp.runtime.docker import accounts
from dlapp.runtime.docker.accounts import Accounts
from dlapp.runtime.docker.container import Bind, ContainerSpec, operators_binds
from dlapp.runtime.gpu.modes import GpuPart
from tests.runtime.driver import USER, Driven
from tests.services.containers.dockerd import IMAGE, Dockerd

LOOK = """
echo user $(id -u) $(id -g) $(id -un) $(id -gn)
echo home $HOME $(echo x >$HOME/x && cat $HOME/x) $TMPDIR $(echo y >$TMPDIR/y && cat $TMPDIR/y)
grep -E '^(CapEff|CapBnd|CapPrm|NoNewPrivs)' /proc/self/status
echo shm $(df -k /dev/shm | tail -n 1)
ulimit -l -H; ulimit -s; ulimit -n
cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null
ls /var/run/docker.sock /run/docker.sock 2>/dev/null
cat /data
touch /data 2>/dev/null || echo read-only
cat /etc/passwd
"""


@pytest.fixture
def open_socket(dockerd: Dockerd) -> Dockerd:
    dockerd.socket.chmod(0o666)
    dockerd.socket.parent.chmod(0o755)
    return dockerd


@pytest.mark.parametrize("is_root", [False, True], ids=["user", "root"])
def test_a_payload_has_a_name_a_home_directory_its_limits_and_no_privilege(
    place: Path, open_socket: Dockerd, is_root: bool
) -> None:
    (place / "data").write_text("the operator's\n")
    policy = place / "policy"
    policy.mkdir()
    (policy / "node.yaml").write_text(f"docker: {{pids_limit: 77, mounts: [{place}/data]}}\n")
    uid = 0 if is_root else USER
    anybody = Driven(place, as_user=not is_root)
    try:
        anybody.run(
            LOOK.replace("/data", f"{place}/data"),
            image=IMAGE,
            docker_host=open_socket.host,
            docker_lock_dir=str(place),
            node_file=str(policy / "node.yaml"),
            resources={"memory_mib": 256},
        )
        assert anybody.end()["code"] == 0, anybody.err()
    finally:
        anybody.close()
    lines = anybody.out().decode().splitlines()
    name = lines[0].split()[3]
    assert lines[0] == f"user {uid} {uid} {name} {name}"
    assert name == ("root" if is_root else f"dlapp{USER}")
    assert lines[1] == "home /dlapp/home x /dlapp/tmp y"
    status = dict(line.split(":\t") for line in lines[2:6])
    assert status["NoNewPrivs"] == "1"
    effective = int(status["CapEff"], 16)
    assert int(status["CapBnd"], 16) == effective
    # Of root's: neither mknod (27), raw sockets (13), nor anything of the administrator's (21).
    assert effective & (1 << 27 | 1 << 13 | 1 << 21) == 0
    assert (effective == 0) is not is_root
    assert lines[6].split()[2] == str(128 << 10), "half of the container's memory"
    locked, stack, files = lines[7:10]
    assert locked == "unlimited" or int(locked) >= 64
    assert stack == str(64 << 10)
    assert files == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    rest = lines[10:]
    if rest[0].isdigit():  # the test machine shows cgroup files in a container
        assert rest.pop(0) == "77"
    assert rest[:2] == ["the operator's", "read-only"], "and no socket of Docker's"
    assert f"{name}:x:{uid}:{uid}:{name}:/dlapp/home:/bin/sh" in rest[2:]


def test_an_account_that_the_image_has_stays_as_it_is(place: Path, open_socket: Dockerd) -> None:
    image = "dlapp-test/account:1"
    line = f"known:x:{USER}:7:a name:/somewhere:/bin/false"
    open_socket.docker("run", "--name=account", "--network=none", IMAGE, "sh", "-c", f"echo '{line}' > /etc/passwd")
    open_socket.docker("commit", "account", image)
    driven = Driven(place, as_user=True)
    try:
        driven.run("cat /etc/passwd", image=image, docker_host=open_socket.host, docker_lock_dir=str(place))
        assert driven.end()["code"] == 0
        assert driven.out().decode() == line + "\n"
    finally:
        driven.close()
        open_socket.docker("rm", "account")
        open_socket.docker("rmi", image)


def test_the_accounts_of_an_image_are_read_once(place: Path, open_socket: Dockerd) -> None:
    lock_dir = place / "locks"
    lock_dir.mkdir()
    lock_dir.chmod(0o1777)
    messages = []
    for number in range(2):
        (home := place / str(number)).mkdir()
        driven = Driven(home, as_user=True)
        try:
            driven.run(
                "id -un; grep -c . /etc/passwd; echo x 2>/dev/null >>/etc/passwd || echo closed",
                image=IMAGE,
                docker_host=open_socket.host,
                docker_lock_dir=str(lock_dir),
            )
            assert driven.end()["code"] == 0
        finally:
            driven.close()
        messages.append(driven.out().decode().split())
        assert len(list(lock_dir.glob(f"accounts-{USER}-*"))) == 1
        assert not (home / "passwd").exists()
    assert messages == [[f"dlapp{USER}", "1", "closed"]] * 2


def test_a_cache_file_of_another_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts.write_cached(str(tmp_path), "sha256:1", Accounts("root:x:0:0::/:/bin/sh\n", ""))
    assert accounts.read_cached(str(tmp_path), "sha256:1") == Accounts("root:x:0:0::/:/bin/sh\n", "")
    assert accounts.read_cached(str(tmp_path), "sha256:2") is None
    (path,) = tmp_path.glob("accounts-*")
    path.write_text("no JSON")
    assert accounts.read_cached(str(tmp_path), "sha256:1") is None
    uid = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: uid + 1)
    path.rename(tmp_path / path.name.replace(f"-{uid}-", f"-{uid + 1}-"))
    assert accounts.read_cached(str(tmp_path), "sha256:1") is None


@pytest.mark.parametrize(
    ("passwd", "group", "files"),
    [
        ("me:x:{uid}:5::/:/bin/sh\n", "", {}),
        ("", "", {"/etc/passwd": "{me}:x:{uid}:{gid}:{me}:/home:/bin/sh\n", "/etc/group": "{me}:x:{gid}:\n"}),
        (
            "a:x:9999999:5::/:/bin/sh",
            "g:x:{gid}:\n",
            {"/etc/passwd": "a:x:9999999:5::/:/bin/sh\n{me}:x:{uid}:{gid}:{me}:/home:/bin/sh\n"},
        ),
        (
            "{me}:x:9999999:5::/:/bin/sh\n",
            "g:x:{gid}:\n",
            {"/etc/passwd": "{me}:x:9999999:5::/:/bin/sh\ndlapp{uid}:x:{uid}:{gid}:dlapp{uid}:/home:/bin/sh\n"},
        ),
        (
            "nonsense\n::::\n",
            "g:x:{gid}:\n",
            {"/etc/passwd": "nonsense\n::::\n{me}:x:{uid}:{gid}:{me}:/home:/bin/sh\n"},
        ),
    ],
)
def test_an_account_is_added_to_those_of_the_image(passwd: str, group: str, files: dict[str, str]) -> None:
    try:
        me = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        me = f"dlapp{os.getuid()}"

    def full(text: str) -> str:
        return text.format(uid=os.getuid(), gid=os.getgid(), me=me)

    found = Accounts(full(passwd), full(group)).completed("/home")
    assert found == {path: full(text).encode() for path, text in files.items()}


@pytest.mark.parametrize("network", ["bridge", "container:other", "mine"])
def test_a_network_that_the_operator_does_not_allow_is_refused(place: Path, dockerd: Dockerd, network: str) -> None:
    (place / "node.yaml").write_text("docker: {networks: [host, none]}\n")
    driven = Driven(place, as_user=False)
    try:
        driven.run(
            "echo it ran",
            image=IMAGE,
            docker_host=dockerd.host,
            docker_network=network,
            node_file=str(place / "node.yaml"),
            docker_lock_dir=str(place),
        )
        refused = driven.hear("refused")
        assert refused["fault"] == "node"
        assert refused["problem"] == (
            f"network={network} ([application], runtime.docker.network, or host for a role with ports): this node "
            "allows host, none (docker.networks of /etc/dlapp/node.yaml)"
        )
        assert driven.process is not None
        driven.process.wait()
        assert dockerd.containers() == []
    finally:
        driven.close()


def test_container_labels_name_the_user_and_the_image(place: Path, dockerd: Dockerd) -> None:
    driven = Driven(place, as_user=False, env={"STOP_BEFORE_START": "1"})
    try:
        driven.run("true", image=IMAGE, docker_host=dockerd.host, docker_lock_dir=str(place))
        driven.hear("made")
        (name,) = dockerd.containers()
        form = "{{range $k, $v := .Config.Labels}}{{$k}}={{$v}}\n{{end}}"
        labels = dict(
            line.partition("=")[::2]
            for line in dockerd.docker("inspect", "--format", form, name).stdout.decode().split("\n")
            if line
        )
        image = dockerd.docker("image", "inspect", "--format", "{{.Id}}", IMAGE).stdout.decode().strip()
        assert labels["dlapp.image"] == image
        assert labels["dlapp.app"] == "application_1700000000000_0001"
        assert labels["dlapp.uid"] == str(os.getuid())
        dockerd.docker("rm", name)
    finally:
        driven.close()


def test_a_mount_of_the_operators_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    policy = DockerPolicy((), None, (), (Mount(str(tmp_path), True), Mount("/not/there", False)), False, 100, 50)
    assert operators_binds(policy) == (Bind(str(tmp_path), str(tmp_path), False),)


def test_a_container_as_arguments_has_one_word_per_flag() -> None:
    container = ContainerSpec(
        name="dlapp-x",
        image="image:1",
        entrypoint=("/bin/sh", "/dlapp/wrapper.sh"),
        command=("wait", "--privileged", "a b"),
        env={"PLAIN": "--privileged", "LINES": "a\nb"},
        labels={"dlapp.app": "x"},
        working_dir="/workspace",
        binds=(Bind('/a,"b', "/workspace"), Bind("/c", "/d", True)),
        network="none",
        memory_bytes=64 << 20,
        cpus=1,
        shm_bytes=32 << 20,
        pids_limit=7,
        gpus=GpuPart({"NVIDIA_DRIVER_CAPABILITIES": "utility"}),
        ulimits={"memlock": (-1, -1)},
        user="1:2",
        groups=(60_200, 60_201),
    )
    words = container.as_arguments("/env")
    image = words.index("image:1")
    assert all(word == "create" or (word.startswith("--") and "=" in word) for word in words[:image])
    assert words[image + 1 :] == ["/dlapp/wrapper.sh", "wait", "--privileged", "a b"]
    assert '--mount=type=bind,"source=/a,""b",target=/workspace' in words
    assert "--mount=type=bind,source=/c,target=/d,readonly" in words
    assert "--ulimit=memlock=-1:-1" in words
    assert [word for word in words if "group" in word] == ["--group-add=60200", "--group-add=60201"]
    assert container.lines_of_env() == "PLAIN=--privileged\nNVIDIA_DRIVER_CAPABILITIES=utility\n"
    assert container.multiline_env() == {"LINES": "a\nb"}
