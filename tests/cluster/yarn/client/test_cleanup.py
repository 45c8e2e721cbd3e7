"""Test what is removed from the file system when, in one that is kept in memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client.cleanup import (
    COMMITTED,
    GONE_AFTER_S,
    NOTHING_KEPT,
    OwnApplications,
    clean_up,
    clean_up_cache,
    forgotten,
    mark_use,
    own_applications,
    settle,
)
from dlapp.cluster.yarn.client.rest import EndedApplication, YarnRest
from dlapp.cluster.yarn.staging import StagingPaths
from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.login import Login
from dlapp.storage.commit import CommitRefused
from dlapp.storage.settlement import ApplicationOutputs
from dlapp.sweep.results import TrialState, TrialView, head_line, read_results, trial_line
from dlapp.sweep.spec import GridParameter, Sampler, SweepSpec
from dlapp.system import clock
from dlapp.system.retention import Retention
from dlapp.values.ids import ApplicationId
from dlapp.values.report import CommitClaim, OutputView, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import OutputSpec

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
HOME = "hdfs://nn/user/tony"
PLACES = StagingPaths(HOME)
ARCHIVES, HISTORIES = Retention(30 * 86_400.0, 1000), Retention(90 * 86_400.0, 1000)
APP = ApplicationId(1700000000000, 7)
OTHER = ApplicationId(1700000000000, 8)
A, B = "hdfs://nn/a", "hdfs://nn/b"
OUTPUTS = [
    {"name": "", "output_path": "out", "target": A, "on_failure": "keep"},
    {"name": "more", "output_path": "more", "target": B, "on_failure": "drop"},
]
CLAIM: list[dict[str, object]] = [
    {"target": A, "overwrite": False, "parts": {"0": "hdfs://nn/p0", "1": "hdfs://nn/p1"}},
    {"target": B, "overwrite": False, "parts": {"": "hdfs://nn/p"}},
]


class Memory:
    """Part of `StagingFiles` that is used; everything written has the time ``now_ms``."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self.directories: dict[str, int] = {}  # those that were made, with their time
        self.now_ms = NOW_MS
        self.home = HOME
        self.settled: list[tuple[object, ...]] = []
        self.refuses: dict[str, Exception] = {}

    def put(self, location: str, size: int = 10, days_old: float = 0, text: object = None) -> None:
        data = b"x" * size if text is None else json.dumps(text).encode()
        self.files[location] = data, int(NOW_MS - days_old * DAY_MS)

    def status(self, location: str) -> object:
        if location in self.refuses:
            raise self.refuses[location]
        if location in self.files:
            data, ms = self.files[location]
            return type("Found", (), {"size_bytes": len(data), "modified_ms": ms, "owner": "tony", "mode": 0o600})
        if location in self.directories:
            return type("Found", (), {"modified_ms": self.directories[location]})
        return object() if any(name.startswith(f"{location}/") for name in self.files) else None

    def names(self, location: str) -> list[str]:
        every = [*self.files, *self.directories]
        return sorted({name[len(location) + 1 :].split("/")[0] for name in every if name.startswith(f"{location}/")})

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        return [
            (name, len(self.files[f"{location}/{name}"][0]), self.files[f"{location}/{name}"][1])
            for name in self.names(location)
        ]

    def make(self, location: str, mode: int) -> None:
        self.directories.setdefault(location, self.now_ms)

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        if once and location in self.files:
            return False
        self.files[location] = data, self.now_ms
        return True

    def read(self, location: str, *, max_bytes: int) -> bytes:
        if location not in self.files:
            raise NotFound(location)
        if len(self.files[location][0]) > max_bytes:
            raise DlappError(f"{location} is larger than {max_bytes} bytes")
        return self.files[location][0]

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        data = self.read(location, max_bytes=1 << 30)[offset : offset + count]
        assert len(data) == count
        return data

    def settle_outputs(
        self, application_id: ApplicationId, outputs: tuple[OutputSpec, ...], claim: CommitClaim | None
    ) -> tuple[OutputView, ...]:
        """Settle by the real rules, with a commit that fails where ``overwrite`` is set."""
        settled = ApplicationOutputs(application_id, outputs, open_files=lambda _: self)  # type: ignore[arg-type, return-value]
        if claim is not None:
            return settled.commit(claim, is_retry=True, retried=(Unreachable,))[0]
        return settled.keep_or_drop(lambda _: ())

    def interrupted_commits(self, target: str) -> list[str]:
        return []

    def output_commit(self, target: str, app: str) -> MemoryCommit:
        return MemoryCommit(self, target, app)

    def remove(self, location: str) -> None:
        self.files = {
            name: file for name, file in self.files.items() if name != location and not name.startswith(f"{location}/")
        }
        self.directories.pop(location, None)

    def remove_if_empty(self, location: str) -> None:
        if not self.names(location):
            self.directories.pop(location, None)


class MemoryCommit:
    """Part of `OutputCommit` that is used: notes what is asked for."""

    def __init__(self, files: Memory, target: str, app: str) -> None:
        self._files, self._target, self._app = files, target, app

    def _note(self, *how: object) -> None:
        assert self._files.status(f"{PLACES.all_staging}/{self._app}"), "the plan was removed first"
        if self._target in self._files.refuses:
            raise self._files.refuses[self._target]
        self._files.settled.append((self._target, *how))

    def commit(
        self,
        parts: list[tuple[str, str]],
        *,
        overwrite: bool,
        keep_previous: int,
        is_retry: bool,
        commit_times: object,
        step: object,
    ) -> None:
        assert is_retry
        assert not keep_previous
        if overwrite:
            raise CommitRefused(self._target, f"{self._target}~")
        self._note(parts, overwrite)

    def keep_partial(self, parts: object) -> str:
        self._note(True)
        return f"{self._target}~"

    def drop(self) -> None:
        self._note(False)


@pytest.fixture
def files() -> Memory:
    return Memory()


def remaining_names(files: Memory, place: str) -> list[str]:
    return files.names(place)


def swept(files: Memory, *ended: ApplicationId, submitted_ms: tuple[int, ...] = ()) -> int:
    others = {ApplicationId(1700000000000, 1000 + number): ms for number, ms in enumerate(submitted_ms)}
    own = OwnApplications(dict.fromkeys(ended, EndedApplication(State.KILLED, 60.0)), others)
    return clean_up(files, own, ARCHIVES, HISTORIES, NOW_MS)  # type: ignore[arg-type]


def settled(files: Memory, state: State = State.KILLED, ago_s: float = GONE_AFTER_S) -> str | None:
    return settle(files, APP, EndedApplication(state, ago_s))  # type: ignore[arg-type]


def recorded_outputs(files: Memory) -> list[tuple[object, ...]]:
    """Return what the history says of them: name, target, whether it is committed, and where it is kept else."""
    found = json.loads(files.read(PLACES.history(APP), max_bytes=1 << 20))["outputs"]
    return [tuple(item[key] for key in ("name", "target", "committed", "partial")) for item in found]


def stage(files: Memory, app: ApplicationId = APP, claim: list[dict[str, object]] | None = None) -> str:
    """Return what an ApplicationMaster that died leaves."""
    staging = PLACES.staging(app)
    files.put(f"{staging}/submission.json", text={"spec": {"outputs": OUTPUTS}})
    if claim is not None:
        ended = {"attempt": 1, "final_status": "SUCCEEDED", "cause": "succeeded", "diagnostics": ""}
        files.put(f"{staging}/commit.json", text={**ended, "outputs": claim})
    return staging


def test_an_application_that_others_ended_keeps_its_last_words_and_no_staging_directory(files: Memory) -> None:
    staging = PLACES.staging(APP)
    files.put(f"{staging}/view.json", text={"phase": "running"})
    files.put(f"{staging}/submission.json", text={"submitted_ms": 5})
    # Without output it need not be waited for.
    before_ms = clock.now_ms()
    assert settled(files, ago_s=1.0) == NOTHING_KEPT
    assert remaining_names(files, staging) == []
    stored = json.loads(files.read(PLACES.history(APP), max_bytes=1 << 20))
    assert before_ms - 1000 <= stored.pop("finished_ms") <= clock.now_ms() - 1000
    end = {"view": {"phase": "running"}, "state": "KILLED", "submission": {"submitted_ms": 5}}
    assert stored == {"receipt": None, **end}
    before = dict(files.files)
    settled(files)
    assert files.files == before


@pytest.mark.parametrize("by_dlapp", [False, True])
@pytest.mark.parametrize("state", [State.FAILED, State.KILLED, State.FINISHED])
def test_outputs_are_settled_before_the_cleanup_after_any_kind_of_kill(
    files: Memory, state: State, by_dlapp: bool
) -> None:
    staging = stage(files)
    if by_dlapp:
        files.put(f"{staging}/kill.json", text={"by": "tony"})
    assert settled(files, state) == f"its output is kept as partial output at {A}~"
    # The second is not kept where its application has failed.
    assert files.settled == [(A, True), (B, False)]
    assert recorded_outputs(files) == [("", A, False, f"{A}~"), ("more", B, False, None)]
    assert remaining_names(files, staging) == []
    settled(files, state)
    assert len(files.settled) == 2


@pytest.mark.parametrize("state", [State.FAILED, State.KILLED])
def test_a_claimed_commit_is_finished_in_every_final_state(files: Memory, state: State) -> None:
    stage(files, claim=CLAIM)
    assert settled(files, state) == COMMITTED
    parts = [("0", "hdfs://nn/p0"), ("1", "hdfs://nn/p1")]
    assert files.settled == [(A, parts, False), (B, [("", "hdfs://nn/p")], False)]
    assert recorded_outputs(files) == [("", A, True, None), ("more", B, True, None)]
    stage(files, OTHER, [{**CLAIM[0], "overwrite": True}, CLAIM[1]])
    message = settle(files, OTHER, EndedApplication(state, 60.0))  # type: ignore[arg-type]
    assert message == f"its output could not be committed; its output is kept as partial output at {A}~"


def test_an_applicationmaster_that_may_still_commit_is_left_alone(files: Memory) -> None:
    staging = stage(files, claim=CLAIM)
    before = dict(files.files)
    assert settled(files, ago_s=GONE_AFTER_S - 0.1) is None
    assert files.files == before
    assert not files.settled
    assert settled(files) is not None
    assert remaining_names(files, staging) == []


def test_a_commit_finished_by_the_applicationmaster_is_reported(files: Memory) -> None:
    stage(files)
    files.put(PLACES.history(APP), text={"view": {"outputs": [{"target": A, "committed": True}]}})
    assert settled(files, ago_s=0.0) == COMMITTED
    assert not files.settled


def test_an_output_that_cannot_be_settled_stops_no_other_and_is_tried_again(files: Memory) -> None:
    staging = stage(files)
    stage(files, OTHER)
    files.refuses[A] = Denied("not yours")
    assert swept(files, APP, OTHER) == 0
    assert files.settled == [(B, False), (B, False)], "on_failure=drop"
    assert remaining_names(files, staging) == ["submission.json"]
    with pytest.raises(Denied):
        settled(files)
    files.refuses[A] = Unreachable("no NameNode of another cluster")
    earlier = ApplicationId(1700000000000, 6)
    files.put(f"{PLACES.staging(earlier)}/submission.json", text={"submitted_ms": 5})
    assert swept(files, APP, OTHER, earlier) == 1, "the latest come first"
    files.refuses[PLACES.all_staging] = Unreachable("no NameNode")
    with pytest.raises(Unreachable):
        swept(files, APP, OTHER)
    files.refuses.clear()
    assert swept(files, APP, OTHER) == 2
    assert remaining_names(files, PLACES.all_staging) == []


def test_a_history_written_by_the_applicationmaster_is_kept(files: Memory) -> None:
    files.put(PLACES.history(APP), text={"view": {"phase": "its own"}})
    files.put(f"{PLACES.staging(APP)}/submission.json", text={})
    assert swept(files, APP) == 1
    assert json.loads(files.read(PLACES.history(APP), max_bytes=1 << 20)) == {"view": {"phase": "its own"}}
    assert remaining_names(files, PLACES.all_staging) == []


def test_an_application_that_never_started_leaves_no_files(files: Memory) -> None:
    files.put(f"{PLACES.staging(APP)}/kill.json", text={})
    assert swept(files, APP) == 1
    assert files.files == {}


def test_a_forgotten_application_is_settled_after_two_days_without_a_change(
    files: Memory,
) -> None:
    old, lately, known, elsewhere = (ApplicationId(1700000000000, number) for number in range(1, 5))
    elsewhere = ApplicationId(1600000000000, 9)
    for one, days in ((old, 2.1), (lately, 1.9), (known, 9.0), (elsewhere, 9.0)):
        files.put(f"{PLACES.staging(one)}/am.json", days_old=days + 3)
        files.put(f"{PLACES.staging(one)}/view.json", days_old=days)
    files.put(f"{PLACES.all_staging}/notes", days_old=9)
    starts = {1700000000000, 1650000000000}
    found = forgotten(files, {known}, starts, NOW_MS)  # type: ignore[arg-type]
    assert {one: ended.state for one, ended in found.items()} == {old: State.FAILED}


class Rest:
    """A cluster's ResourceManagers: the active one, started at a time, remembers applications."""

    def __init__(self, started_ms: int, *remembered: ApplicationId, key: str = "here") -> None:
        self.started_ms, self.remembered, self.key = started_ms, remembered, key

    def info(self) -> dict[str, int]:
        return {"id": self.started_ms}

    def cluster_key(self) -> str:
        return self.key

    def reports(self, user: str) -> list[Any]:
        values = {"state": State.RUNNING, "started_ms": 1}
        return [SimpleNamespace(application_id=item, **values) for item in self.remembered]


def test_leftovers_are_settled_also_after_a_new_resourcemanager_forgot_the_application(
    files: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS)

    def ended(rest: Rest) -> list[ApplicationId]:
        return list(own_applications(rest, files, "tony").ended)  # type: ignore[arg-type]

    left_over = ApplicationId(1600000000000, 9)
    assert ended(Rest(1500000000000, left_over)) == []  # the first failover: it is still remembered
    files.put(f"{PLACES.staging(left_over)}/view.json", days_old=9)
    assert ended(Rest(1700000000000)) == [left_over]
    assert ended(Rest(1700000000000, key="another")) == []
    # A file that cannot be read is rewritten.
    files.put(PLACES.starts("here"), text={"no": "list"})
    assert ended(Rest(1700000000000)) == []
    assert json.loads(files.files[PLACES.starts("here")][0]) == [1700000000000]


def test_a_quota_that_is_used_up_does_not_stop_the_clean_up(files: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise Denied("the quota is exceeded")

    monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS)
    monkeypatch.setattr(files, "write", refuse)
    files.put(f"{PLACES.staging(APP)}/view.json", days_old=9)
    rest = Rest(APP.cluster_timestamp_ms)
    assert list(own_applications(rest, files, "tony").ended) == [APP]  # type: ignore[arg-type]


def test_the_cluster_key_ignores_scheme_and_order_of_resourcemanagers() -> None:
    def key(*urls: str) -> str:
        return YarnRest(urls, Login("tony")).cluster_key()

    assert key("http://rm1:8088", "http://rm2:8088") == key("https://rm2:8088/", "https://rm1:8088")
    assert key("http://rm1:8088") != key("http://rm1:8088", "http://rm2:8088")


def test_an_empty_forgotten_directory_is_as_old_as_its_last_change(
    files: Memory,
) -> None:
    for one, days in ((APP, 2.1), (OTHER, 1.9)):
        files.directories[PLACES.staging(one)] = int(NOW_MS - days * DAY_MS)
    found = forgotten(files, (), {APP.cluster_timestamp_ms}, NOW_MS)  # type: ignore[arg-type]
    assert list(found) == [APP]
    assert swept(files, *found) == 1
    assert remaining_names(files, PLACES.all_staging) == [str(OTHER)]
    assert files.files == {}, "nothing ran, so there is no history"


def test_files_of_another_cluster_are_kept(files: Memory) -> None:
    files.put(f"{PLACES.staging(APP)}/submission.json", text={"submitted_ms": NOW_MS})
    assert swept(files) == 0
    assert remaining_names(files, PLACES.all_staging) == [str(APP)]


def test_archives_are_evicted_by_last_use_and_size(files: Memory) -> None:
    cache = PLACES.cache
    files.put(f"{cache}/old.tar.gz", days_old=31)
    files.put(f"{cache}/used.tar.gz", days_old=300)
    files.put(f"{cache}/used.tar.gz.used", size=0, days_old=3)
    files.put(f"{cache}/gone.tar.gz.used", size=0, days_old=3)
    files.put(f"{cache}/.half.tar.gz.abc", days_old=2)
    files.put(f"{cache}/.now.tar.gz.abc", days_old=0.5)
    files.put(f"{cache}/dlapp-1.pyz", size=901, days_old=5)
    files.put(f"{cache}/big.tar.gz", size=90, days_old=4)
    assert swept(files) == 4
    assert remaining_names(files, cache) == [".now.tar.gz.abc", "big.tar.gz", "used.tar.gz", "used.tar.gz.used"]


def test_cached_files_of_unfinished_applications_are_kept(files: Memory) -> None:
    files.put(f"{PLACES.staging(APP)}/submission.json", text={"submitted_ms": NOW_MS - 50 * DAY_MS})
    for days in (40, 50.5, 60):
        files.put(f"{PLACES.cache}/{days}.tar.gz", days_old=days)
    swept(files)
    assert remaining_names(files, PLACES.cache) == ["40.tar.gz", "50.5.tar.gz"]
    files.put(f"{PLACES.staging(APP)}/submission.json", text={})
    files.put(f"{PLACES.cache}/60.tar.gz", days_old=60)
    swept(files)
    assert "60.tar.gz" in remaining_names(files, PLACES.cache)


def test_the_archive_of_an_application_that_waits_in_a_queue_stays(files: Memory) -> None:
    for days in (40, 50.5, 60):
        files.put(f"{PLACES.cache}/{days}.tar.gz", days_old=days)
    swept(files, submitted_ms=(int(NOW_MS - 50 * DAY_MS), NOW_MS))
    assert remaining_names(files, PLACES.cache) == ["40.tar.gz", "50.5.tar.gz"]


def test_an_unstarted_application_keeps_archives_since_its_token_time(files: Memory) -> None:
    staging = PLACES.staging(APP)
    files.directories[staging] = int(NOW_MS - 300 * DAY_MS)
    for days in (40, 51.5, 60):
        files.put(f"{PLACES.cache}/{days}.tar.gz", days_old=days)
    files.put(f"{staging}/viewers.token", days_old=50)
    swept(files)
    assert remaining_names(files, PLACES.cache) == ["40.tar.gz", "51.5.tar.gz"]
    files.remove(f"{staging}/viewers.token")
    swept(files)
    assert remaining_names(files, PLACES.cache) == [], "of an empty directory nothing was handed in"
    assert remaining_names(files, PLACES.all_staging) == [str(APP)]


def test_a_use_is_written_down_once_a_day_and_never_on_the_archive(files: Memory) -> None:
    location = f"{PLACES.cache}/a.tar.gz"
    files.put(location, days_old=20)
    stored = files.files[location]
    for days, written in ((0, NOW_MS), (0.5, NOW_MS), (1.5, NOW_MS + 3 * DAY_MS // 2)):
        files.now_ms = int(NOW_MS + days * DAY_MS)
        mark_use(files, location, stored[1], files.now_ms)  # type: ignore[arg-type]
        assert files.files[f"{location}.used"][1] == written
    assert files.files[location] == stored
    files.put(f"{PLACES.cache}/new")
    mark_use(files, f"{PLACES.cache}/new", NOW_MS, NOW_MS)  # type: ignore[arg-type]
    assert f"{PLACES.cache}/new.used" not in files.files


def test_histories_are_evicted_by_age_and_size(files: Memory) -> None:
    for number, (days, size) in enumerate([(91, 1), (80, 500), (1, 600), (0, 300)]):
        files.put(f"{PLACES.all_history}/application_1_{number:04d}.json", size=size, days_old=days)
    swept(files)
    assert remaining_names(files, PLACES.all_history) == ["application_1_0002.json", "application_1_0003.json"]


def test_a_cleanup_ends(files: Memory) -> None:
    for number in range(300):
        files.put(f"{PLACES.all_history}/application_1_{number:04d}.json", days_old=100)
    assert [swept(files) for _ in range(4)] == [100, 100, 100, 0]


def test_archives_of_this_machine_are_evicted_except_new_ones(tmp_path: Path) -> None:
    for name, days in (("old", 31), ("used", 1), ("new", 0)):
        (tmp_path / name).write_bytes(b"x" * 600)
        os.utime(tmp_path / name, times=None if not days else (1, os.stat(tmp_path / name).st_mtime - days * 86_400))
    clean_up_cache(str(tmp_path), Retention(30 * 86_400, 10_000))
    assert sorted(os.listdir(tmp_path)) == ["new", "used"]
    clean_up_cache(str(tmp_path), Retention(30 * 86_400, 100))
    assert os.listdir(tmp_path) == ["new"]
    clean_up_cache(str(tmp_path / "nowhere"), Retention(1, 1))


def test_the_results_of_a_sweep_have_the_ends_that_only_its_journal_has(files: Memory) -> None:
    sweep = SweepSpec(sampler=Sampler.GRID, trials=3, grid=(GridParameter("X", ("a", "b", "c")),))
    staging = PLACES.staging(APP)
    files.put(f"{staging}/submission.json", text={"spec": {"sweep": to_json(sweep)}})
    running = TrialView(number=1, state=TrialState.RUNNING, tries=1)
    text = "\n".join((head_line(sweep), trial_line(running, ["X"]), ""))
    files.files[f"{staging}/trials.jsonl"] = text.encode(), NOW_MS
    end = {"kind": "trial_end", "t": 5, "try": 1, "state": "done", "ran_s": 1.0, "in": "c"}
    for name, number in (("journal-1-000000.jsonl", 1), ("journal-2-000000-000031.jsonl", 2)):
        lines = f'{json.dumps(end | {"number": number})}\n{{"kind": "trial_end", "nu'
        files.files[f"{staging}/{name}"] = lines.encode(), NOW_MS
    assert settled(files, state=State.FAILED) == NOTHING_KEPT
    stored = read_results(files.read(PLACES.trials(APP), max_bytes=1 << 20).decode())
    assert [(trial.number, trial.state, trial.parameters) for trial in stored.trials] == [
        (1, TrialState.DONE, {"X": "b"}),
        (2, TrialState.DONE, {"X": "c"}),
    ]
