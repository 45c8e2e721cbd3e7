"""Inputs with mode=feed, as properties files say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.config import Config
from dlapp.errors import SpecError
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import FeedFormat, FeedSpec, InputSpec
from tests.application.test_description import MINIMAL, read, refused

FEED = MINIMAL + "[from_hdfs]\nhdfs=data/*\ninput_path=fed\nmode=feed\n"


def test_a_feed_is_divided_among_the_containers_of_a_role_by_default(place: Path, config: Config) -> None:
    (one,) = read(place, FEED, config).spec.inputs
    assert (one.mode, one.shard, one.feed) == ("feed", True, FeedSpec())
    text = FEED + "shard=false\nfeed.format=tar\nfeed.epochs=90\nfeed.shuffle=7\nfeed.buffer=2g\n"
    (one,) = read(place, text, config).spec.inputs
    assert (one.shard, one.feed) == (
        False,
        FeedSpec(format=FeedFormat.TAR, epochs=90, shuffle=7, buffer_bytes=2 << 30),
    )
    assert from_json(InputSpec, to_json(one)) == one
    (one,) = read(place, FEED.replace("mode=feed\n", ""), config).spec.inputs
    assert (one.mode, one.shard) == ("copy", False)


def test_all_faults_of_a_feed_are_named_at_once(place: Path, config: Config) -> None:
    text = FEED + "feed.format=csv\nfeed.epochs=0\nfeed.shuffle=true\nfeed.buffer=1m\nfeed.seed=3\n"
    assert refused(place, text, config) == [
        "9: from_hdfs.feed.format: is 'csv', allowed are files, lines, tar, tfrecord, parquet",
        "10: from_hdfs.feed.epochs: is 0, the minimum is 1",
        "11: from_hdfs.feed.shuffle: 'true' is not a whole number",
        "12: from_hdfs.feed.buffer: is 1m, the minimum is 16m",
        "13: from_hdfs.feed.seed: is not known, use feed.shuffle",
    ]


def test_keys_of_a_feed_without_one_and_archives_in_one_are_refused(place: Path, config: Config) -> None:
    assert refused(place, FEED.replace("mode=feed", "feed.epochs=2"), config) == [
        "8: from_hdfs.feed.epochs: has no effect without mode=feed"
    ]
    (fault,) = refused(place, FEED + "archive=unpack\n", config)
    assert fault == "9: from_hdfs.archive: is unpack, but with mode=feed nothing is fetched that could be unpacked"
    (fault,) = refused(place, FEED.replace("input_path=fed", "input_path=."), config)
    assert fault.startswith("7: from_hdfs.input_path: is the workspace itself")


def test_a_sweep_has_no_feed(place: Path, config: Config) -> None:
    text = FEED + "[sweep]\ngrid.LR=1,2\nmetric=loss\ngoal=min\n"
    assert "8: from_hdfs.mode: is feed, which the trials of a sweep do not have" in refused(place, text, config)


@pytest.mark.parametrize(
    ("feed", "field"),
    [
        (FeedSpec(epochs=0), "from_hdfs.feed.epochs"),
        (FeedSpec(shuffle=-1), "from_hdfs.feed.shuffle"),
        (FeedSpec(buffer_bytes=1), "from_hdfs.feed.buffer"),
    ],
)
def test_a_feed_that_a_program_made_is_checked_too(feed: FeedSpec, field: str) -> None:
    with pytest.raises(SpecError) as refusal:
        InputSpec(sources=("file:///data",), input_path="fed", feed=feed)
    assert refusal.value.field == field
