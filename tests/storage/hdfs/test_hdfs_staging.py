"""Test what a task and an ApplicationMaster see of small files on HDFS, by asking for a status alone."""

from __future__ import annotations

import pytest

from dlapp.locations import HdfsPlace
from dlapp.storage.hdfs import staging
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.storage.hdfs.webhdfs import HdfsRefused, WebHdfs
from dlapp.task.link.am_address import HdfsAmFinder
from dlapp.values.messages import address_name
from tests.services.polling import wait_until


def datanodes_of(web: WebHdfs, path: str) -> int:
    """Return how many DataNodes have the first block of a file."""
    content = web._json("GETFILEBLOCKLOCATIONS", path)["BlockLocations"]["BlockLocation"]
    return len(content[0]["names"])


def test_an_archive_is_replicated_as_requested_and_keeps_its_time(place: HdfsPlace, base: str) -> None:
    staged, location, web = HdfsStagingFiles(place), f"{base}/archive", WebHdfs(place)
    path = place.path(location)
    staged.write(location, b"bytes", 0o600)
    before = staged.status(location)
    counts = []
    for wanted in (1, 2, 32, 2):
        staged.replicate(location, wanted)
        status = web.status(path)
        assert status is not None
        counts.append(status.replication)
    # One of three DataNodes has it at first; what it has is never lowered.
    assert web.live_datanodes() == 3
    assert counts == [1, 2, 3, 3]
    wait_until(lambda: datanodes_of(web, path) == 3)
    # YARN compares the time with what it was promised.
    assert staged.status(location) == before
    staged.replicate(f"{base}/nothing", 3)
    staged.replicate(base, 3)
    staged.close()


def test_more_replicas_than_the_namenode_allows_are_refused_and_the_file_stays_as_it_is(
    place: HdfsPlace, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, location, web = HdfsStagingFiles(place), f"{base}/archive", WebHdfs(place)
    staged.write(location, b"bytes", 0o600)
    monkeypatch.setattr(WebHdfs, "live_datanodes", lambda _: 4000)
    with pytest.raises(HdfsRefused, match="exceeds maximum"):
        staged.replicate(location, 4000)
    monkeypatch.setattr(WebHdfs, "live_datanodes", lambda _: None)
    staged.replicate(location, 4000)
    status = web.status(place.path(location))
    assert status is not None
    assert status.replication == staging.REPLICATION_WHERE_UNKNOWN
    staged.close()


def test_a_directory_is_removed_if_nothing_is_in_it(place: HdfsPlace, base: str) -> None:
    staged, directory = HdfsStagingFiles(place), f"{base}/maybe"
    staged.remove_if_empty(directory)
    staged.write(f"{directory}/file", b"", 0o600)
    staged.remove_if_empty(directory)
    assert staged.names(directory) == ["file"]
    staged.remove(f"{directory}/file")
    staged.remove_if_empty(directory)
    assert staged.status(directory) is None
    staged.close()


def test_the_address_of_the_next_attempt_is_found_and_a_touched_file_shows_it(place: HdfsPlace, base: str) -> None:
    staged, addresses, now_s = HdfsStagingFiles(place), f"{base}/staging/addresses", [0.0]
    find = HdfsAmFinder(staged, addresses, lambda _: None, lambda: now_s[0])
    found = []
    for number in (0, 1, 2):
        if number:
            staged.make(f"{addresses}/{address_name(number, f'http://[::1]:{number}')}", 0o700)
        for _ in range(30):
            now_s[0] += 5.0
            find.find_url()
        found.append((find.find_url(), find.is_there))
    assert found == [(None, False), ("http://[::1]:1", True), ("http://[::1]:2", True)]
    staged.remove(f"{base}/staging")
    am = f"{base}/am.json"
    staged.write(am, b"{}", 0o600)
    (before,) = staged.entries(base)
    staged.touch(am)
    (after,) = staged.entries(base)
    assert after[:2] == before[:2]
    assert after[2] > before[2]
    staged.close()
