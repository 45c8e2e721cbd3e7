"""TensorBoard beside a payload, with a program in its place that ends at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from dlapp.runtime.payload import Payload, PayloadExit, Running
from dlapp.system.network.ports import LockedPorts
from dlapp.task.payload import tensorboard
from dlapp.task.payload.tensorboard import TensorBoard
from dlapp.tensorboard import ARGUMENTS_VARIABLE
from dlapp.values.spec import Resources
from tests.applications import wait_for


class EndsAtOnce:
    """A program that has ended as soon as it was started."""

    def start(self) -> None:
        pass

    def ended(self) -> PayloadExit:
        return PayloadExit(1, None)

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_each_start_has_another_path_as_others_may_know_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_AGAIN_S", (0.01, 0.01))
    paths: list[str] = []

    def payload(home: str) -> Payload:
        return Payload(
            application_id="application_1700000000000_0001",
            container_id="container_1700000000000_0001_01_000002",
            directory=home,
            script="",
            args=(),
            env={},
            resources=Resources(memory_mib=64),
        )

    def make_run(made: Payload) -> Running:
        paths.extend(load for load in json.loads(made.env[ARGUMENTS_VARIABLE]) if load.startswith("--path_prefix="))
        return cast(Running, EndsAtOnce())

    board = TensorBoard(
        "out",
        payload,
        str(tmp_path),
        payload_workspace=None,
        uid=os.getuid(),
        address="127.0.0.1",
        ports=LockedPorts(os.open(os.devnull, os.O_RDONLY), (6006,)),
        make_run=make_run,
        on_change=lambda _: None,
        note=lambda _: None,
    )
    with board.serving():
        wait_for("three starts", lambda: len(paths) >= 3)
    board.close()
    assert len(set(paths)) == len(paths)
