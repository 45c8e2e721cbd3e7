"""Test the way between messages and values: ids, locations, and a command line that arrives as it was given."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.cluster.yarn.convert import (
    container_id_from_proto,
    container_id_to_proto,
    launch_to_proto,
    node_report_from_proto,
    row_to_proto,
    status_from_proto,
    url_to_proto,
)
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.launch_script import shell_command
from dlapp.cluster.yarn.proto import yarn_pb2 as pb
from dlapp.cluster.yarn.values import ContainerStage, Launch, ResourceRequest
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import Resources

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20).filter(
    lambda word: "{{" not in word and "}}" not in word and "<" not in word
)
IDS = st.builds(
    ContainerId,
    st.builds(ApplicationId, st.integers(0, 2**62), st.integers(0, 2**31 - 1)),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**40 - 1),
    st.integers(0, 2**22),
)


def test_a_container_id_is_hadoops_byte_for_byte() -> None:
    one = ContainerId.from_text("container_e17_1700000000000_12345_07_1234567")
    wire = bytes.fromhex("120e 0a0a 08b960 1080d095ffbc31 1007 1887adcb8080a004")
    assert container_id_from_proto(pb.ContainerIdProto.FromString(wire)) == one
    assert container_id_from_proto(container_id_to_proto(one)) == one
    assert container_id_to_proto(one).id == 18691698906759


@given(IDS)
def test_every_container_id_survives(one: ContainerId) -> None:
    assert (
        container_id_from_proto(pb.ContainerIdProto.FromString(container_id_to_proto(one).SerializeToString())) == one
    )


def test_a_location_goes_over_in_parts_and_decoded() -> None:
    message = url_to_proto("hdfs://user@nn1:8020/a/b%20c#frag")
    parts = (message.scheme, message.host, message.port, message.file, message.userInfo)
    assert parts == ("hdfs", "nn1", 8020, "/a/b c", "user")
    assert url_to_proto("hdfs://service/x").port == -1


def test_a_row_carries_its_count_and_its_role() -> None:
    row = ResourceRequest(
        priority=2,
        request_id=1,
        name="*",
        count=3,
        resources=Resources(memory_mib=256, vcores=1, gcores=1),
        relax=False,
    )
    message = row_to_proto(row, Dialect.GCORES)
    assert (message.priority.priority, message.allocation_request_id, message.num_containers) == (2, 1, 3)
    assert message.HasField("relax_locality")
    assert not message.relax_locality
    assert not message.HasField("node_label_expression")


def test_a_negative_count_never_leaves_the_house() -> None:
    with pytest.raises(ValueError, match="-1 containers wanted"):
        ResourceRequest(priority=1, request_id=0, name="*", count=-1, resources=Resources())


def test_a_state_that_a_newer_hadoop_has_is_not_the_end() -> None:
    message = pb.ContainerStatusProto.FromString(b"\x10\x63\x20\x05")
    assert status_from_proto(message).stage is ContainerStage.RUNNING
    assert status_from_proto(pb.ContainerStatusProto(state=pb.C_COMPLETE)).exit_status == -1000


@pytest.mark.parametrize(
    ("message", "stage"),
    [
        (pb.ContainerStatusProto(state=pb.C_RUNNING), ContainerStage.RUNNING),  # as Hadoop 2 has it
        (pb.ContainerStatusProto(state=pb.C_NEW), ContainerStage.PREPARING),
        (pb.ContainerStatusProto(state=pb.C_RUNNING, container_sub_state=pb.CSS_SCHEDULED), ContainerStage.PREPARING),
        (pb.ContainerStatusProto(state=pb.C_RUNNING, container_sub_state=pb.CSS_RUNNING), ContainerStage.RUNNING),
        (pb.ContainerStatusProto(state=pb.C_RUNNING, container_sub_state=pb.CSS_PAUSED), ContainerStage.RUNNING),
        (pb.ContainerStatusProto(state=pb.C_COMPLETE, container_sub_state=pb.CSS_DONE), ContainerStage.ENDED),
        (pb.ContainerStatusProto(), ContainerStage.RUNNING),
    ],
)
def test_a_localizing_container_is_distinguished_from_a_running_one(
    message: pb.ContainerStatusProto, stage: ContainerStage
) -> None:
    assert status_from_proto(message).stage is stage


def as_nodemanager(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run what a NodeManager's script would, with its replacements and quotes."""
    lines = [f'export {name}="{value}"' for name, value in environment.items()]
    script = "\n".join([*lines, f'exec /bin/bash -c "{command}"'])
    script = script.replace("1><LOG_DIR>/stdout 2><LOG_DIR>/stderr", "").replace("{{", "$").replace("}}", "")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


SHOW = "import json,os,sys; print(json.dumps([sys.argv[1:], os.environ.get('WORD')]))"
HARD = [
    "a b",
    "  ",
    "",
    "'",
    '"',
    "$HOME",
    "`id`",
    "\\",
    "a\\",
    "\n",
    "!",
    "한국어",
    "*",
    "~",
    "#",
    ";&|<x",
    "-",
    "%",
    "\t",
]


@pytest.mark.parametrize(
    ("state", "timeout", "expected"),
    [
        (pb.NS_RUNNING, None, (True, None, False)),
        (pb.NS_DECOMMISSIONING, 25, (False, 25.0, False)),
        (pb.NS_DECOMMISSIONING, None, (False, math.inf, False)),  # Hadoop before 3.2
        (pb.NS_DECOMMISSIONED, None, (False, None, True)),
        (pb.NS_LOST, None, (False, None, False)),
    ],
)
def test_a_node_that_is_decommissioned_says_how_long_its_containers_may_run(
    state: pb.NodeStateProto, timeout: int | None, expected: tuple[bool, float | None, bool]
) -> None:
    message = pb.NodeReportProto(node_state=state, decommissioning_timeout=timeout)
    node = node_report_from_proto(message, Dialect.GCORES)
    assert (node.usable, node.leaves_in_s, node.is_removed) == expected


def test_no_limit_of_a_decommission_is_read_as_hadoop_writes_it() -> None:
    unlimited = b"\x38\x07\x68\xff\xff\xff\xff\x0f"  # the state, and uint32 -1 in five bytes
    message = pb.NodeReportProto.FromString(unlimited)
    assert node_report_from_proto(message, Dialect.GCORES).leaves_in_s == math.inf


def test_every_word_arrives_as_it_was_given() -> None:
    done = as_nodemanager(shell_command((sys.executable, "-c", SHOW, *HARD)), {})
    assert json.loads(done.stdout)[0] == HARD, done.stderr


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(WORDS, max_size=4), WORDS)
def test_words_and_variables_arrive_as_they_were_given(words: list[str], word: str) -> None:
    message = launch_to_proto(Launch(command=(sys.executable, "-c", SHOW, *words), environment={"WORD": word}))
    done = as_nodemanager(message.command[0], {one.key: one.value for one in message.environment})
    assert json.loads(done.stdout) == [words, word], done.stderr


@pytest.mark.parametrize("word", ["{{X}}", "}}", "a\0b", "a<CPS>b"])
def test_a_command_that_a_nodemanager_would_expand_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="cannot pass"):
        shell_command((word,))
