"""Asking an ApplicationMaster, at its control address, with the secret that its staging directory has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dlapp.cluster.yarn.connected import Connected
from dlapp.cluster.yarn.rest import AppReport
from dlapp.cluster.yarn.staging import SECRETS, Places
from dlapp.control import TOOLS, derive_token
from dlapp.errors import NotFound, Unreachable
from dlapp.ids import ApplicationId
from dlapp.jsonform import from_json
from dlapp.spec import Secrets

if TYPE_CHECKING:
    from dlapp.control_http import ControlConnection

ASK_S = 5.0


class Masters:
    """The ApplicationMasters of a cluster; the last one asked keeps its connection."""

    def __init__(self, there: Connected) -> None:
        self._there = there
        self._asked: tuple[tuple[ApplicationId, str], ControlConnection] | None = None

    def ask(self, report: AppReport, method: str, what: str, body: Any, *, timeout_s: float) -> Any:
        """One call of an ApplicationMaster's control address.

        Raises:
            Unreachable: it does not answer, or is not up yet.
            DlappError: it refuses, or its secret cannot be read.
        """
        address = str(report.raw.get("amRPCAddress") or "")
        if not address:
            raise Unreachable(f"{report.application_id}: its ApplicationMaster is not up")
        try:
            return self._master(report, address).call(method, f"/v1/{what}", body, timeout_s=timeout_s)
        except Unreachable:
            self.leave()
            raise

    def _master(self, report: AppReport, address: str) -> ControlConnection:
        """The connection to an ApplicationMaster, kept while it is asked again: who waits for an end asks often."""
        from dlapp.control_http import ControlConnection

        if self._asked is None or self._asked[0] != (report.application_id, address):
            self.leave()
            files = self._there.files(report.user)
            place = f"{Places(files.home).staging(report.application_id)}/{SECRETS}"
            try:
                secrets = from_json(Secrets, json.loads(files.read(place)))
            except NotFound as error:
                # It registers first and writes them then, in safe mode much later.
                raise Unreachable(f"{report.application_id}: its ApplicationMaster is not up yet") from error
            connection = ControlConnection(f"http://{address}", derive_token(secrets.control_secret, TOOLS))
            self._asked = (report.application_id, address), connection
        return self._asked[1]

    def leave(self) -> None:
        """Close the connection."""
        if self._asked is not None:
            self._asked[1].close()
            self._asked = None
