"""Test what users can do to what an operator allows on a node, and what the file may not allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.errors import ConfigError
from dlapp.node_policy import Mount, mount_problem, node_policy
from dlapp.runtime.docker.container import operators_binds
from dlapp.values.messages import Fault
from tests.attacks.identities import User
from tests.services.users import ONLY_ROOT
from tests.task.fake_am import FakeAm, workspace_archive


def policy_of(directory: Path, text: str) -> tuple[Mount, ...]:
    path = directory / "node.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return node_policy(str(path), owner=os.getuid()).docker.mounts


@pytest.mark.proves("mount-closed")
@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/.", "/var", "/var/", "/var/lib", "/var/lib/.", "/var/../var", "//var//lib", "/etc", "/etc/ssl"),
        *("/var/lib/docker", "/var/lib/docker/volumes", "/var/lib/containerd", "/run", "/run/lock", "/proc", "/sys/fs"),
        *("/dev/shm", "/root", "/root/.ssh", "/boot", "/var/run/docker.sock"),
    ],
)
@pytest.mark.parametrize("mode", ["", ":rw"])
def test_closed_directories_and_their_parents_are_not_mounted(tmp_path: Path, path: str, mode: str) -> None:
    with pytest.raises(ConfigError, match="stays outside of containers"):
        policy_of(tmp_path, f"docker: {{mounts: ['{path}{mode}']}}")


@pytest.mark.parametrize("path", ["/home", "/usr", "/usr/local/bin", "/usr/lib", "/bin", "/sbin", "/lib", "/lib64"])
def test_homes_and_programs_of_the_machine_are_never_mounted_writable(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="containers may not write all homes, nor the programs of this machine"):
        policy_of(tmp_path, f"docker: {{mounts: ['{path}:rw']}}")
    assert policy_of(tmp_path, f"docker: {{mounts: ['{path}']}}") == (Mount(path, False),)


def test_directories_beside_a_closed_one_are_mounted(tmp_path: Path) -> None:
    text = "docker: {mounts: ['/data:rw', '/scratch', '/home/shared:rw', '/var/cache/sets', '/srv:rw', '/run/media/x']}"
    assert [item.path for item in policy_of(tmp_path, text)] == [
        *("/data", "/scratch", "/home/shared", "/var/cache/sets", "/srv", "/run/media/x")
    ]


LEADS_TO = ["/etc", "/", "/var", "/run", "/root", "/proc"]


@pytest.mark.proves("mount-closed")
@pytest.mark.usefixtures("identities")
@pytest.mark.parametrize("target", LEADS_TO)
def test_a_link_in_place_of_a_mount_removes_only_that_mount(place: Path, attacker: User, target: str) -> None:
    good = place / "operators"
    good.mkdir()
    link = place / "data"
    link.symlink_to(target)
    os.chown(link, attacker.uid, attacker.uid, follow_symlinks=False)
    (place / "policy").mkdir()
    policy = place / "policy" / "node.yaml"
    policy.write_text(f"docker: {{mounts: ['{link}:rw', {good}]}}\n")
    notes: list[str] = []
    binds = operators_binds(node_policy(str(policy)).docker, notes.append)
    assert [mount.source for mount in binds] == [str(good)]
    (note,) = notes or [""]
    assert note.startswith(f"a mount is omitted (docker.mounts of /etc/dlapp/node.yaml): '{link}'"), note


@pytest.mark.usefixtures("identities")
@pytest.mark.parametrize("how", ["own directory", "directory below", "harmless link", "group", "dangling parent"])
def test_directories_that_others_can_exchange_are_not_mounted(place: Path, attacker: User, how: str) -> None:
    """Whatever stands there now: by the time of dockerd it may be a link."""
    data = place / "data"
    if how == "own directory":
        data.mkdir()
        os.chown(data, attacker.uid, attacker.uid)
    elif how == "directory below":
        data = place / "theirs" / "data"
        data.mkdir(parents=True)
        os.chown(data.parent, attacker.uid, attacker.uid)
    elif how == "harmless link":
        (place / "operators").mkdir()
        data.symlink_to(place / "operators")
        os.chown(data, attacker.uid, attacker.uid, follow_symlinks=False)
    elif how == "group":
        data = place / "shared" / "data"
        data.mkdir(parents=True)
        data.parent.chmod(0o2775)
    else:
        (place / "operators" / "data").mkdir(parents=True)
        (place / "up").symlink_to(place / "operators")
        os.chown(place / "up", attacker.uid, attacker.uid, follow_symlinks=False)
        data = place / "up" / "data"
    problem = mount_problem(Mount(str(data), False))
    assert "others than root can exchange what is in" in problem


@ONLY_ROOT
def test_the_operators_own_links_and_sticky_directories_serve(place: Path) -> None:
    (place / "disk" / "data").mkdir(parents=True)
    (place / "data").symlink_to("disk/../disk/data")
    assert mount_problem(Mount(str(place / "data"), True)) == ""
    (place / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in mount_problem(Mount(str(place / "loop"), False))


@pytest.mark.proves("program-root")
@ONLY_ROOT
@pytest.mark.parametrize("image", [None, "some/image:1"])
def test_no_program_is_root_on_a_node_of_a_cluster(tmp_path: Path, image: str | None) -> None:
    ran = tmp_path / "it-ran"
    packed = workspace_archive(tmp_path, {"run.sh": f"touch {ran}"})
    with FakeAm(tmp_path / "containers", docker_image=image, **packed) as am:
        # As a NodeManager sets it, whatever the client's file says.
        am.start(process_env={"NM_HOST": "node-1"})
        result = am.result()
    assert (result.fault, result.is_closed) == (Fault.NODE, True)
    assert result.message.endswith("would be root on this node (docker.root of /etc/dlapp/node.yaml)")
    assert not ran.exists()
