"""Another user's view is read up to a limit of work, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.cluster.foreign import CUT, MAX_ENTRIES, read_foreign_view
from dlapp.errors import SpecError


def view_with(containers: int, **fields: Any) -> dict[str, Any]:
    """The view of an application with that many containers, each as small as a view allows."""
    return {
        "application_id": "application_1_0001",
        "attempt": 1,
        "containers": [
            {"container_id": f"container_1_0001_01_{number:06d}", "role": "m", "role_index": number, "index": number}
            for number in range(containers)
        ],
        "state": "RUNNING",
        **fields,
    }


def test_a_view_of_an_ordinary_size_is_complete() -> None:
    view = read_foreign_view(view_with(1000, changes=["the queue is another"]))
    assert len(view.containers) == 1000
    assert view.changes == ("the queue is another",)


def test_a_view_with_too_many_containers_has_the_first_and_the_count() -> None:
    view = read_foreign_view(view_with(20_000, phase="running"))
    assert 6000 < len(view.containers) < 8000
    assert [container.index for container in view.containers] == list(range(len(view.containers)))
    assert view.phase == "running"  # what follows the containers in the file is read
    assert view.changes[-1].startswith(f"{CUT}another user's view is read up to {MAX_ENTRIES} entries")
    assert view.changes[-1].endswith(f"with {len(view.containers)} of 20000 containers")


@pytest.mark.parametrize(
    "fields",
    [
        {"tags": ["x"] * (MAX_ENTRIES + 1)},
        {"not_started": {str(number): 1 for number in range(MAX_ENTRIES + 1)}},
        {"links": [{"name": "n", "url": "http://x", "container": 0}] * 20_000},
    ],
    ids=lambda item: next(iter(item)),
)
def test_any_list_or_table_of_a_view_is_limited(fields: dict[str, Any]) -> None:
    view = read_foreign_view(view_with(1, **fields))
    ((name, given),) = fields.items()
    assert len(getattr(view, name)) < len(given)
    assert view.changes[-1].startswith(CUT)


def test_a_view_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(SpecError, match="nested too deeply"):
        read_foreign_view(view_with(1, anything=deep))
