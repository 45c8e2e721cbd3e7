"""Xid errors: the driver's numbered reports on a GPU, and what each of them ends.

``xids.csv`` has all codes of NVIDIA's catalog, with the action that the catalog names. Only `XidClass.RESET` and
`XidClass.NODE` end a payload. A code that is not in the table is recorded and ends nothing.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from dlapp.gpuid.health.readings import DeviceFault
from dlapp.gpuid.rules import NEEDS_REBOOT, NEEDS_RESET

_TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xids.csv")


class XidClass(StrEnum):
    """Class of an Xid error; its values are the words of ``gpuid.xids``."""

    IGNORE = "ignore"
    """Nothing."""
    PROGRAM = "program"
    """The cause, if the program ends by itself; it is the user's."""
    PROGRAM_PROBE = "program-probe"
    """The cause, if the program ends by itself; it is not the user's. The GPU must pass an inspection after it."""
    RESET = "reset"
    """The payload ends, and the GPU is in quarantine until a reset."""
    NODE = "node"
    """The payload ends, and all GPUs of the host are in quarantine until a reboot."""


class Xid(NamedTuple):
    """One code.

    Args:
        kind: None: the code is not known.
        meaning: for people; empty: not known.
        action: the action of NVIDIA's catalog; empty: it names none.
        source: the documents with the action; empty: none.
    """

    code: int
    kind: XidClass | None = None
    meaning: str = ""
    action: str = ""
    source: str = ""

    def __str__(self) -> str:
        return f"Xid {self.code}: {self.meaning or 'not known'}"

    @property
    def fault(self) -> DeviceFault | None:
        """Return the fault of the GPU that ends a payload; None: it ends none."""
        detail = f"{self.meaning} (Xid {self.code})" if self.meaning else f"Xid {self.code}"
        if self.kind is XidClass.RESET:
            return DeviceFault(NEEDS_RESET, detail, until=NEEDS_RESET)
        return DeviceFault(NEEDS_REBOOT, detail, until=NEEDS_REBOOT) if self.kind is XidClass.NODE else None


class XidTable:
    """All codes, with the classes of this host.

    Args:
        classes: class by code of the operator (``gpuid.xids``), in place of the table's.
    """

    def __init__(self, classes: Mapping[int, str] = MappingProxyType({})) -> None:
        self._xids = {one.code: one for one in read_table()}
        for code, name in classes.items():
            self._xids[code] = self[code]._replace(kind=XidClass(name))

    def __getitem__(self, code: int) -> Xid:
        return self._xids.get(code) or Xid(code)


def read_table() -> list[Xid]:
    """Return the rows of ``xids.csv``."""
    data = __loader__.get_data(_TABLE)  # type: ignore[name-defined]  # dlapp may run from a zip
    lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
    return [
        Xid(int(row["code"]), XidClass(row["class"]), row["meaning"], row["action"], row["source"])
        for row in csv.DictReader(lines)
    ]
