"""The two forms of a view: JSON for commands, a value for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlapp.values.report import ApplicationView


class ViewForms:
    """View of an application as an engine has it, in JSON or as a value; the other form is made when it is first read.

    Commands print the JSON. The local engine has that only, so dlapp-status loads no class of values. JSON of the local
    engine may lack fields that have their default values.
    """

    __slots__ = ("_json", "_value")

    def __init__(self, json: dict[str, Any] | None = None, value: ApplicationView | None = None) -> None:
        assert json is not None or value is not None
        self._json, self._value = json, value

    @property
    def json(self) -> dict[str, Any]:
        """Return the JSON form (docs/json.md)."""
        if self._json is None:
            from dlapp.values.serialization import to_json

            self._json = to_json(self._value)
        assert self._json is not None
        return self._json

    @property
    def value(self) -> ApplicationView:
        """Return the value. Raises SpecError: the JSON is invalid."""
        if self._value is None:
            from dlapp.values.report import ApplicationView
            from dlapp.values.serialization import from_json

            self._value = from_json(ApplicationView, self._json)
        return self._value
