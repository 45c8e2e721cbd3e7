"""The steps of dlapp-launcher: its lines, what stops it, and what reaches the engine."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.application.build import os_user
from dlapp.application.properties import Properties
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.errors import (
    DlappError,
    FileRefused,
    NotFound,
    Refuse,
    RequestTooLarge,
    SpecError,
    Unreachable,
    UsageError,
    raise_error,
)
from dlapp.launcher.submit import launch, print_spec
from dlapp.locations import local_path
from dlapp.node_policy import DockerPolicy, RegistryPolicy
from dlapp.storage.commit import commit, part_location
from dlapp.storage.commit.marker import LONGEST_SUFFIX
from dlapp.system.files import NAME_MAX
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.serialization import from_json
from dlapp.values.spec import AppSpec, Secrets, Submission
from dlapp.values.start_conditions import After, RequiredEnd
from tests.services.missing import missing

ID = "application_1474893803111_0042"
ORIGINAL = """\
[application]
username=tony
appname='c3 deeplearning app caffe mnist example'
docker_image=naver/c3_dl-caffe
user_dev_workspace_path=./user_dev_workspace
user_shell_script=dl_app_start.sh
user_shell_args='-gpu all'

[from_hdfs]
hdfs=/user/tony/caffe_test/*
input_path=data

[to_hdfs]
output_path=output
hdfs=/user/tony/caffe_mnist_example_output
overwrite=true
"""


class FakeEngine:
    """An engine that takes everything down and runs nothing."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.notes: list[str] = []
        self.error: dict[str, Exception] = {}
        self.submitted: list[tuple[Submission, Secrets]] = []

    def _may_fail(self, call: str) -> None:
        if call in self.error:
            raise self.error[call]

    def info(self) -> EngineInfo:
        self._may_fail("info")
        return EngineInfo(name="local", version="1", has_gpus=False)

    def check(self, spec: AppSpec, refuse: Refuse = raise_error) -> list[str]:
        self._may_fail("check")
        return self.notes

    def archive_cache(self) -> str:
        return str(self.cache)

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        self._may_fail("submit")
        self.submitted.append((submission, secrets))
        return ApplicationId.from_text(ID)

    def prepare(self) -> None:
        pass

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        return f"http://RM/{application_id}", f"http://TIMELINE/{application_id}"


class Launch:
    """A place with the original's example, and what a launch of its file says."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.workspace = place / "user_dev_workspace"
        self.root = place / "hdfs"
        self.engine = FakeEngine(place / "cache")
        self.messages: list[str] = []
        self.noted: list[str] = []
        self.text = ORIGINAL
        for directory in (self.workspace / "data", self.workspace / "output", self.root / "user/tony/caffe_test"):
            directory.mkdir(parents=True)
        (self.workspace / "dl_app_start.sh").write_text("#!/usr/bin/env bash\n./train_lenet.sh $@\n")
        (self.root / "user/tony/caffe_test/images").write_text("1")
        self.docker_policy = DockerPolicy()
        self.options = {"local.fs_root": str(self.root)}

    @property
    def target(self) -> Path:
        return self.root / "user/tony/caffe_mnist_example_output"

    def __call__(self, **environ: str) -> ApplicationId:
        path = self.place / "dl_app_caffe.properties"
        path.write_text(self.text)
        config = load_config(self.options, {"HOME": str(self.place), **environ}, system_file=missing())
        return launch(
            str(path),
            config,
            self.engine,  # type: ignore[arg-type]
            say=self.messages.append,
            note=self.noted.append,
            environ=environ,
            resolve=self.resolve,
            docker_policy=lambda: self.docker_policy,
        )

    def resolve(self, name: str) -> str:
        """Return the id for a name of an application, as a client with one application does."""
        if name in ("last", "42"):
            return ID
        raise NotFound(f"no application's id ends with {name!r}")

    def refused(self) -> list[str]:
        """Launch and be refused: the faults without the file's name."""
        with pytest.raises(DlappError) as refusal:
            self()
        assert self.engine.submitted == []
        assert self.messages[-1].endswith(" : fail")
        prefix = f"{self.place}/dl_app_caffe.properties:"
        return [line.removeprefix(prefix) for line in str(refusal.value).split("\n")]


@pytest.fixture
def launched(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def test_the_originals_lines_are_printed_to_the_character(launched: Launch) -> None:
    assert str(launched()) == ID
    assert launched.messages == [
        "C3 DL Cluster Version check : ok",
        "CheckDLAppProperties : ok",
        f"user_dev_workspace_path = {launched.workspace}",
        "user_dev_workspace_exclude_list = []",
        "user_dev_workspace dir size = 1 kb",
        "DL App Submission : OK",
        f"DL App ID = {ID}",
        "DL App Dashboard",
        f"* While app is running , check : http://RM/{ID}",
        f"* After app is completed, check : http://TIMELINE/{ID}",
        "DL App Status and stdout/stderr Log URLs",
        f"* dlapp-status {ID}",
        "DL App Resources = 1 container, each with memory 4096 MiB, vcores 1, gcores 0",
    ]
    assert launched.noted == []


def test_start_conditions_accept_the_names_that_commands_accept(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("[application]\n", "[application]\nafter=last:any\n")
    launched()
    assert launched.engine.submitted[0][0].spec.after == (After(ID, RequiredEnd.ANY),)


@pytest.mark.parametrize(
    ("after", "problem"),
    [("41", "no application's id ends with '41'"), ("42, last:any", f"{ID} appears twice")],
)
def test_an_application_to_wait_for_that_is_not_there_or_named_twice_is_refused_with_its_line(
    launched: Launch, after: str, problem: str
) -> None:
    launched.text = ORIGINAL.replace("[application]\n", f"[application]\nafter={after}\n")
    (fault,) = launched.refused()
    assert fault.startswith("2: ")
    assert problem in fault


def test_a_submission_has_the_spec_the_packed_workspace_and_separate_secrets(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("[from_hdfs]", "env.TOKEN=hush\n[from_hdfs]")
    launched(PATH="/bin", LC_ALL="C.UTF-8", TZ="UTC", SECRET="no", DLAPP_LOCAL_SHARED="false", LD_PRELOAD="x")
    ((submission, secrets),) = launched.engine.submitted
    assert submission.spec.args == ("-gpu", "all")
    assert submission.spec.inputs[0].sources == (f"file://{launched.root}/user/tony/caffe_test/*",)
    assert (submission.submitter, submission.log_limit_bytes) == (os_user(), 1 << 30)
    assert submission.workspace_archive == f"{launched.engine.cache}/{submission.workspace_digest}.tar.gz"
    with tarfile.open(submission.workspace_archive) as archive:
        assert sorted(archive.getnames()) == ["data", "dl_app_start.sh", "output"]
    assert submission.spec.env == ("TOKEN",)
    assert "hush" not in repr(submission)
    assert secrets.env == {"TOKEN": "hush"}
    assert secrets.environment == {"PATH": "/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    assert len(bytes.fromhex(secrets.control_secret)) == 32
    launched()
    assert launched.engine.submitted[1][1].control_secret != secrets.control_secret


def test_proxies_and_certificates_are_sent_with_the_secrets_and_others_named(
    launched: Launch,
) -> None:
    proxy = "http://tony:hush@proxy:3128"
    passed = {"https_proxy": proxy, "NO_PROXY": "localhost", "SSL_CERT_FILE": "/ca.pem"}
    launched(**passed, HF_TOKEN="hush", PIP_INDEX_URL="https://tony:hush@pypi", http_proxy="")
    ((submission, secrets),) = launched.engine.submitted
    assert secrets.environment == {**passed, "http_proxy": ""}
    assert "hush" not in repr(submission)
    assert "hush" not in repr(launched.noted)
    assert [text for text in launched.noted if text.startswith("not passed: ")] == [
        "not passed: HF_TOKEN, PIP_INDEX_URL, SSL_CERT_FILE (pass_env)"  # its program runs in Docker
    ]


def test_the_credentials_for_the_registry_of_the_image_travel_apart_from_the_spec(launched: Launch) -> None:
    auth = base64.b64encode(b"tony:hush").decode()
    auths = {"https://index.docker.io/v1/": {"auth": auth}, "other.org": {"auth": auth}}
    (launched.place / "config.json").write_text(json.dumps({"auths": auths}))
    launched(DOCKER_CONFIG=str(launched.place))
    ((submission, secrets),) = launched.engine.submitted
    ((image, credentials),) = secrets.registry_credentials.items()
    assert (image, credentials.registry) == ("naver/c3_dl-caffe", "docker.io")
    assert json.loads(base64.urlsafe_b64decode(credentials.header))["password"] == "hush"
    assert credentials.header not in repr(submission)
    assert secrets.environment == {}


def test_an_image_that_the_operator_does_not_allow_is_refused_with_its_line(launched: Launch) -> None:
    launched.docker_policy = DockerPolicy(registry=RegistryPolicy(allow=("docker.io/library", "r.org:5000")))
    launched.text += "[role a]\ndocker_image=r.org:5000/a\n[role b]\ndocker_image=q.org/b\n"
    allowed = "docker.registry.allow of /etc/dlapp/node.yaml allows docker.io/library, r.org:5000"
    assert launched.refused() == [
        f"4: application.docker_image: naver/c3_dl-caffe is docker.io/naver/c3_dl-caffe, and {allowed}",
        f"{ORIGINAL.count(chr(10)) + 4}: role b.docker_image: q.org/b is q.org/b, and {allowed}",
    ]
    launched.docker_policy = DockerPolicy(registry=RegistryPolicy(prefix="r.org:5000/team", allow=("r.org:5000",)))
    launched.text = ORIGINAL
    launched()


def test_driver_capabilities_that_the_operator_does_not_allow_are_refused_with_their_line(launched: Launch) -> None:
    launched.docker_policy = DockerPolicy(gpu_capabilities=("video",))
    launched.text += "[role a]\ngpu_capabilities=graphics,video\n[role b]\ngpu_capabilities=video,compute\n"
    allowed = "this node allows compute, utility, video (docker.gpu_capabilities of /etc/dlapp/node.yaml)"
    line = ORIGINAL.count(chr(10)) + 2
    assert launched.refused() == [f"{line}: role a.gpu_capabilities: graphics: {allowed}"]


def test_sizes_are_whole_kb_rounded_up_and_the_exclude_list_is_a_python_list(launched: Launch) -> None:
    (launched.workspace / "big").write_bytes(bytes(range(256)) * 8)
    (launched.workspace / "a.o").write_bytes(b"x" * 5000)
    launched.text = ORIGINAL.replace("[from_hdfs]", "user_dev_workspace_exclude_list=*.o,tmp dir\n[from_hdfs]")
    launched()
    assert "user_dev_workspace_exclude_list = ['*.o', 'tmp dir']" in launched.messages
    assert "user_dev_workspace dir size = 3 kb" in launched.messages


def test_the_resolved_ask_is_printed(launched: Launch) -> None:
    launched.text = ORIGINAL + "[resources]\ncontainers=4\nmemory=1g\ngcores=2\n"
    launched()
    assert launched.messages[-1] == "DL App Resources = 4 containers, each with memory 1024 MiB, vcores 1, gcores 2"


def test_engine_notes_and_unpacked_files_are_separate_from_the_output_lines(launched: Launch) -> None:
    launched.engine.notes = ["resources.nodes has no effect on one machine"]
    (launched.workspace / "output/old").write_text("1")
    os.mkfifo(launched.workspace / "pipe")
    launched()
    assert launched.noted == [
        "resources.nodes has no effect on one machine",
        "pipe is not packed: it is a FIFO",
        "output is packed without the 1 file that is in it: it is an output_path",
    ]
    with tarfile.open(launched.engine.submitted[0][0].workspace_archive) as archive:
        assert "output" in archive.getnames()
        assert "output/old" not in archive.getnames()


@pytest.mark.parametrize(
    ("first_line", "noted"),
    [
        ("#!/usr/bin/env python3", "dl_app_start.sh has no x bit, so bash runs it and not /usr/bin/env python3: "),
        ("#!/usr/bin/env bash", None),
        ("#!/bin/sh", None),
        ("echo", None),
    ],
)
def test_a_script_that_bash_will_run_against_its_own_first_line_is_noted(
    launched: Launch, first_line: str, noted: str | None
) -> None:
    (launched.workspace / "dl_app_start.sh").write_text(f"{first_line}\n")
    launched()
    assert (launched.noted[0].startswith(noted) if noted else launched.noted == []) is True


def test_the_script_that_needs_an_x_bit_is_named_as_seen_from_here(
    launched: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launched.workspace / "dl_app_start.sh").write_text("#!/usr/bin/env python3\n")
    for here, seen in (
        (launched.place, "user_dev_workspace/dl_app_start.sh"),
        (launched.workspace, "dl_app_start.sh"),
        (launched.root, f"{launched.workspace}/dl_app_start.sh"),
    ):
        monkeypatch.chdir(here)
        launched.noted.clear()
        launched()
        assert launched.noted[0].endswith(f": chmod +x {seen}")


def test_a_script_with_windows_line_ends_is_noted_with_the_command_that_converts_it(
    launched: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(launched.place)
    (launched.workspace / "dl_app_start.sh").write_bytes(b"#!/bin/sh\r\necho\r\n")
    (launched.workspace / "dl_app_start.sh").chmod(0o755)
    launched()
    assert launched.noted == [
        "dl_app_start.sh has Windows line ends, so it cannot be started: "
        r"sed -i 's/\r$//' user_dev_workspace/dl_app_start.sh"
    ]


def test_unexpanded_shell_syntax_is_noted_before_the_submission(
    launched: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(launched.place)
    (launched.workspace / "dl_app_start.sh").write_bytes(b"\xef\xbb\xbf#!/bin/sh\nCUDA_VISIBLE_DEVICES=1 ./train\n")
    launched.text = ORIGINAL.replace("'-gpu all'", "-gpu all > $LOG\nenv.PYTHONPATH=lib:$PYTHONPATH")
    launched.text = launched.text.replace("docker_image=naver/c3_dl-caffe\n", "")
    launched(CUDA_VISIBLE_DEVICES="2,3")
    assert [text.partition(":")[0].partition(" begins")[0] for text in launched.noted] == [
        "env.PYTHONPATH",
        "user_shell_args (>, $LOG)",
        "dl_app_start.sh",
        "dl_app_start.sh",
        "CUDA_VISIBLE_DEVICES",
    ]


def test_one_address_for_before_and_after_the_end_is_printed_once(
    launched: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, when in (("http://rm/v", "While app is running "), ("file:///v", "After app is completed")):
        monkeypatch.setattr(launched.engine, "dashboard_urls", lambda _id, *, wait_s, url=address: (url, url))
        launched()
        assert [line for line in launched.messages if address in line] == [f"* {when}, check : {address}"]


def test_an_output_that_the_next_run_would_pack_is_noted(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("/user/tony/caffe_mnist_example_output", "user_dev_workspace/results")
    launched()
    assert [line.partition(":")[0] for line in launched.noted] == [
        f"{launched.workspace}/results lies in the workspace"
    ]


# ---- what stops it ----


def test_an_engine_that_does_not_answer_fails_the_version_check(launched: Launch) -> None:
    launched.engine.error["info"] = Unreachable("no one is there")
    assert launched.refused() == ["no one is there"]
    assert launched.messages == ["C3 DL Cluster Version check : fail"]


def test_a_faulty_file_fails_the_check_of_the_properties(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("overwrite=true", "overwrite=maybe").replace("dl_app_start.sh", "start.sh")
    assert launched.refused() == [
        f"6: application.user_shell_script: {launched.workspace}/start.sh: there is no such file; the nearest is "
        "'dl_app_start.sh'",
        "16: to_hdfs.overwrite: is 'maybe', allowed are true, false",
    ]
    assert launched.messages == ["C3 DL Cluster Version check : ok", "CheckDLAppProperties : fail"]


def test_an_ask_that_never_fits_fails_the_check(launched: Launch) -> None:
    launched.engine.error["check"] = RequestTooLarge("asked for 9 gcores, the machine has 0")
    assert launched.refused() == ["asked for 9 gcores, the machine has 0"]


def test_an_ask_that_never_fits_is_named_with_the_line_of_its_key(launched: Launch) -> None:
    launched.engine.error["check"] = RequestTooLarge("asked for 9 gcores, the machine has 0", "resources.gcores")
    assert launched.refused() == [" resources.gcores: asked for 9 gcores, the machine has 0"]
    launched.text += "[resources]\ngcores=9\n"
    assert launched.refused() == ["18: resources.gcores: asked for 9 gcores, the machine has 0"]


def test_a_small_memory_without_a_unit_is_warned_of_and_an_unknown_variable_noted(launched: Launch) -> None:
    launched.text += "[resources]\nmemory=4\n"
    launched(DLAPP_FOO="1")
    assert launched.noted == [
        "the variable DLAPP_FOO is not known and has no effect",
        f"warning: {launched.place}/dl_app_caffe.properties:18: resources.memory: 4 is 4 MiB; did you mean 4g?",
    ]
    launched.noted.clear()
    for memory in ("64", "4m", "4g"):
        launched.text = f"{ORIGINAL}[resources]\nmemory={memory}\n"
        launched()
    assert launched.noted == []


def test_a_key_that_the_engine_cannot_honour_is_named_with_its_line(launched: Launch) -> None:
    launched.engine.error["check"] = SpecError("application.docker_image", "there is no Docker here")
    assert launched.refused() == ["4: application.docker_image: there is no Docker here"]


def test_a_failed_submission_is_reported(launched: Launch) -> None:
    launched.engine.error["submit"] = DlappError("the disk is full")
    assert launched.refused() == ["the disk is full"]
    assert launched.messages[-2:] == ["user_dev_workspace dir size = 1 kb", "DL App Submission : fail"]


def test_missing_input_is_named(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("caffe_test/*", "caffe_test/*\n  /no/such\n  file:///no/such/*.png")
    assert launched.refused() == [
        f"10: from_hdfs.hdfs: {launched.root}/no/such matches nothing",
        "10: from_hdfs.hdfs: /no/such/*.png matches nothing",
    ]


@pytest.mark.parametrize(
    ("name", "text", "escaped"),
    [
        ("run[1]", "run[1]", r"run\[1\]"),
        ("{a,b}", "{a,b}", r"\{a,b\}"),
        ("what?", "what[?]", ""),
        ("run[1]/a?/x.png", "run[1]/a?/*.png", r"run\[1\] and a\?"),
        ("a*b[1]", "a*b[1]", r"a*b\[1\]"),
        ("a*b[1]", r"a\*b[1]", r"a\*b\[1\]"),
    ],
)
def test_an_unmatched_pattern_that_is_an_existing_name_is_refused_with_its_escapes(
    launched: Launch, name: str, text: str, escaped: str
) -> None:
    path = launched.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    message = f" as a pattern, and this name exists: write {escaped}" if escaped else ""
    launched.text = ORIGINAL.replace("/user/tony/caffe_test/*", f"/{text}")
    if not escaped:
        launched()
        return
    assert launched.refused() == [f"10: from_hdfs.hdfs: {launched.root}/{text} matches nothing{message}"]
    launched.text = launched.text.replace("input_path=data", "input_path=data\noptional=true")
    launched()
    assert f"[from_hdfs] {launched.root}/{text} matches nothing now{message}; it is optional" in launched.noted


def test_input_that_is_a_broken_link_is_named(launched: Launch) -> None:
    link = launched.root / "user/tony/caffe_test/link"
    link.symlink_to("gone")
    assert launched.refused() == [f"10: from_hdfs.hdfs: {link} is a broken link"]


def test_unfetchable_entries_of_a_directory_are_named(launched: Launch) -> None:
    deep = launched.root / "user/tony/caffe_test/set/deep"
    deep.mkdir(parents=True)
    (deep / "link").symlink_to("/no/such")
    assert launched.refused() == [f"10: from_hdfs.hdfs: {deep}/link cannot be read: No such file or directory"]


def test_a_list_is_in_nobodys_way_but_a_file_of_its_name_is(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("[to_hdfs]", "mode=list\n[to_hdfs]").replace("input_path=data", "input_path=./all")
    (launched.workspace / "images").write_text("")
    launched()
    (spec,) = [submission.spec for submission, _ in launched.engine.submitted]
    assert (spec.inputs[0].as_list, spec.inputs[0].input_path) == (True, "all")
    launched.engine.submitted.clear()
    (launched.workspace / "all").write_text("")
    (line,) = launched.refused()
    assert line.startswith("11: from_hdfs.input_path: the workspace has all, where the list would be written")


def test_unsupported_input_and_output_schemes_are_refused_by_name(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("caffe_test/*", "caffe_test/*\n  nonsense://bucket/x")
    assert launched.refused() == ["10: from_hdfs.hdfs: there is no storage for nonsense://"]
    launched.text = re.sub(r"(?m)^hdfs=.*output.*$", "hdfs=s3://bucket/results", ORIGINAL)
    (line,) = launched.refused()
    assert line.endswith("to_hdfs.hdfs: output cannot go to s3://, it can be a path, file:// or hdfs://")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda w: (w / "data/images").write_text(""), "10: from_hdfs.hdfs: the workspace has data/images"),
        (lambda w: (w / "data/images").mkdir(), "10: from_hdfs.hdfs: the workspace has data/images"),
        (
            lambda w: ((w / "data").rmdir(), (w / "data").write_text("")),
            "11: from_hdfs.input_path: data is a file of the workspace",
        ),
    ],
)
def test_input_never_lands_on_a_file_of_the_workspace(
    launched: Launch, make: Callable[[Path], object], fault: str
) -> None:
    make(launched.workspace)
    (line,) = launched.refused()
    assert line.startswith(fault)


def test_directories_of_input_and_workspace_mix_until_a_file_is_in_the_way(launched: Launch) -> None:
    for top in (launched.workspace / "data", launched.root / "user/tony/caffe_test"):
        (top / "set/a").mkdir(parents=True)
    (launched.workspace / "data/set/a/mine").write_text("")
    (launched.root / "user/tony/caffe_test/set/a/yours").write_text("")
    launched()
    (launched.root / "user/tony/caffe_test/set/a/mine").write_text("")
    launched.engine.submitted.clear()
    (line,) = launched.refused()
    assert line.startswith("10: from_hdfs.hdfs: the workspace has data/set/a/mine, where ")


def test_a_file_that_is_excluded_is_in_nobodys_way(launched: Launch) -> None:
    (launched.workspace / "data/images").write_text("")
    launched.text = ORIGINAL.replace("[from_hdfs]", "user_dev_workspace_exclude_list=data/\n[from_hdfs]")
    launched()


def test_two_sources_never_land_on_each_other(launched: Launch) -> None:
    other = launched.root / "other"
    other.mkdir()
    (other / "images").write_text("2")
    launched.text = ORIGINAL.replace("caffe_test/*", "caffe_test/*\n  /other/images")
    (line,) = launched.refused()
    assert line == (
        f"10: from_hdfs.hdfs: {other}/images and {launched.root}/user/tony/caffe_test/images "
        "would both be placed at data/images"
    )


def test_a_source_that_leads_to_the_target_is_refused(launched: Launch) -> None:
    launched.target.mkdir()
    link = launched.root / "user/tony/caffe_test/link"
    link.symlink_to(launched.target)
    assert launched.refused() == [f"10: from_hdfs.hdfs: {link} would be overwritten by the output of line 15"]


@pytest.mark.parametrize("letter", ["x", "결"], ids=["ascii", "three bytes"])
def test_a_target_name_too_long_for_its_suffixes_is_refused_with_the_maximum(launched: Launch, letter: str) -> None:
    width = len(letter.encode())
    most = (NAME_MAX - len(LONGEST_SUFFIX)) // width
    launched.text = ORIGINAL.replace("caffe_mnist_example_output", letter * (most + 1))
    beside = "names beside it are longer, as NAME.application_1700000000000_0042.partial"
    (line,) = launched.refused()
    what = f"its last name has {width * (most + 1)} bytes, at most {NAME_MAX - len(LONGEST_SUFFIX)} are possible"
    assert line == f"15: to_hdfs.hdfs: {what}, because {beside}: {letter * 40}…"
    launched.text = ORIGINAL.replace("caffe_mnist_example_output", letter * most)
    launched()


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("hdfs=/user/tony/caffe_mnist", f"hdfs=/user/{'d' * 256}/mnist", "15: to_hdfs.hdfs"),
        ("output_path=output", f"output_path=out/{'o' * 256}", "14: to_hdfs.output_path"),
        ("input_path=data", f"input_path={'i' * 256}", "11: from_hdfs.input_path"),
        ("overwrite=true", f"overwrite=true\n[checkpoint]\npath={'c' * 256}", "18: checkpoint.path"),
        ("overwrite=true", f"overwrite=true\n[checkpoint]\npath=c\nhdfs=/k/{'h' * 256}/x", "19: checkpoint.hdfs"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_wherever_a_file_gets_it(
    launched: Launch, old: str, new: str, where: str
) -> None:
    launched.text = ORIGINAL.replace(old, new)
    (line,) = launched.refused()
    assert line.startswith(f"{where}: a name in it has 256 bytes, at most 255 are possible: ")


def test_a_path_that_leaves_no_room_for_the_directories_around_it_is_refused(launched: Launch) -> None:
    launched.text = ORIGINAL.replace("output_path=output", f"output_path={'o/' * 2000}o")
    assert launched.refused() == ["14: to_hdfs.output_path: it has 4001 bytes, at most 3583 are possible"]
    launched.text = ORIGINAL.replace("hdfs=/user/tony/caffe_mnist", f"hdfs={'/o' * 2000}")
    (line,) = launched.refused()
    assert re.fullmatch(r"15: to_hdfs\.hdfs: it has 4\d+ bytes, at most 3583 are possible", line)


def test_all_names_that_are_too_long_are_named_at_once(launched: Launch) -> None:
    long = "n" * 300
    launched.text = ORIGINAL.replace("output_path=output", f"output_path={long}").replace("mnist_example", long)
    assert [line.partition(": ")[2].partition(":")[0] for line in launched.refused()] == [
        "to_hdfs.output_path",
        "to_hdfs.hdfs",
    ]


def test_an_existing_target_stops_it_unless_it_may_be_overwritten(launched: Launch) -> None:
    launched.target.mkdir()
    launched()
    launched.engine.submitted.clear()
    launched.text = ORIGINAL.replace("overwrite=true\n", "")
    what = "already exists; name another, or set overwrite=true"
    assert launched.refused() == [f"15: to_hdfs.hdfs: {launched.target} {what}"]
    assert not launched.engine.cache.exists() or len(list(launched.engine.cache.iterdir())) == 1


def test_a_commit_that_was_cut_off_at_the_target_is_finished_first(launched: Launch) -> None:
    earlier = ApplicationId(1474893803111, 7)
    target = f"file://{launched.target}"
    part = part_location(target, earlier, ContainerId(earlier, 1, 2))
    Path(local_path(part)).mkdir(parents=True)
    Path(local_path(part), "model").write_text("earlier")

    def cut_off(step: str) -> None:
        if step == "marker":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit(target, earlier, (("", part),), overwrite=True, step=cut_off)
    assert not launched.target.exists()
    launched()
    assert (launched.target / "model").read_text() == "earlier"
    assert launched.noted == [f"{launched.target}: the output of {earlier}, which was cut off, is put in place now"]


def test_a_target_under_a_file_is_refused(launched: Launch) -> None:
    (launched.root / "file").write_text("")
    launched.text = ORIGINAL.replace("/user/tony/caffe_mnist_example_output", "/file/out")
    (line,) = launched.refused()
    assert line.startswith("15: to_hdfs.hdfs: ")
    assert f"{launched.root}/file is not a directory" in line


def test_all_environment_errors_are_reported_together(launched: Launch) -> None:
    launched.target.mkdir()
    launched.text = (
        ORIGINAL.replace("overwrite=true\n", "")
        .replace("/caffe_test/*", "/nothing/*")
        .replace("[from_hdfs]", "user_dev_workspace_exclude_list=*.sh\n[from_hdfs]")
    )
    assert [line.split(": ")[:2] for line in launched.refused()] == [
        ["6", "application.user_shell_script"],
        ["11", "from_hdfs.hdfs"],
        ["16", "to_hdfs.hdfs"],
    ]


def test_a_script_that_would_not_be_packed_is_refused(launched: Launch) -> None:
    (launched.workspace / "real.sh").write_text("")
    (launched.workspace / "output/go.sh").write_text("")
    (launched.workspace / "link.sh").symlink_to("real.sh")
    launched.text = ORIGINAL.replace("dl_app_start.sh", "output/go.sh")
    assert launched.refused() == [
        "6: application.user_shell_script: output/go.sh is in output_path of [to_hdfs], whose files are not packed"
    ]
    launched.text = ORIGINAL.replace("dl_app_start.sh", "link.sh\nuser_dev_workspace_exclude_list=real.sh")
    assert launched.refused() == [
        "6: application.user_shell_script: real.sh is excluded by user_dev_workspace_exclude_list"
    ]


def test_default_exclusions_are_noted_with_the_key_that_packs_them(launched: Launch) -> None:
    for name in (".git/x", ".venv/x", *(f"{letter}/__pycache__/x" for letter in "abcdef")):
        (launched.workspace / name).parent.mkdir(parents=True)
        (launched.workspace / name).write_text("")
    launched()
    assert launched.noted == [
        ".git, .venv, a/__pycache__, b/__pycache__, c/__pycache__ and 3 more are not packed "
        "(user_dev_workspace_exclude_defaults=false packs them)"
    ]
    launched.noted.clear()
    launched.text = ORIGINAL.replace("[from_hdfs]", "user_dev_workspace_exclude_defaults=no\n[from_hdfs]")
    launched()
    assert launched.noted == []
    with tarfile.open(launched.engine.submitted[-1][0].workspace_archive) as archive:
        assert ".git/x" in archive.getnames()


def test_a_script_that_is_left_out_by_default_names_the_key(launched: Launch) -> None:
    (launched.workspace / ".venv").mkdir()
    (launched.workspace / ".venv/go.sh").write_text("")
    launched.text = ORIGINAL.replace("dl_app_start.sh", ".venv/go.sh")
    assert launched.refused() == [
        "6: application.user_shell_script: .venv/go.sh is excluded by user_dev_workspace_exclude_defaults"
    ]


def test_a_workspace_above_the_limit_is_refused_before_it_is_packed(launched: Launch) -> None:
    (launched.workspace / "big").write_bytes(bytes(range(1, 256)) * 100)
    launched.options["storage.workspace_limit"] = "20k"
    with pytest.raises(UsageError, match=r"the limit \(storage.workspace_limit\) .* The largest: big"):
        launched()
    assert launched.messages[-1] == "CheckDLAppProperties : fail"
    assert not launched.engine.cache.exists()


def test_a_workspace_with_a_link_out_of_it_is_refused(launched: Launch) -> None:
    (launched.workspace / "out").symlink_to("/etc/passwd")
    (line,) = launched.refused()
    assert "out is a link out of the workspace" in line


# ---- print-spec ----


def test_the_printed_spec_reads_back_to_the_file_with_secrets_masked(launched: Launch) -> None:
    (launched.place / "secret.env").write_text("KEY=hush\n")
    (launched.place / "secret.env").chmod(0o600)
    path = launched.place / "app.properties"
    path.write_text(ORIGINAL.replace("[from_hdfs]", "env.TOKEN=hush\nenv_file=secret.env\n[from_hdfs]"))
    config = load_config(launched.options, {"HOME": "/x"}, system_file=missing())
    printed = print_spec(str(path), config, launched.engine)  # type: ignore[arg-type]
    text = json.dumps(printed)
    assert "hush" not in text
    data = json.loads(text)
    assert data.keys() == {"properties", "spec"}
    properties = Properties.from_json(data["properties"])
    assert properties.value("application", "env.TOKEN") == "***"
    assert properties.value("to_hdfs", "overwrite") is True
    spec = from_json(AppSpec, data["spec"], strict=True)
    assert (spec.env, spec.args) == (("TOKEN", "KEY"), ("-gpu", "all"))


def test_the_printed_spec_of_a_faulty_file_is_its_faults(launched: Launch) -> None:
    path = launched.place / "app.properties"
    path.write_text("[application]\n")
    config = load_config({}, {"HOME": "/x"}, system_file=missing())
    with pytest.raises(FileRefused) as refusal:
        print_spec(str(path), config, launched.engine)  # type: ignore[arg-type]
    assert len(refusal.value.problems) == 3


def test_submitting_loads_no_unneeded_module() -> None:
    program = (
        "import sys, dlapp.launcher.submit; print(sorted({'yaml', 'pathspec', 'difflib', 'docker', 'click', 'tarfile', "
        "'asyncio', 'tempfile', 'logging', 'subprocess', 'pathlib', 'shlex', 'shutil'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
