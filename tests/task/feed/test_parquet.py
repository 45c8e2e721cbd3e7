"""Row groups of Parquet files of a feed, by pyarrow: `make test-frameworks` installs it."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dlapp.feed import FeedError
from dlapp.task.feed.order import ReaderPart
from dlapp.values.spec import FeedFormat, FeedSpec
from tests.seeds import each_seed
from tests.task.feed.serving import ServedFeed

pyarrow: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-frameworks has it")
ROWS = 3
"""Of a row group; the last of a file has fewer."""


def parquet_of(rows: list[str]) -> bytes:
    """A Parquet file with one column."""
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": pyarrow.array(rows, pyarrow.string())}), out, row_group_size=ROWS)
    return out.getvalue()


def files_of(count: int, dice: random.Random) -> tuple[dict[str, bytes], list[tuple[str, ...]]]:
    """Some files, and all their row groups: no two are the same."""
    content, groups = dict[str, bytes](), list[tuple[str, ...]]()
    for number in range(count):
        rows = [f"{number}:{row}" for row in range(dice.choice((1, 2, ROWS, 10)))]
        content[f"f{number:02}"] = parquet_of(rows)
        groups += [tuple(rows[offset : offset + ROWS]) for offset in range(0, len(rows), ROWS)]
    return content, groups


def group_of(table: Any) -> tuple[str, ...]:
    """Rows of a record."""
    assert isinstance(table, pyarrow.Table)
    return tuple(table.column("text").to_pylist())


@pytest.mark.parametrize("shuffle", [None, 5])
def test_each_epoch_has_every_row_group_once_in_an_order_of_its_own(tmp_path: Path, shuffle: int | None) -> None:
    files, groups = files_of(12, random.Random(1))
    spec, orders = FeedSpec(format=FeedFormat.PARQUET, epochs=2, shuffle=shuffle), list[list[list[tuple[str, ...]]]]()
    for number in range(2):
        (place := tmp_path / str(number)).mkdir()
        with ServedFeed(place, files, spec) as served:
            orders.append([[group_of(item) for item in read] for _, read in served.read().by_epoch()])
    assert orders[0] == orders[1]
    assert all(sorted(epoch) == sorted(groups) for epoch in orders[0])
    assert (orders[0][0] == orders[0][1] == groups) == (shuffle is None)


@each_seed("parquet", 20)
def test_every_row_group_is_read_once_by_containers_that_are_killed_and_resume(tmp_path: Path, seed: int) -> None:
    """Read up to 8 files for 1 or 2 epochs in 1 to 3 containers, each killed up to 4 times."""
    dice = random.Random(seed)
    files, groups = files_of(dice.randrange(1, 9), dice)
    members, epochs = dice.randrange(1, 4), dice.randrange(1, 3)
    spec = FeedSpec(format=FeedFormat.PARQUET, epochs=epochs, shuffle=dice.choice((None, seed)))
    trained = Counter[tuple[int, tuple[str, ...]]]()
    for index in range(members):
        (place := tmp_path / str(index)).mkdir()
        with ServedFeed(place, files, spec, ReaderPart(index, members)) as served:
            kills, position, is_over = 4, dict[str, object](), False
            while not is_over:
                reader = served.read(json.loads(json.dumps(position)))
                since = Counter[tuple[int, tuple[str, ...]]]()
                for table in reader:
                    since[reader.epoch, group_of(table)] += 1
                    if dice.random() < 0.3:  # a checkpoint
                        trained, since, position = trained + since, Counter(), reader.position()
                    if kills and dice.random() < 0.2:
                        kills -= 1
                        break
                else:
                    trained, is_over = trained + since, True
    assert trained == Counter({(epoch, group): 1 for epoch in range(epochs) for group in groups}), f"seed {seed}"


def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path: Path) -> None:
    with (
        ServedFeed(tmp_path, {"f": b"PAR1" + bytes(100)}, FeedSpec(format=FeedFormat.PARQUET)) as served,
        pytest.raises(FeedError, match="f is not a Parquet file, or damaged"),
    ):
        list(served.read())


def test_a_file_for_which_a_process_has_too_small_a_part_of_the_buffer_is_refused_by_name(tmp_path: Path) -> None:
    spec = FeedSpec(format=FeedFormat.PARQUET, buffer_bytes=16 << 20)
    with (
        ServedFeed(tmp_path, {"f": bytes(9 << 20)}, spec) as served,
        pytest.raises(FeedError, match=r"f has 9 MiB, .* 2 processes .*feed\.buffer"),
    ):
        list(served.read(part=(0, 2)))
