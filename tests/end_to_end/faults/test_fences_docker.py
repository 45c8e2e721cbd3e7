"""Whole applications in Docker under an operator's node.yaml: from the ApplicationMaster to what the container is.

The file is /etc/dlapp/node.yaml, so what looks at it runs in a mount namespace of its own, in which /etc is a copy.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.applications import Done, ended, properties, run, status, wait_for
from tests.services.containers.dockerd import GPU_IMAGE, IMAGE, Dockerd, busybox_root
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.services.containers.registry import Registry
from tests.services.ports import free_range
from tests.services.users import interpreter_for_everybody, place_for_everybody

pytestmark = pytest.mark.root

ROOT, TONY = 0, 12_345


class Node:
    """A machine with an operator, in ``place``, which every user may look into."""

    def __init__(self, place: Path, daemon: Dockerd) -> None:
        self.place, self.daemon = place, daemon
        self._etc = place / "etc"
        subprocess.run(["cp", "-a", "/etc", self._etc], check=True)
        (self._etc / "dlapp").mkdir(exist_ok=True)
        (place / "gpus").mkdir()
        (place / "gpus").chmod(0o1777)
        self._python = interpreter_for_everybody()
        self.policy("")

    def policy(self, text: str, owner: int = ROOT) -> None:
        """Write node.yaml."""
        file = self._etc / "dlapp" / "node.yaml"
        file.write_text(text)
        os.chown(file, owner, owner)

    @property
    def command_prefix(self) -> list[str]:
        """Return what a command begins with that is to see this /etc."""
        mount = 'mount --bind "$0" /etc && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(self._etc)]

    def home_directory(self, uid: int) -> Path:
        path = self.place / f"home-{uid}"
        if not path.exists():
            path.mkdir(mode=0o700)
            os.chown(path, uid, uid)
        return path

    def env(self, uid: int) -> dict[str, str]:
        return {
            "HOME": str(self.home_directory(uid)),
            "DLAPP_LOCAL_STATE_DIR": f"{self.home_directory(uid)}/state",
            "DLAPP_GPUID_LOCK_DIR": f"{self.place}/gpus",
            "DLAPP_RUNTIME_DOCKER_HOST": self.daemon.host,
            "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
        }

    def view_as(self, uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the commands of the test see the applications of a user."""
        for name, value in self.env(uid).items():
            monkeypatch.setenv(name, value)

    def file(self, uid: int, script: str, image: str = IMAGE, **resources: int) -> Path:
        """A user's properties file of an application in Docker."""
        home = self.home_directory(uid)
        file = properties(
            home,
            script,
            application={"docker_image": image},
            resources=dict(resources),
            to_hdfs={"hdfs": home / "result", "output_path": "out"},
        )
        for path in home.rglob("test*"):
            os.chown(path, uid, uid)
        return file

    def command(self, uid: int, tool: str, file: object) -> list[str]:
        """Return what a user says here about a properties file or an application."""
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        return [*self.command_prefix, *become, str(self._python), "-m", "dlapp.tools", tool, str(file)]

    def launch(self, uid: int, script: str, image: str = IMAGE, containers: int = 1, **env: str) -> str:
        """Submit an application in Docker as a user; its id."""
        return self.submit(uid, self.file(uid, script, image, containers=containers), **env)

    def submit(self, uid: int, file: Path, **env: str) -> str:
        """The same with a properties file that is there."""
        done = self.launcher(uid, file, **env)
        assert done.returncode == 0, done.stderr
        return next(line.partition(" = ")[2] for line in done.stdout.splitlines() if line.startswith("DL App ID"))

    def launcher(self, uid: int, file: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run dlapp-launcher as a user."""
        return subprocess.run(
            self.command(uid, "launcher", file),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            env={**os.environ, **self.env(uid), **env},
            cwd=self.home_directory(uid),
        )

    def end(self, uid: int, tool: str, application: str) -> None:
        """End a user's application as that user: root ends nothing of who has no entry in passwd."""
        env = {**os.environ, **self.env(uid)}
        words = self.command(uid, tool, application)
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env, cwd=self.home_directory(uid))
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def shell(self, uid: int, file: Path, script: str, **env: str) -> Iterator[list[str]]:
        """A shell without a terminal that has done ``script``: the lines of that. The block's end closes it."""
        process = subprocess.Popen(
            self.command(uid, "shell", file),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.env(uid), **env},
            cwd=self.home_directory(uid),
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(script + "echo ready\n")
            process.stdin.flush()
            yield [line.rstrip("\n") for line in takewhile(lambda line: line != "ready\n", process.stdout)]
            process.stdin.close()
            assert process.wait(timeout=120) == 0

    def container(self, filtered: str) -> dict[str, Any]:
        """Return what dockerd says of the only container that the filter leaves."""
        (name,) = self.daemon.containers(filtered)
        return dict(json.loads(self.daemon.docker("inspect", name).stdout)[0])


@pytest.fixture
def node(dockerd: Dockerd) -> Iterator[Node]:
    dockerd.socket.chmod(0o666)
    dockerd.socket.parent.chmod(0o755)
    with place_for_everybody("node") as place:
        yield Node(place, dockerd)


LOOK = """
echo user $(id -u) $(id -g); grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status
cat DATA; touch DATA 2>/dev/null || echo read-only
mkdir -p out; echo kept > out/a
seq 1 5000 >&2
trap '' TERM; echo ready; while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("uid", [ROOT, TONY], ids=["root", "user"])
def test_the_operators_limits_apply_to_every_user(node: Node, uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = node.place / "data"
    data.write_text("the operator's\n")
    node.policy(f"kill_grace_max: 1s\nlog_limit: 4k\ndocker: {{networks: [none], pids_limit: 77, mounts: [{data}]}}\n")
    node.view_as(uid, monkeypatch)
    application = node.launch(uid, LOOK.replace("DATA", str(data)))

    def printed() -> list[str]:
        return run("dlapp-logs", "--container", "0", "--stdout", application).out.splitlines()

    wait_for("its payload", lambda: printed()[-1:] == ["ready"])
    user, capabilities, privileges, *rest = printed()
    assert user == f"user {uid} {uid}"
    effective = int(capabilities.split()[1], 16)
    # Of root's: neither mknod (27), raw sockets (13), nor anything of the administrator's (21).
    assert effective & (1 << 27 | 1 << 13 | 1 << 21) == 0
    assert (effective != 0) is (uid == ROOT)
    assert privileges.split()[1] == "1"
    assert rest == ["the operator's", "read-only", "ready"]

    about = node.container(f"label=dlapp.app={application}")
    host = about["HostConfig"]
    assert (host["NetworkMode"], host["PidsLimit"], host["Memory"]) == ("none", 77, 64 << 20)
    assert (host["Privileged"], host["CapAdd"], host["Init"]) == (False, None, True)
    assert about["Config"]["User"].split(":")[0] == str(uid)
    assert {mount["Destination"]: mount["RW"] for mount in about["Mounts"]}[str(data)] is False
    assert not any("docker.sock" in mount["Source"] for mount in about["Mounts"])

    wait_for("it runs", lambda: phases(application) == ["running"])
    node.end(uid, "softkill", application)
    end = ended(application)
    assert end["final_status"] == "KILLED", end
    (container,) = end["containers"]
    directory = Path(container["log_url"].removeprefix("file://"))
    assert "SIGTERM, and SIGKILL in 1 s" in (directory / "dlapp.log").read_text()
    assert (directory / "stderr").stat().st_size == 4096
    assert "stderr cut to 4096 bytes" in container["message"]
    kept_output = node.home_directory(uid) / "result" / "a"
    assert (kept_output.read_text(), kept_output.stat().st_uid) == ("kept\n", uid)
    assert node.daemon.containers(f"label=dlapp.app={application}") == []


MEET = """
set -- $(grep -o '"ports": .[0-9]*' $DLAPP_ROSTER | grep -o '[0-9]*$')
echo $1 $2
if [ $CONTAINER_INDEX = 0 ]; then nc -l -p $1
else
    address=$(sed -n 's/\\tpeer-0$//p' $DLAPP_DIR/hosts)
    echo hello from 1 >said  # a pipe that is still empty loses to the end of the other side's /dev/null
    until nc $address $1 <said; do sleep 0.05; done
fi
mkdir -p out; echo x >out/x
"""


def test_containers_in_docker_exchange_bytes_over_ports_of_the_operators_range(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = free_range(3)
    node.policy(f"ports: {first}-{first + 2}\n")
    node.view_as(ROOT, monkeypatch)
    file = node.file(ROOT, MEET)
    text = file.read_text().replace("containers=1\n", "")
    file.write_text(text + "\n[role peer]\ninstances=2\nports=1\n")
    application = node.submit(ROOT, file)
    end = ended(application)
    assert end["final_status"] == "SUCCEEDED", end
    lines = [run("dlapp-logs", "--container", n, "--stdout", application).out.splitlines() for n in ("0", "1")]
    assert lines[0][1:] == ["hello from 1"]
    ports = lines[0][0].split()
    assert lines[1] == [" ".join(ports)]
    assert len(set(ports)) == 2
    assert set(ports) <= {str(port) for port in range(first, first + 3)}

    first = free_range(3)  # connections of the others may still be closing
    node.policy(f"ports: {first}-{first + 2}\n")
    other = text.replace("/result", "/other")
    file.write_text(other + "\n[role peer]\ninstances=2\nports=2\n")
    end = ended(node.submit(ROOT, file))
    assert end["final_status"] == "FAILED"
    lack = f"of the ports {first}-{first + 2} only 1 are free on this machine, and 2 are needed"
    assert lack in end["diagnostics"]
    assert "(ports of /etc/dlapp/node.yaml)" in end["diagnostics"]


INSIDE = """
id; pwd; ulimit -a -H; ulimit -a -S
grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status
echo shm $(df -k /dev/shm | tail -n 1); ls /dev
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null
ls /var/run/docker.sock /run/docker.sock 2>/dev/null
cat DATA; touch DATA 2>/dev/null || echo read-only
"""


@pytest.mark.parametrize("uid", [ROOT, TONY], ids=["root", "user"])
def test_a_shell_has_the_fences_of_a_payload_of_the_same_file(
    node: Node, uid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = node.place / "data"
    data.write_text("the operator's\n")
    node.policy(f"docker: {{networks: [none], pids_limit: 77, shm_percent: 75, mounts: [{data}]}}\n")
    node.view_as(uid, monkeypatch)
    (devices := node.place / "cards").mkdir(mode=0o755)
    env = {**seen_by_all(devices, [StubDevice()]), "DLAPP_RUNTIME_DOCKER_GPU_MODE": "gpus"}
    look = INSIDE.replace("DATA", str(data))
    file = node.file(uid, f"{look}echo ready; exec sleep 1000", GPU_IMAGE, memory=96, gcores=1)

    application = node.submit(uid, file, **env)

    def printed() -> list[str]:
        return run("dlapp-logs", "--container", "0", "--stdout", application).out.splitlines()

    wait_for("its payload", lambda: printed()[-1:] == ["ready"])
    payloads, payload = printed()[:-1], node.container(f"label=dlapp.app={application}")
    node.end(uid, "kill", application)
    ended(application)
    # There is one GPU, so the shell gets the same.
    with node.shell(uid, file, look, **env) as shells:
        shell = node.container("label=dlapp.app")
    wait_for("the shell's container is removed", lambda: not node.daemon.containers("label=dlapp.app"))

    assert shells == payloads
    assert shells[0].startswith(f"uid={uid}(")
    assert shells[1] == "/workspace"
    assert "NoNewPrivs:\t1" in shells
    assert "nvidia0" in shells
    assert shells[-2:] == ["the operator's", "read-only"]
    assert not any("docker.sock" in line for line in shells)

    host = shell["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (96 << 20, 96 << 20, 77)
    assert host["ShmSize"] == 72 << 20
    assert f"shm shm {72 << 10}" in " ".join(shells), "as the operator says"
    assert (host["Privileged"], host["CapAdd"], host["SecurityOpt"]) == (False, None, ["no-new-privileges"])
    # Docker itself removes a shell's container; a payload's is asked first how it ended.
    own = ("AutoRemove", "Mounts")
    assert {key: value for key, value in host.items() if key not in own} == {
        key: value for key, value in payload["HostConfig"].items() if key not in own
    }
    assert shell["Image"] == payload["Image"]
    assert shell["Config"]["User"] == payload["Config"]["User"] == f"{uid}:{uid}"
    assert not any("docker.sock" in mount["Source"] for mount in shell["Mounts"])
    assert seen_of_the_host(shell) == seen_of_the_host(payload) == {"/workspace": True, str(data): False}


def seen_of_the_host(about: dict[str, Any]) -> dict[str, bool]:
    """Return where something of the host is mounted -> whether it may be written; without what dlapp brings."""
    ours = ("/dlapp/", "/etc/passwd", "/etc/group")
    return {mount["Destination"]: mount["RW"] for mount in about["Mounts"] if not mount["Destination"].startswith(ours)}


def containers(node: Node) -> set[str]:
    """Return the containers of all applications; one of an earlier test may be about to go."""
    return set(node.daemon.containers("label=dlapp.app"))


@pytest.mark.parametrize(
    ("policy", "owner", "network", "message"),
    [
        (
            "docker: {networks: [none]}",
            ROOT,
            "host",
            "is host (runtime.docker.network): this node allows none (docker.networks of",
        ),
        ("docker: {networks: [host]}", TONY, "none", "/etc/dlapp/node.yaml: must be a file of root that nobody else"),
        ("docker: {privileged: true}", ROOT, "none", "/etc/dlapp/node.yaml:1: docker.privileged: is not known"),
        (
            "docker: {registry: {allow: r.org}}",
            ROOT,
            "none",
            "and docker.registry.allow of /etc/dlapp/node.yaml allows r.org",
        ),
    ],
    ids=["network", "owner", "unknown key", "registry"],
)
def test_a_forbidden_request_is_refused_with_its_line_before_submission(
    node: Node, policy: str, owner: int, network: str, message: str
) -> None:
    before = containers(node)
    node.policy(policy + "\n", owner)
    done = node.launcher(TONY, node.file(TONY, "echo it ran", IMAGE), DLAPP_RUNTIME_DOCKER_NETWORK=network)
    assert done.returncode == 2
    assert message in done.stderr
    assert "DL App ID" not in done.stdout
    assert containers(node) <= before


def test_a_role_with_ports_is_refused_without_the_host_network(node: Node) -> None:
    before = containers(node)
    node.policy("docker: {networks: [none]}\n", ROOT)
    file = node.file(TONY, "echo it ran", IMAGE)
    file.write_text(file.read_text().replace("[application]\n", "[application]\nframework=pytorch\n"))
    done = node.launcher(TONY, file, DLAPP_RUNTIME_DOCKER_NETWORK="none")
    assert done.returncode == 2
    assert "is host, without which the ports of role worker cannot be reached: this node allows none" in done.stderr
    assert containers(node) <= before


def test_an_invalid_node_yaml_refuses_plain_programs_before_submission_too(node: Node) -> None:
    node.policy("docker: {privileged: true}\n", ROOT)
    done = node.launcher(ROOT, properties(node.home_directory(ROOT), "echo it ran"))
    assert done.returncode == 2
    assert "/etc/dlapp/node.yaml:1: docker.privileged: is not known" in done.stderr
    assert "DL App ID" not in done.stdout


@pytest.mark.slow
def test_one_of_two_users_containers_pulls_the_image(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with Registry(busybox_root({"ballast": os.urandom(1 << 20)}), slow_s=120.0) as registry:
        started = {uid: node.launch(uid, "mkdir out", registry.image, containers=2) for uid in (ROOT, TONY)}
        for uid, application in started.items():
            node.view_as(uid, monkeypatch)
            wait_for("all wait", lambda a=application: phases(a) == ["pulling"] * 2)  # type: ignore[misc]

        def noted(line: str) -> int:
            logs = node.place.glob("home-*/state/*/applications/*/containers/*/dlapp.log")
            return sum(f"image {registry.image}: {line}\n" in log.read_text() for log in logs)

        # A task says that it is pulling before it has looked whether another one does.
        wait_for("all but one know that", lambda: noted("another task is pulling it") == 3)
        registry.slow_s = 0.0
        for uid, application in started.items():
            node.view_as(uid, monkeypatch)
            assert ended(application)["final_status"] == "SUCCEEDED"
        assert registry.layers_sent == 1
        assert (noted("pulling"), noted("another task is pulling it")) == (1, 3)
        node.daemon.docker("rmi", registry.image)


def phases(application: str) -> list[str]:
    return [container["phase"] for container in status(application)["containers"]]


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("allowed", [False, True], ids=["by default", "docker.root"])
def test_on_a_cluster_a_root_task_starts_a_container_only_if_allowed(
    node: Node, request: pytest.FixtureRequest, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hadoop = request.getfixturevalue("hadoop")
    cache = Path(os.environ["HOME"], ".cache", "dlapp")
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / "travel").exists():
        (cache / "travel").symlink_to(request.getfixturevalue("travel_cache"))
    node.policy("docker: {root: true}\n" if allowed else "")
    python = node.place / "python-there"
    words = " ".join(f"'{word}'" for word in node.command_prefix)
    python.write_text(f'#!/bin/sh\nexec {words} {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name, value in {
        "DLAPP_CLUSTER": "yarn",
        "DLAPP_YARN_CONF_DIR": str(hadoop.configuration),
        "DLAPP_YARN_PYTHON": str(python),
        "HADOOP_USER_NAME": getpass.getuser(),
        "DLAPP_RUNTIME_DOCKER_HOST": node.daemon.host,
        "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
    }.items():
        monkeypatch.setenv(name, value)
    file = properties(node.place, "echo user $(id -u)", application={"docker_image": IMAGE})
    done: Done = run("dlapp-launcher", "--wait", file, timeout_s=120)
    end = status("last")
    assert done.code == (0 if allowed else 1), done.err
    if allowed:
        out = wait_for("its log", lambda: run("dlapp-logs", "--container", "0", "--stdout").out)
        assert out == "user 0\n"
    else:
        assert (
            "a payload in Docker would be root on this node (docker.root of /etc/dlapp/node.yaml)" in end["diagnostics"]
        )
    assert node.daemon.containers(f"label=dlapp.app={end['application_id']}") == []
