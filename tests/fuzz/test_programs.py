"""Test what programs write, and what is at the other end of their streams: reports, logs, results of trials, event
files, checkpoints and sessions in containers."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dlapp.client.board.event_files import _checked_sizes
from dlapp.diagnosis.rules import load_rules, read_rules
from dlapp.diagnosis.search import LogTail, diagnose, read_tail
from dlapp.errors import ConfigError, DlappError
from dlapp.net import exec_frames
from dlapp.net.streams import open_stream
from dlapp.storage.checkpoints.manifest import (
    EntryKind,
    Manifest,
    ManifestEntry,
    encode_manifest,
    manifest_name,
    number_of,
    parse_manifest,
)
from dlapp.sweep import text_forms
from dlapp.sweep.results import TrialState, TrialView, read_results, trial_line
from dlapp.sweep.trial_list import read_trial_list
from dlapp.task.protocol.payload_files import PayloadFiles
from dlapp.tensorboard import MAX_FILES
from tests.diagnosis.failures import MADE, RECORDED
from tests.fuzz.parsing import fuzz, fuzz_json
from tests.fuzz.server import answering

RULES = load_rules("/nowhere")
REPORT = {"progress": 0.5, "metrics": {"loss": 0.3, "accuracy": 1}, "step": 7, "ready": True, "checkpoint": "out/1"}


class Watch:
    """Receives the reports of a metric."""

    metric, problem = "loss", ""

    def add(self, value: float, step: int | None) -> None:
        """Take a report."""
        assert abs(value) < float("inf")


def test_the_reports_of_a_program_are_read_or_ignored(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        directory = tmp_path / "dlapp"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(0o700)
        with PayloadFiles(str(directory), 1, lambda _: None, assert_line, watch=Watch()) as files:
            (directory / "report").write_bytes(data)
            files.check(time.monotonic())
            files.finish(time.monotonic())
            assert files.status.progress is None or 0 <= files.status.progress <= 1

    fuzz_json(read, [REPORT], errors=())
    fuzz(read, [json.dumps(REPORT).encode() + b"\n" + b'{"step": 8}\n' * 50], errors=())


def assert_line(line: str) -> None:
    assert "\n" not in line


def test_the_end_of_a_log_has_a_cause_or_none(tmp_path: Path) -> None:
    texts = [item.text.encode() for item in (*MADE.values(), *RECORDED.values()) if item.text][:40]

    def read(data: bytes) -> None:
        (tmp_path / "stderr").write_bytes(data)
        tail = read_tail(str(tmp_path / "stderr"))
        found = diagnose(RULES, message="", exit_code=1, signal=None, logs=[tail, LogTail("stdout", 0, data[:100])])
        if found is not None:
            assert found.cause.isprintable()
            assert found.evidence is None or found.evidence.line.isprintable()

    fuzz(read, texts, errors=())


def test_an_operators_rules_are_read_or_refused() -> None:
    rule = b"- rule: a_rule\n  contains: ['no disk (/']\n  line: 'disk (?P<name>\\S+)'\n  cause: disk {name}\n"
    rule += b"  fault: node\n  next_step: mend it\n  act: avoid_node\n"
    fuzz(lambda data: read_rules(data, "diagnosis.yaml"), [rule], errors=(ConfigError,))


TRIAL = TrialView(number=0, state=TrialState.DONE, tries=1, metric=0.5, step=3, parameters={"lr": "0.1"})
HEAD = {"trials": 5, "metric": "loss", "goal": "min", "parameters": ["lr"]}


def test_the_results_of_a_sweep_are_read_or_refused() -> None:
    row = json.loads(trial_line(TRIAL, ["lr"]))

    def read(data: bytes) -> None:
        head, row = json.loads(data)
        results(f"{json.dumps(head)}\n{json.dumps(row)}\n")

    def results(text: str) -> None:
        found = read_results(text)
        assert len(found.trials) <= found.total
        found.ranked()
        found.counts()

    fuzz_json(read, [[HEAD, row]], errors=(ValueError, TypeError, RecursionError))
    sample = f"{json.dumps(HEAD)}\n{trial_line(TRIAL, ['lr'])}\n".encode()
    fuzz(lambda data: results(data.decode(errors="replace")), [sample], errors=(ValueError,))


@pytest.mark.parametrize("path", ["t.csv", "t.jsonl"])
def test_a_list_of_trials_is_read_or_refused(path: str) -> None:
    samples = {"t.csv": b'lr,name\n0.1,"a ""b"" c"\n0.2,d\n', "t.jsonl": b'{"lr": 0.1, "name": "a"}\n{"lr": 1}\n'}
    samples["t.jsonl"] = samples["t.jsonl"].replace(b'{"lr": 1}', b'{"lr": 1, "name": "b"}')
    fuzz(lambda data: read_trial_list(data, path), [samples[path]])


def test_the_keys_of_a_sweep_are_read_or_refused() -> None:
    def read(data: bytes) -> None:
        kind, _, text = data.decode(errors="replace").partition("=")
        forms = {
            "values": text_forms.read_values,
            "random": text_forms.read_distribution,
            "asha": text_forms.read_asha,
            "sampler": text_forms.read_sampler,
            "metric": text_forms.read_metric,
        }
        forms.get(kind, text_forms.read_values)(text)

    samples = [
        b'values=1, 2, "a, b"',
        b"random=loguniform(1e-5, 0.1)",
        b"asha=1, 3, 9: 3",
        b"sampler=random",
        b"metric=loss",
    ]
    fuzz(read, samples, errors=(DlappError, ValueError))


def test_a_list_of_event_files_is_read_or_refused() -> None:
    def read(data: bytes) -> None:
        count = 0
        for name, size in _checked_sizes(data):
            count += 1
            assert size > 0
            assert not name.startswith("/")
            assert not {"", ".", ".."} & set(name.split("/"))
        assert count <= MAX_FILES

    fuzz_json(read, [[["run/events.out.tfevents.1", 5], ["events.out.tfevents.2", 7]]])


def test_a_manifest_of_a_checkpoint_is_read_or_refused() -> None:
    entries = (
        ManifestEntry("", EntryKind.DIRECTORY, 0o755, 1, 0, "", ""),
        ManifestEntry("a", EntryKind.FILE, 0o644, 1, 5, "0" * 64, ""),
        ManifestEntry("d", EntryKind.DIRECTORY, 0o755, 1, 0, "", ""),
        ManifestEntry("d/l", EntryKind.LINK, 0o777, 1, 0, "", "../a"),
    )

    def read(data: bytes) -> None:
        for entry in parse_manifest(data, 3).entries:
            assert entry.name == "" or not {"", ".", ".."} & set(entry.name.split("/"))

    fuzz_json(read, [json.loads(encode_manifest(Manifest(3, entries)))])
    fuzz(lambda data: number_of(data.decode(errors="replace")), [manifest_name(3).encode()], errors=())


def test_the_frames_of_a_session_are_read_or_end_it() -> None:
    end = exec_frames.end_body(exec_frames.ExecEnd(3, "killed"))
    frames = [(exec_frames.OUTPUT, b"hello" * 9), (exec_frames.SIZE, exec_frames.size_body(24, 80))]
    frames += [(exec_frames.TRIAL, exec_frames.trial_body(4, 1)), (exec_frames.END, end)]
    sample = b"".join(kind + len(body).to_bytes(4) + body for kind, body in frames)
    parsers: dict[bytes, Any] = {
        exec_frames.SIZE: exec_frames.read_size,
        exec_frames.TRIAL: exec_frames.read_trial,
        exec_frames.END: exec_frames.read_end,
    }

    def read(data: bytes) -> None:
        one, other = socket.socketpair()
        stream = exec_frames.FrameStream(one)
        with one, other:
            for offset in range(0, len(data), exec_frames.MAX_BODY_BYTES):
                other.sendall(data[offset : offset + exec_frames.MAX_BODY_BYTES])
                for kind, body in stream.receive():
                    assert len(body) <= exec_frames.MAX_BODY_BYTES
                    parsers.get(kind, bytes)(body)

    fuzz(read, [sample], errors=(exec_frames.StreamClosed,))
    fuzz_json(exec_frames.read_end, [json.loads(end)], errors=(exec_frames.StreamClosed,))


def test_an_answer_to_a_request_for_a_stream_opens_it_or_is_refused() -> None:
    refused = json.dumps({"error": "nothing listens on port 80", "reason": "not_open"}).encode()
    head = b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(refused)
    opened = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: dlapp-stream\r\n\r\nhello"
    with answering() as server:
        url = f"http://127.0.0.1:{server.port}"

        def read(data: bytes) -> None:
            server.answers = [data]
            try:
                open_stream(url, "token", "/v1/streams", {}, timeout_s=120).close()
            except DlappError:
                assert data != opened

        fuzz(read, [opened, head + refused])
