"""A view has two forms, and the one that is missing is made from the other."""

from __future__ import annotations

import pytest

from dlapp.cluster.view_forms import ViewForms
from dlapp.errors import SpecError
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, State
from dlapp.values.serialization import to_json

VIEW = ApplicationView(application_id=ApplicationId(1_700_000_000_000, 42), attempt=1, state=State.RUNNING)


def test_a_value_has_its_json_and_json_its_value() -> None:
    assert ViewForms(value=VIEW).json == to_json(VIEW)
    assert ViewForms(json=to_json(VIEW)).value == VIEW


def test_json_without_default_values_stays_as_it_is() -> None:
    """A row of the local engine has three fields here; its value has the defaults of all others."""
    short = {"application_id": str(VIEW.application_id), "attempt": 1, "state": "RUNNING"}
    one = ViewForms(json=short)
    assert one.value == VIEW
    assert one.json is short
    assert list(short) == ["application_id", "attempt", "state"]


def test_the_json_keeps_an_added_receipt() -> None:
    """A list adds receipts to the JSON of views that YARN has as values."""
    one = ViewForms(value=VIEW)
    one.json["receipt"] = {"cpu_hours": 2.0}
    assert one.json["receipt"] == {"cpu_hours": 2.0}


def test_only_the_value_of_invalid_json_is_refused() -> None:
    one = ViewForms(json={"application_id": "application_1_0001", "attempt": 1, "state": "SLEEPING"})
    assert one.json["state"] == "SLEEPING"
    with pytest.raises(SpecError, match="state: is 'SLEEPING'"):
        one.value  # noqa: B018
