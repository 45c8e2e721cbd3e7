"""The grammar of a properties file, and every fault of it with its line."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlapp.application.keys import SECTIONS
from dlapp.application.properties import MAX_BYTES, Properties, Setting, parse_properties
from dlapp.errors import FileRefused, SpecError
from tests.tiers import some

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

MINIMAL = "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s\n"
"""Four lines; what a test adds begins in line 5."""


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(FileRefused) as refusal:
        parse_properties(text, "f")
    return list(refusal.value.problems)


def value(text: str, section: str, key: str) -> object:
    return parse_properties(text, "f").value(section, key)


def test_the_original_example_is_read_byte_for_byte() -> None:
    properties = parse_properties(ORIGINAL.encode(), "dl_app_caffe.properties")
    assert properties.to_text() == ORIGINAL
    says = properties.value
    assert says("application", "appname") == "'c3 deeplearning app caffe mnist example'"
    assert says("application", "user_shell_args") == ("-gpu", "all")
    assert says("from_hdfs", "hdfs") == ("/user/tony/caffe_test/*",)
    assert says("to_hdfs", "overwrite") is True
    assert (properties.line("to_hdfs", "overwrite"), properties.line("to_hdfs", "on_failure")) == (16, 13)


def test_byte_order_mark_line_ends_comments_and_blanks_are_ignored() -> None:
    expected = parse_properties(ORIGINAL, "f")
    assert parse_properties(b"\xef\xbb\xbf" + ORIGINAL.encode(), "f") == expected
    assert parse_properties("\ufeff" + ORIGINAL, "f") == expected
    assert parse_properties(ORIGINAL.replace("\n", "\r\n").encode(), "f") == expected
    assert parse_properties(ORIGINAL.rstrip("\n"), "f") == expected
    assert parse_properties(ORIGINAL.replace("=", " \t= ").replace("\n", " \n"), "f") == expected
    assert parse_properties(ORIGINAL.replace("\n", "\n# a = b\n;[c]\n \n"), "f") == expected


def test_a_hash_or_a_semicolon_later_in_a_line_is_part_of_the_value() -> None:
    text = MINIMAL.replace("=a\n", "=a # 1; 2\n") + "user_shell_args=#1 ;2\n  #3\n  [4]\n  k=v\n"
    assert value(text, "application", "appname") == "a # 1; 2"
    assert value(text, "application", "user_shell_args") == ("#1", ";2", "#3", "[4]", "k=v")


def test_an_indented_line_continues_the_value_above_past_comments() -> None:
    text = MINIMAL + "[from_hdfs]\ninput_path=d\nhdfs=\n  /a/*\n# more\n\n\t/b c\n"
    assert value(text, "from_hdfs", "hdfs") == ("/a/*", "/b c")


def test_keys_keep_their_case_and_values_are_not_interpolated() -> None:
    text = MINIMAL + "env.Name=%(appname)s ${appname} $HOME\nenv.NAME==x=\n"
    assert value(text, "application", "env.Name") == "%(appname)s ${appname} $HOME"
    assert value(text, "application", "env.NAME") == "=x="


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("'a b'", "a b"),
        ('"a b"', "a b"),
        ("'a b' 'c d'", "'a b' 'c d'"),
        ("'a' b", "'a' b"),
        ("a 'b'", "a 'b'"),
        ('"it\'s"', "it's"),
        ("' a '", " a "),
        ("''", ""),
        ("'\"'", '"'),
    ],
)
def test_a_value_wholly_in_one_pair_of_quotes_loses_it(written: str, read: str) -> None:
    assert value(f"{MINIMAL}env.A={written}\n", "application", "env.A") == read


@pytest.mark.parametrize("name", ["'a b'", '"a b"', "a b", "tony's app"])
def test_appname_keeps_its_quotes_and_gets_none(name: str) -> None:
    assert value(MINIMAL.replace("=a\n", f"={name}\n"), "application", "appname") == name


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("'-gpu all'", ("-gpu", "all")),
        ("'a b' 'c d'", ("a b", "c d")),
        ("''", ()),
        ("", ()),
        ("\"''\"", ("",)),
        ("a ''", ("a", "")),
        ("$'a\\tb'", ("a\tb",)),
        ("'a\n  b' c", ("a\nb", "c")),
    ],
)
def test_arguments_are_split_after_the_outer_quotes_are_removed(written: str, words: tuple[str, ...]) -> None:
    assert value(f"{MINIMAL}user_shell_args={written}\n", "application", "user_shell_args") == words


def test_lists_are_separated_by_commas_and_lines() -> None:
    text = (
        MINIMAL
        + "user_dev_workspace_exclude_list=*.pyc, .git/\n  my data/,\ntags=a b,c\n[resources]\nnodes=n1, n2 n3\n"
    )
    assert value(text, "application", "user_dev_workspace_exclude_list") == ("*.pyc", ".git/", "my data/")
    assert value(text, "application", "tags") == ("a b", "c")
    assert value(text, "resources", "nodes") == ("n1", "n2", "n3")


def test_named_sections_stand_beside_the_plain_one() -> None:
    text = MINIMAL + "[from_hdfs]\nhdfs=/a\ninput_path=a\n[from_hdfs  train ]\nhdfs=/b\ninput_path=b\n"
    assert list(parse_properties(text, "f").sections) == ["application", "from_hdfs", "from_hdfs train"]


NO_SPAN = "is not a duration: a number of seconds, or numbers with d, h, m or s (30s, 2h, 1h30m)"
NO_IMAGE = "is not an image name: name, registry/name:tag or name@digest"
FAULTS: list[tuple[str, list[str]]] = [
    ("", ["f:1: application: is missing"]),
    (
        "[application]\n",
        [f"f:1: application.{key}: is missing" for key in ("appname", "user_dev_workspace_path", "user_shell_script")],
    ),
    (MINIMAL + "[aplication]\nx=1\n", ["f:5: aplication: is not a section, the nearest is application"]),
    (MINIMAL + "[Application]\n", ["f:5: Application: is not a section, the nearest is application"]),
    (MINIMAL + "[output]\n", ["f:5: output: is not a section, use [to_hdfs]"]),
    *[
        (MINIMAL + f"{key}=1\n", [f"f:5: application.{key}: is not known, {hint}"])
        for key, hint in (
            ("timeout", "use max_runtime"),
            ("time_limit", "use max_runtime"),
            ("Wall-Time", "use max_runtime"),
            ("image", "use docker_image"),
            ("cpus", "use vcores in [resources]"),
            ("gpus", "use gcores in [resources]"),
            ("memory", "use memory in [resources]"),
            ("overwrite", "use overwrite in [to_hdfs]"),
            ("max_retries", "use retries in [resources]"),
            ("output", "use the section [to_hdfs]"),
        )
    ],
    (MINIMAL + "[resources]\ncontainer=2\n", ["f:6: resources.container: is not known, the nearest is containers"]),
    (
        MINIMAL + "tags=[a, b]\nuser_dev_workspace_exclude_list=(a, b), *.{png,jpg}\n",
        [
            "f:5: application.tags: has brackets around its items, as in YAML and JSON: write a, b without brackets",
            "f:6: application.user_dev_workspace_exclude_list: has '(a, b)', whose comma separates two items",
        ],
    ),
    (MINIMAL + "container=a\n", ["f:5: application.container: is not known, use docker_image"]),
    (MINIMAL + "[resources]\ninstances=2\n", ["f:6: resources.instances: is not known, use containers"]),
    (MINIMAL + "[resources]\ntimeout=2\n", ["f:6: resources.timeout: is not known, use max_runtime in [application]"]),
    (
        MINIMAL + "[zzz]\n",
        [
            "f:5: zzz: is not a section, known are application, resources, role, service, from_hdfs, to_hdfs, "
            "checkpoint, sweep"
        ],
    ),
    (MINIMAL + "user_shell_arg=1\n", ["f:5: application.user_shell_arg: is not known, the nearest is user_shell_args"]),
    (MINIMAL + "Username=1\n", ["f:5: application.Username: is not known, the nearest is username"]),
    (MINIMAL + "env_fil=1\n", ["f:5: application.env_fil: is not known, the nearest is env_file"]),
    (MINIMAL + "appname=b\n", ["f:5: application.appname: appears twice, first in line 2"]),
    (MINIMAL + "[resources]\n[resources]\n", ["f:6: resources: appears twice, first in line 5"]),
    (
        MINIMAL + "[from_hdfs a]\nhdfs=x\ninput_path=y\n[from_hdfs a]\n",
        ["f:8: from_hdfs a: appears twice, first in line 5"],
    ),
    (MINIMAL + "[from_hdfs a b]\n", ["f:5: from_hdfs a b: needs a name of letters, digits, '_' and '-', 31 at most"]),
    (MINIMAL + "[resources x]\n", ["f:5: resources x: takes no name"]),
    (
        MINIMAL + "hang_timeout=soon\n",
        [
            "f:5: application.hang_timeout: 'soon' is not a duration: a number of seconds, or numbers with d, h, m or "
            "s (30s, 2h, 1h30m)"
        ],
    ),
    (
        MINIMAL + "view_acl=*\nmodify_acl=ann, ben\nframework=keras\n",
        [
            "f:5: application.view_acl: names everybody (*): name users and groups",
            "f:6: application.modify_acl: 'ann, ben' is not USER,USER GROUP,GROUP: one blank ends the users, and there "
            "is no other",
            "f:7: application.framework: is 'keras', allowed are none, tensorflow, pytorch, torchrun, jax, mpi, dmlc",
        ],
    ),
    (
        MINIMAL + "framework=keras\n",
        ["f:5: application.framework: is 'keras', allowed are none, tensorflow, pytorch, torchrun, jax, mpi, dmlc"],
    ),
    (MINIMAL + "[role]\n", ["f:5: role: needs a name: [role worker]"]),
    (
        MINIMAL + "[role PS]\n",
        ["f:5: role PS: 'PS' is not a name: small letters, digits, '-' and '_', 31 at most"],
    ),
    (
        MINIMAL
        + "[role ps]\ncontainers=2\nimage=x\ncpus=3\nports=200\non_failure=stop\nretires=1\nuser_shell_script=x\n",
        [
            "f:6: role ps.containers: is not known, use instances",
            "f:7: role ps.image: is not known, use docker_image",
            "f:8: role ps.cpus: is not known, use vcores",
            "f:9: role ps.ports: is 200, the maximum is 100",
            "f:10: role ps.on_failure: is 'stop', allowed are restart, restart_gang, fail",
            "f:11: role ps.retires: is not known, the nearest is retries",
            "f:12: role ps.user_shell_script: is not known, use script",
        ],
    ),
    (
        MINIMAL + "[role ps]\ndepends_on=a:up\n[role a]\ndepends_on=a b\n[role b]\ncommand=-x\n[role c]\ncommand=\n",
        [
            "f:6: role ps.depends_on: 'a:up' is neither a role nor ROLE:ready nor ROLE:done",
            "f:8: role a.depends_on: 'a b' is not a name: small letters, digits, '-' and '_', 31 at most",
            "f:10: role b.command: begins with '-x', which is an option and no program",
            "f:12: role c.command: is empty",
        ],
    ),
    (
        MINIMAL + "command=a\nsuccess=all, ps\n[resources]\ncontainers=2\n[role ps]\nscript=a\ncommand=b\n",
        [
            "f:4: application.user_shell_script: has no effect: every role has its own script or command",
            "f:5: application.command: is given, and so is user_shell_script; an application has one of them",
            "f:5: application.command: has no effect: every role has its own script or command",
            "f:6: application.success: has all, and names of roles beside it",
            "f:8: resources.containers: is not possible beside [role NAME]; set instances in the roles",
            "f:11: role ps.command: is given, and so is script; a role has one of them",
        ],
    ),
    (
        "[application]\nappname=a\n[role ps]\ncommand=b\n[role worker]\n",
        ["f:5: role worker: has neither script nor command, and [application] has no user_shell_script"],
    ),
    (
        "[application]\nappname=a\n[role ps]\nscript=b\n",
        ["f:1: application.user_dev_workspace_path: is missing"],
    ),
    (
        MINIMAL + "[resources]\ngpu_model=V100\nprefer_nodes=a\n",
        [f"f:{6 + n}: resources.{key}: is not built yet" for n, key in enumerate(("gpu_model", "prefer_nodes"))],
    ),
    (
        MINIMAL + "[resources]\ngcores=1\ngpu=2\ngpu_memory=16\ncuda_visible_devices=0,1\n",
        [
            "f:7: resources.gpu: '2' is not a kind of GPUs (whole, mig, mig:PROFILE); their number is gcores",
            "f:8: resources.gpu_memory: '16' is not the memory of a GPU: a number with g or m (40g)",
            "f:9: resources.cuda_visible_devices: is '0,1', allowed are auto, uuid, index",
        ],
    ),
    (
        MINIMAL + "[resources]\ngcores=1\ngpu=mig:7\ngpu_memory=0g\n",
        [
            "f:7: resources.gpu: 'mig:7' is not whole, mig or mig:PROFILE, with a profile of nvidia-smi: mig:1g.10gb",
            "f:8: resources.gpu_memory: is 0 MB, the minimum is 1 MB",
        ],
    ),
    (MINIMAL + "[resources]\nplacement=far\n", ["f:6: resources.placement: is 'far', allowed are pack, spread"]),
    (
        MINIMAL + "[from_hdfs]\nhdfs=a\ninput_path=b\narchive=tar\nmode=x\nshard=2\n",
        [
            "f:8: from_hdfs.archive: is 'tar', allowed are keep, unpack",
            "f:9: from_hdfs.mode: is 'x', allowed are copy, list, feed, mount",
            "f:10: from_hdfs.shard: is '2', allowed are true, false",
        ],
    ),
    (MINIMAL + "[from_hdfs]\n", ["f:5: from_hdfs.hdfs: is missing", "f:5: from_hdfs.input_path: is missing"]),
    (
        MINIMAL + "[resources]\nmemory=4x\n",
        ["f:6: resources.memory: '4x' is not an amount of memory: a number of MiB, or one with k, m, g or t (4g)"],
    ),
    (MINIMAL + "[resources]\ncontainers=-1\n", ["f:6: resources.containers: is -1, the minimum is 1"]),
    (MINIMAL + "[resources]\ncontainers=100001\n", ["f:6: resources.containers: is 100001, the maximum is 100000"]),
    (MINIMAL + "[resources]\nvcores=0\n", ["f:6: resources.vcores: is 0, the minimum is 1"]),
    (MINIMAL + "[resources]\nretries=-1\n", ["f:6: resources.retries: is -1, the minimum is 0"]),
    (MINIMAL + "[resources]\nretries=1001\n", ["f:6: resources.retries: is 1001, the maximum is 1000"]),
    (MINIMAL + "[resources]\nvcores=1.5\n", ["f:6: resources.vcores: '1.5' is not a whole number"]),
    (MINIMAL + "[resources]\ngcores=-1\n", ["f:6: resources.gcores: is -1, the minimum is 0 (or auto)"]),
    (MINIMAL + "[resources]\nnodes=a;b\n", ["f:6: resources.nodes: 'a;b' is not a node name"]),
    (
        MINIMAL + "max_runtime=soon\n",
        [f"f:5: application.max_runtime: 'soon' {NO_SPAN}"],
    ),
    (MINIMAL + "max_runtime=0\n", ["f:5: application.max_runtime: is 0 s, it must be above 0"]),
    (
        MINIMAL + "kill_grace=-1s\n",
        [f"f:5: application.kill_grace: '-1s' {NO_SPAN}"],
    ),
    (MINIMAL + "priority=high\n", ["f:5: application.priority: 'high' is not a whole number"]),
    (
        MINIMAL + "username=a b\n",
        ["f:5: application.username: 'a b' is not a user name: no spaces, '/' or ':' in it, no '-' before it"],
    ),
    (
        MINIMAL + "docker_image=--privileged\n",
        [f"f:5: application.docker_image: '--privileged' {NO_IMAGE}"],
    ),
    (
        MINIMAL + "docker_image=docker://env:1\n",
        [
            "f:5: application.docker_image: 'docker://env:1' begins with 'docker://', names of images do not: "
            "write env:1"
        ],
    ),
    (MINIMAL + "docker_image=\n", ["f:5: application.docker_image: is empty"]),
    (MINIMAL + "docker_image=''\n", ["f:5: application.docker_image: is empty"]),
    (MINIMAL + "project='x\n", ["f:5: application.project: the quote ' before 'x' does not close"]),
    (MINIMAL + "user_shell_args=it's\n", ["f:5: application.user_shell_args: the quote ' before 's' does not close"]),
    (
        MINIMAL + "project=x\n  y\n",
        ["f:5: application.project: continues in the next line, which begins with a blank; this key takes one line"],
    ),
    (MINIMAL + "env.1A=x\n", ["f:5: application.env.1A: '1A' is not the name of a variable"]),
    *[
        (MINIMAL + f"env.{name}=x\n", [f"f:5: application.env.{name}: is set by dlapp and cannot be set here"])
        for name in (
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_IMEX_CHANNELS",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "NV_GPU",
            "LD_PRELOAD",
            "DLAPP_APP_ID",
            "CONTAINER_INDEX",
            "NUM_CONTAINERS",
        )
    ],
    (
        MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=/o\noverwrite=maybe\n",
        ["f:8: to_hdfs.overwrite: is 'maybe', allowed are true, false"],
    ),
    (
        MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=/o\non_failure=delete\n",
        ["f:8: to_hdfs.on_failure: is 'delete', allowed are keep, drop"],
    ),
    (
        MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=/o\nkeep_previous=-1\n",
        ["f:8: to_hdfs.keep_previous: is -1, the minimum is 0"],
    ),
    ("x=1\n" + MINIMAL, ["f:1: 'x' is before the first [section]"]),
    ("  x=1\n" + MINIMAL, ["f:1: begins with a blank, so it would continue a value above it, but there is none"]),
    (MINIMAL + "just words\n", ["f:5: 'just words' is neither key=value nor [section] nor a comment (#)"]),
    (MINIMAL + "=value\n", ["f:5: '=value' is neither key=value nor [section] nor a comment (#)"]),
    (MINIMAL + "[resources\n", ["f:5: '[resources' is not a [section]"]),
    (MINIMAL + "[]\n", ["f:5: '[]' is not a [section]"]),
    (MINIMAL + "[ ]\n", ["f:5: '[ ]' is not a [section]"]),
    (MINIMAL + "project=a\0b\n", ["f:5: application.project: has a NUL in it"]),
    (MINIMAL + "project=a\x07b\n", ["f:5: application.project: has the control character U+0007 in it"]),
    (
        MINIMAL + "project=a\rb\n",
        ["f:5: application.project: has a carriage return inside the line; lines end with LF or CRLF"],
    ),
    (MINIMAL + "project=a\x85b\n", ["f:5: application.project: has the control character U+0085 in it"]),
    (MINIMAL + "project=\ud800\n", ["f:5: application.project: has an unpaired surrogate in it (U+D800)"]),
    (
        MINIMAL.replace("appname=a", "appname=a\x1b"),
        ["f:2: application.appname: has the control character U+001B in it"],
    ),
    (MINIMAL + "\x0c\n", ["f:5: has the control character U+000C in it"]),
]


@pytest.mark.parametrize(("text", "faults"), FAULTS)
def test_a_fault_is_named_with_file_line_section_and_key(text: str, faults: list[str]) -> None:
    assert refused(text) == faults


def test_all_errors_are_reported_in_line_order() -> None:
    text = (
        "[application]\nappnam=a\nuser_dev_workspace_path=\nuser_shell_script=s\nuser_shell_script=t\n"
        "env.NV_GPU=0\n[resources]\nmemory=1x\nnonsense\n"
    )
    assert [fault.split(": ")[:2] for fault in refused(text)] == [
        ["f:1", "application.appname"],
        ["f:2", "application.appnam"],
        ["f:3", "application.user_dev_workspace_path"],
        ["f:5", "application.user_shell_script"],
        ["f:6", "application.env.NV_GPU"],
        ["f:8", "resources.memory"],
        ["f:9", "'nonsense' is neither key=value nor [section] nor a comment (#)"],
    ]


def test_latin_1_is_one_fault_with_line_and_byte() -> None:
    text = MINIMAL.replace("=a\n", "=für alle über\n").encode("latin-1")
    assert refused(text) == ["f:2: byte 10 is 0xFC, which is not UTF-8; save the file as UTF-8"]


def test_utf_16_is_one_fault() -> None:
    assert refused(MINIMAL.encode("utf-16")) == ["f:1: byte 1 is 0xFF, which is not UTF-8; save the file as UTF-8"]


GARBAGE = {
    "random": random.Random(1).randbytes(10_000_000),
    "letters": b"x" * 10_000_000,
    "zeros": bytes(10_000_000),
}
LARGE = {
    "lines that go on": MINIMAL.encode() + b"env.A=b\n" + b" a\n" * 300_000,
    "keys": b"[application]\n" + b"".join(b"appnam%d=3\n" % n for n in range(60_000)),
    "sections": b"".join(b"[a%d]\n" % n for n in range(90_000)),
    "empty lines": b"\n" * (MAX_BYTES - 1),
    "quotes": MINIMAL.encode() + b"user_shell_args=" + b"''" * 500_000,
    "backslashes": MINIMAL.encode() + b"user_shell_args=" + b"\\" * 1_000_000,
    "open quotes": MINIMAL.encode() + b"user_shell_args=" + b"$'\\x" * 250_000,
    "control characters": b"\0\n" * 500_000,
    "one key": b"[application]\n" + b"k" * 1_000_000 + b"=1\n",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_ten_megabytes_of_garbage_are_refused_by_their_size(kind: str) -> None:
    began = time.process_time()
    assert refused(GARBAGE[kind]) == ["f:1: has more than 1 MiB; a properties file is a few lines of text"]
    assert time.process_time() - began < 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", LARGE)
def test_the_largest_files_are_read_in_no_more_than_seconds(kind: str) -> None:
    began = time.process_time()
    try:
        parse_properties(LARGE[kind], "f")
    except FileRefused as refusal:
        assert len(refusal.problems) <= 101  # noqa: PT017 - either end is right
        assert max(len(fault) for fault in refusal.problems) < 700  # noqa: PT017
    assert time.process_time() - began < 5


def test_more_than_a_hundred_faults_are_counted() -> None:
    faults = refused(MINIMAL + "x\n" * 250)
    assert (len(faults), faults[-1]) == (101, "f: 150 more errors")


def test_an_argument_above_the_limit_of_linux_is_refused() -> None:
    assert refused(f"{MINIMAL}user_shell_args=a {'b' * 131_071}\n") == [
        "f:5: application.user_shell_args: argument 2 has 131071 bytes, the maximum is 131070"
    ]


def test_only_the_values_of_variables_are_masked() -> None:
    properties = parse_properties(MINIMAL + "env.TOKEN=secret\nproject=p\n", "f").masked()
    assert "secret" not in json.dumps(properties.to_json())
    assert properties.value("application", "env.TOKEN") == "***"
    assert properties.value("application", "project") == "p"


@pytest.mark.parametrize("text", ["a\n\nb", " a", "a ", "a\n b", "a\rb", "a\0b", "a\n"])
def test_a_json_form_without_a_file_equivalent_is_refused(text: str) -> None:
    data = parse_properties(MINIMAL + "env.A=x\n", "f").to_json()
    data["sections"]["application"]["env.A"]["value"] = text
    with pytest.raises(FileRefused):
        Properties.from_json(data)


def test_a_json_form_with_an_unknown_field_is_refused() -> None:
    data = {**parse_properties(MINIMAL, "f").to_json(), "more": 1}
    with pytest.raises(SpecError, match="more: is not known"):
        Properties.from_json(data)


visible = st.characters(exclude_categories=["Cc", "Cs"])
plain = (
    st.text(visible, min_size=1).map(lambda text: text.strip(" \t")).filter(lambda text: text and text[0] not in "'\"")
)
variables = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not name.startswith(("NVIDIA_", "DLAPP_", "CUDA_", "NV_", "LD_", "CONTAINER_", "NUM_"))
)
memory = st.integers(1, 10**6).map(lambda n: f"{n}m")
counts = st.integers(1, 10**5).map(str)
paths = st.text("abc/*.-", min_size=1).map(str)


@st.composite
def properties_values(draw: st.DrawFn) -> Properties:
    """Properties as a file can say them."""

    def some(**values: st.SearchStrategy[str]) -> dict[str, Setting]:
        chosen = {key: draw(value) for key, value in values.items() if draw(st.booleans())}
        return {key: Setting(value) for key, value in chosen.items()}

    application = {key: Setting(draw(plain)) for key in ("appname", "user_dev_workspace_path", "user_shell_script")}
    tags = st.lists(plain, min_size=1).map("\n".join).filter(lambda text: not set(text) & set("[](){}"))
    application |= some(project=plain, priority=counts, tags=tags)
    application |= {f"env.{name}": Setting(draw(plain)) for name in draw(st.sets(variables, max_size=4))}
    sections = {"application": application, "resources": some(memory=memory, vcores=counts, gcores=st.just("auto"))}
    for name in draw(st.sets(st.sampled_from(["", " train", " test"]))):
        sections[f"from_hdfs{name}"] = {
            "hdfs": Setting("\n".join(draw(st.lists(paths, min_size=1)))),
            "input_path": Setting(draw(paths)),
        }
    return Properties(path="f", sections=sections)


@given(
    properties_values().filter(
        lambda item: any(c not in ", \n" for c in item.sections["application"].get("tags", Setting("x")).value)
    )
)
def test_text_form_and_json_form_parse_back_to_the_same(properties: Properties) -> None:
    assert parse_properties(properties.to_text(), "f") == properties
    assert Properties.from_json(json.loads(json.dumps(properties.to_json()))) == properties


words = [f"[{name}]" for name in SECTIONS] + [key for keys in SECTIONS.values() for key in keys]
pieces = st.sampled_from(
    [
        *words,
        "=",
        "\n",
        "\n ",
        "\r\n",
        "'",
        '"',
        "\\",
        "#",
        ";",
        "[",
        "]",
        "[]",
        "env.A",
        "1",
        "4g",
        "/a/*",
        "\0",
        "é",
        "[from_hdfs a]",
    ]
)


@settings(max_examples=some(300))
@given(st.one_of(st.binary(), st.text().map(str.encode), st.lists(pieces).map(lambda found: "".join(found).encode())))
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\xef\xbb\xbf[application]")
@example(b"[application]\n\xe2\x80\xa8=\n")
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    try:
        properties = parse_properties(MINIMAL.encode() + data if len(data) % 2 else data, "f")
    except FileRefused as refusal:
        assert refusal.problems  # noqa: PT017 - either end is right
        assert all(fault.startswith("f:") and "\n" not in fault for fault in refusal.problems)  # noqa: PT017
    else:
        assert parse_properties(properties.to_text(), "f") == properties


@given(st.text(st.characters()))
def test_any_text_is_properties_or_refused(text: str) -> None:
    try:
        parse_properties(MINIMAL + text, "f")
    except FileRefused as refusal:
        assert refusal.problems  # noqa: PT017 - either end is right


def test_the_manuals_examples_of_arguments_are_so() -> None:
    page = (Path(__file__).parents[2] / "docs" / "properties.md").read_text()
    table = page.partition("\n### user_shell_args\n")[2].partition("\nNo shell reads")[0]
    rows = re.findall(r"^\|`(.+?)` \|(`.+`)\|$", table, re.MULTILINE)
    assert len(rows) == 7
    for written, words in rows:
        keys = f"appname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\nuser_shell_args={written}\n"
        properties = parse_properties(f"[application]\n{keys}[to_hdfs]\noutput_path=output  # here\nhdfs=o\n", "f")
        assert properties.value("application", "user_shell_args") == tuple(words[1:-1].split("` `")), written
        assert properties.value("to_hdfs", "output_path") == "output  # here"
