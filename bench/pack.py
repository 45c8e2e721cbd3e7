"""Packing a workspace of 20,000 files of 10 KiB, against GNU tar piped into gzip at the same level.

Both are whole processes that read the same files, in the page cache by then, and write an archive to the same file
system; ours also looks through the workspace first, takes the digest, and waits until the archive is on the disk.

pack         files per second, ours over tar's and gzip's
pack-memory  our process's peak resident memory, in units of 100 MiB
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import Row, alternately, median_ratio

FILES = 20_000
FILE_BYTES = 10 << 10
LEVEL = 1
ROUNDS = 5
MEMORY_GOAL_MIB = 100

OURS = """
import sys
from dlapp.launcher.workspace.pack import pack, scan_workspace
packed = pack(scan_workspace(sys.argv[1]), sys.argv[2], limit_bytes=1 << 40)
assert packed.files == int(sys.argv[3]) and not packed.reused
status = open("/proc/self/status").read()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
"""


def rows() -> list[Row]:
    """Write the workspace, pack it both ways by turns."""
    for tool in ("tar", "gzip"):
        if shutil.which(tool) is None:
            raise SystemExit(f"Error: {tool} is not installed, and it is what packing is compared with")
    with tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name:
        root = Path(name)
        workspace = root / "workspace"
        make_workspace(workspace)
        peaks_kib: list[int] = []

        def ours() -> float:
            shutil.rmtree(root / "cache", ignore_errors=True)
            began = time.perf_counter()
            argv = [sys.executable, "-I", "-c", OURS, str(workspace), str(root / "cache"), str(FILES)]
            said = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
            taken = time.perf_counter() - began
            peaks_kib.append(int(said))
            return taken

        def tar_and_gzip() -> float:
            began = time.perf_counter()
            with open(root / "peer.tar.gz", "wb") as out:
                tar = subprocess.Popen(["tar", "cf", "-", "-C", str(workspace), "."], stdout=subprocess.PIPE)
                gzip = subprocess.Popen(["gzip", f"-{LEVEL}"], stdin=tar.stdout, stdout=out)
                assert tar.stdout is not None
                tar.stdout.close()
                if gzip.wait() or tar.wait():
                    raise SystemExit("Error: tar or gzip failed, so their time means nothing")
            return time.perf_counter() - began

        ours_s, peer_s = alternately([ours, tar_and_gzip], ROUNDS)
        (archive,) = (root / "cache").iterdir()
        sizes = archive.stat().st_size, (root / "peer.tar.gz").stat().st_size
    total_mb = FILES * FILE_BYTES / 1e6
    peak_mib = max(peaks_kib) / 1024
    conditions = {
        "files": FILES,
        "file_bytes": FILE_BYTES,
        "level": LEVEL,
        "cores": len(os.sched_getaffinity(0)),
    }
    return [
        Row(
            name="pack",
            ratio=1 / median_ratio(ours_s, peer_s),
            goal=1.5,
            better="higher",
            conditions=conditions
            | {
                "ours_mb_per_s": total_mb / sorted(ours_s)[ROUNDS // 2],
                "tar_gzip_mb_per_s": total_mb / sorted(peer_s)[ROUNDS // 2],
                "archive_over_peers": sizes[0] / sizes[1],
            },
        ),
        Row(
            name="pack-memory",
            ratio=peak_mib / MEMORY_GOAL_MIB,
            goal=1.0,
            better="lower",
            conditions=conditions | {"peak_mib": peak_mib},
        ),
    ]


def make_workspace(workspace: Path) -> None:
    """Text that compresses about as well as logs and sources do, the same in every run."""
    chance = random.Random(20160926)
    words = [f"{chance.getrandbits(24):x}" for _ in range(3000)]
    for number in range(FILES):
        directory = workspace / f"part{number // 200:03d}"
        directory.mkdir(parents=True, exist_ok=True)
        text = " ".join(chance.choices(words, k=FILE_BYTES // 5))
        (directory / f"sample{number:05d}.txt").write_bytes(text.encode()[:FILE_BYTES])


if __name__ == "__main__":
    for row in rows():
        print(row.name, f"{row.ratio:.2f}", row.conditions)
