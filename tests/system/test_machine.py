from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.system.machine import boot_id, file_system_of, machine_id

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:35 / /home rw,relatime shared:7 master:1 - nfs4 server:/export/home rw,vers=4.2
41 40 0:36 / /home/tony/my\\040disk rw - xfs /dev/sdb rw
42 22 0:37 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
43 22 0:38 / /over rw - nfs4 server:/a rw
44 22 0:39 / /over rw - ext4 /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/dlapp", "ext4"),
        ("/home/tony/.local/state/dlapp", "nfs4"),
        ("/home/tony/my disk/dlapp", "xfs"),
        ("/homes/tony", "ext4"),
        ("/scratch", "lustre"),
        ("/over/dlapp", "ext4"),
    ],
)
def test_a_path_belongs_to_the_innermost_and_latest_mount(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert file_system_of(path, str(tmp_path / "mountinfo"))[0] == kind


def test_without_a_mount_table_the_file_system_is_unknown(tmp_path: Path) -> None:
    assert file_system_of("/", str(tmp_path / "mountinfo")) == ("", "")


def test_only_a_valid_id_of_the_machine_is_read(tmp_path: Path) -> None:
    assert machine_id(str(tmp_path)) == ""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("uninitialized\n../../x")
    assert machine_id(str(tmp_path)) == ""
    (tmp_path / "etc/machine-id").write_text("0123abcd\n")
    assert machine_id(str(tmp_path)) == "0123abcd"


def test_a_boot_has_one_id() -> None:
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()
