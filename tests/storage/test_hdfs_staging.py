"""Test what a task and an ApplicationMaster see of small files on HDFS, by asking for a status alone."""

from __future__ import annotations

import json

from dlapp.locations import HdfsPlace
from dlapp.storage.hdfs_staging import HdfsStagingFiles
from dlapp.task.am_address import FindOnHdfs


def test_a_replaced_address_of_the_same_length_is_found_and_a_touched_file_shows_it(
    place: HdfsPlace, base: str
) -> None:
    staged, am, now_s = HdfsStagingFiles(place), f"{base}/am.json", [0.0]
    find = FindOnHdfs(staged, am, lambda _: None, lambda: now_s[0])
    found = []
    for number in (1, 2):
        staged.write(am, json.dumps({"attempt": number, "control_url": f"http://node:{number}"}).encode(), 0o600)
        for _ in range(30):
            now_s[0] += 5.0
            find.look()
        found.append(find.look())
    assert found == ["http://node:1", "http://node:2"]
    (before,) = staged.entries(base)
    staged.touch(am)
    (after,) = staged.entries(base)
    assert after[:2] == before[:2]
    assert after[2] > before[2]
    staged.close()
