"""Test the way between messages and values: ids, locations, and a command line that arrives as it was given."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.cluster.yarn.am.node_manager import STOPPED_BEFORE
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.launch_script import shell_command
from dlapp.cluster.yarn.messages import (
    AM_RESYNC,
    AM_SHUTDOWN,
    CONTAINER_COMPLETE,
    CONTAINER_NEW,
    CONTAINER_RUNNING,
    CONTAINER_SCHEDULED,
    NODE_DECOMMISSIONED,
    NODE_DECOMMISSIONING,
    NODE_RUNNING,
    allocate,
    encode_container_id,
    encode_launch,
    encode_request,
    encode_url,
    parse_allocation,
    parse_cluster_nodes,
    parse_container_id,
    parse_granted,
    parse_is_finished,
    parse_lifetime_left_s,
    parse_node_report,
    parse_registration,
    parse_resources,
    parse_started,
    parse_status,
    parse_statuses,
    parse_stopped,
    start_containers,
)
from dlapp.cluster.yarn.values import (
    ContainerStage,
    ContainerStatus,
    Granted,
    Launch,
    NodeId,
    NodeReport,
    Registration,
    ResourceRequest,
)
from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.wire import Fields, encode
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import MAX_AMOUNT, Resources
from tests.cluster.yarn import server_messages

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
    assert parse_container_id(wire) == one
    assert encode_container_id(one) == wire
    assert Fields(wire).number(3) == 18691698906759


@given(IDS)
def test_every_container_id_survives(one: ContainerId) -> None:
    assert parse_container_id(encode_container_id(one)) == one


def test_a_location_is_converted_in_decoded_parts() -> None:
    parsed = Fields(encode_url("hdfs://user@nn1:8020/a/b%20c#frag"))
    assert [parsed.text(1), parsed.text(2), parsed.signed(3), parsed.text(4), parsed.text(5)] == [
        *("hdfs", "nn1", 8020, "/a/b c", "user")
    ]
    assert Fields(encode_url("hdfs://service/x")).signed(3) == -1


def test_a_row_carries_its_count_and_its_role() -> None:
    row = ResourceRequest(
        priority=2,
        request_id=1,
        name="*",
        count=3,
        resources=Resources(memory_mib=256, vcores=1, gcores=1),
        relax=False,
    )
    parsed = Fields(encode_request(row, Dialect.GCORES))
    assert (parsed.message(1).number(1), parsed.number(8), parsed.number(4), parsed.number(5)) == (2, 1, 3, 0)
    assert not parsed.has(6)


def test_a_negative_count_never_leaves_the_house() -> None:
    with pytest.raises(ValueError, match="-1 containers wanted"):
        ResourceRequest(priority=1, request_id=0, name="*", count=-1, resources=Resources())


def test_a_state_that_a_newer_hadoop_has_is_not_the_end() -> None:
    assert parse_status(b"\x10\x63\x20\x05").stage is ContainerStage.RUNNING
    assert parse_status(encode((2, -1))).stage is ContainerStage.RUNNING
    assert parse_status(encode((2, CONTAINER_COMPLETE))).exit_status == -1000


@pytest.mark.parametrize(
    ("state", "substate", "stage"),
    [
        (CONTAINER_RUNNING, None, ContainerStage.RUNNING),  # as Hadoop 2 has it
        (CONTAINER_NEW, None, ContainerStage.PREPARING),
        (CONTAINER_RUNNING, CONTAINER_SCHEDULED, ContainerStage.PREPARING),
        (CONTAINER_RUNNING, 2, ContainerStage.RUNNING),  # RUNNING
        (CONTAINER_RUNNING, 3, ContainerStage.RUNNING),  # PAUSED
        (CONTAINER_COMPLETE, 5, ContainerStage.ENDED),  # DONE
        (None, None, ContainerStage.RUNNING),
    ],
)
def test_a_localizing_container_is_distinguished_from_a_running_one(
    state: int | None, substate: int | None, stage: ContainerStage
) -> None:
    assert parse_status(encode((2, state), (8, substate))).stage is stage


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
        (NODE_RUNNING, None, (True, None, False)),
        (NODE_DECOMMISSIONING, 25, (False, 25.0, False)),
        (NODE_DECOMMISSIONING, None, (False, math.inf, False)),  # Hadoop before 3.2
        (NODE_DECOMMISSIONED, None, (False, None, True)),
        (server_messages.NODE_LOST, None, (False, None, False)),
    ],
)
def test_a_decommissioned_node_has_the_remaining_time_of_its_containers(
    state: int, timeout: int | None, expected: tuple[bool, float | None, bool]
) -> None:
    node = parse_node_report(encode((7, state), (13, timeout)), Dialect.GCORES)
    assert (node.usable, node.leaves_in_s, node.is_removed) == expected


def test_no_limit_of_a_decommission_is_read_as_hadoop_writes_it() -> None:
    unlimited = b"\x38\x07\x68\xff\xff\xff\xff\x0f"  # the state, and uint32 -1 in five bytes
    assert parse_node_report(unlimited, Dialect.GCORES).leaves_in_s == math.inf


def test_every_word_arrives_unchanged() -> None:
    done = as_nodemanager(shell_command((sys.executable, "-c", SHOW, *HARD)), {})
    assert json.loads(done.stdout)[0] == HARD, done.stderr


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(WORDS, max_size=4), WORDS)
def test_words_and_variables_arrive_as_they_were_given(words: list[str], word: str) -> None:
    parsed = Fields(encode_launch(Launch(command=(sys.executable, "-c", SHOW, *words), environment={"WORD": word})))
    environment = [Fields(item) for item in parsed.all_data(4)]
    done = as_nodemanager(parsed.text(5), {item.text(1): item.text(2) for item in environment})
    assert json.loads(done.stdout) == [words, word], done.stderr


@pytest.mark.parametrize("word", ["{{X}}", "}}", "a\0b", "a<CPS>b"])
def test_a_command_that_a_nodemanager_would_expand_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="cannot pass"):
        shell_command((word,))


# ---- messages of a real ResourceManager and NodeManager, 3.4.2 ----

RECORDED: Mapping[str, str] = json.loads((Path(__file__).parent / "recorded" / "messages-3.4.2.json").read_text())
"""Call -> answer in hex digits."""
MASTER = ApplicationId(1795961781762, 1)
NODE, OTHER_NODE = NodeId("127.0.1.2", 30848), NodeId("127.0.1.1", 30848)
LARGEST = Resources(memory_mib=4096, vcores=8, gcores=4)


def recorded(call: str) -> Fields:
    return Fields(bytes.fromhex(RECORDED[call]))


def test_a_registration_with_hadoop_3_is_decoded() -> None:
    """Decode the answer of a cluster with at most 4096 MiB, 8 vcores and 4 gcores for a container."""
    found = parse_registration(recorded("registerApplicationMaster"), Dialect.GCORES)
    assert found == (Registration(largest=LARGEST), {})


def test_a_heartbeat_of_hadoop_3_is_decoded_with_the_unchanged_container_token() -> None:
    """Decode an answer with one container and the token of its node; start the container."""
    answer = recorded("allocate")
    found = parse_allocation(answer, Dialect.GCORES)
    assert (found.response_id, found.command, found.am_rm_token, found.allocation.node_count) == (11, 0, None, 2)
    ((node, token),) = found.node_tokens.items()
    assert (node, token.kind, token.service) == (NODE, "NMToken", str(NODE))
    assert (len(token.identifier), len(token.password)) == (44, 20)
    container_token = Fields(answer.all_data(3)[0]).data(6)
    assert len(container_token) == 202
    (granted,) = found.allocation.granted
    assert granted == Granted(
        container_id=ContainerId(MASTER, 1, 6),
        node=NODE,
        web="127.0.1.2:23648",
        resources=Resources(memory_mib=512, vcores=2, gcores=2),
        priority=2,
        request_id=2,
        token=container_token,
    )
    request = Fields(start_containers([(granted, Launch(command=("true",)))])).message(1)
    assert request.data(2) == container_token


def test_the_end_of_a_container_of_hadoop_3_is_decoded() -> None:
    """Decode an answer with the status of a released container, -100."""
    assert parse_allocation(recorded("allocate with an end"), Dialect.GCORES).allocation.ended == (
        ContainerStatus(
            container_id=ContainerId(ApplicationId(MASTER.cluster_timestamp_ms, 6), 1, 2),
            stage=ContainerStage.ENDED,
            exit_status=-100,
            diagnostics="Container released by application",
        ),
    )


def test_nodes_of_hadoop_3_are_decoded() -> None:
    """Decode the reports of two running nodes with 4096 MiB, 8 vcores and 4 gcores each."""
    found = parse_cluster_nodes(recorded("getClusterNodes"), Dialect.GCORES)
    node = NodeReport(node=NODE, rack="/default-rack", usable=True, capability=LARGEST)
    assert sorted(found, key=lambda item: item.node) == [replace(node, node=OTHER_NODE), node]


def test_answers_of_a_node_of_hadoop_3_are_decoded() -> None:
    """Decode the start of container 6, the stop of container 4, the status of 6, and the exception about 6 later."""
    fourth, sixth = ContainerId(MASTER, 1, 4), ContainerId(MASTER, 1, 6)
    assert parse_started(recorded("startContainers")) == (frozenset({sixth}), ())
    assert parse_stopped(recorded("stopContainers")) == (frozenset({fourth}), ())
    status = ContainerStatus(container_id=sixth, stage=ContainerStage.RUNNING, exit_status=-1000)
    assert parse_statuses(recorded("getContainerStatuses")) == ((status,), ())
    (failure,) = parse_statuses(recorded("getContainerStatuses of a stopped container")).failures
    assert (failure.container_id.number, failure.java_class) == (6, "org.apache.hadoop.yarn.exceptions.YarnException")
    assert STOPPED_BEFORE in failure.message
    assert parse_is_finished(recorded("finishApplicationMaster"))


def test_unknown_fields_of_a_token_are_passed_on() -> None:
    """Add a field 900 of 3 bytes to a container's token."""
    token = Fields(recorded("allocate").all_data(3)[0]).data(6) + encode((900, b"new"))
    granted = parse_granted(encode((6, token)), Dialect.GCORES)
    assert granted.token == token


def test_an_amount_without_a_maximum_counts_as_the_maximum_of_dlapp() -> None:
    """A ResourceManager without a maximum for gcores reports 2^63 - 1 of them."""
    wire = server_messages.resource((1 << 63) - 1, 8, [("gcores", (1 << 63) - 1)])
    found = parse_registration(Fields(server_messages.registration(wire)), Dialect.GCORES)
    assert found.registration.largest == Resources(memory_mib=MAX_AMOUNT, vcores=8, gcores=MAX_AMOUNT)
    negative = server_messages.resource(-1, -1, [("gcores", -1)])
    assert parse_resources(negative, Dialect.GCORES) == Resources(memory_mib=1, vcores=1)


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_token_that_lacks_a_field_is_refused(missing: int) -> None:
    """Leave out identifier, password, kind or service of a container's token."""
    token = encode(*((field, b"x") for field in (1, 2, 3, 4) if field != missing))
    with pytest.raises(NotHadoop, match=f"lacks field {missing}"):
        parse_granted(encode((6, token)), Dialect.GCORES)


def test_an_answer_cut_at_any_byte_is_refused_or_has_fewer_fields() -> None:
    """Cut the recorded heartbeat at each of its bytes; at least two of three cuts are inside a field."""
    answer, refused = bytes.fromhex(RECORDED["allocate"]), 0
    for end in range(len(answer)):
        try:
            parse_allocation(Fields(answer[:end]), Dialect.GCORES)
        except NotHadoop:
            refused += 1
    assert refused > len(answer) * 2 // 3


def test_commands_and_limits_of_an_application_master_are_decoded() -> None:
    """Decode the commands 1, 2 and 99, an end that is recorded, and the timeouts -1, 70 and 50 s of an application."""
    for command in (AM_RESYNC, AM_SHUTDOWN, 99):
        assert parse_allocation(Fields(encode((1, command))), Dialect.NONE).command == command
    assert [parse_is_finished(Fields(item)) for item in (server_messages.FINISHED, b"\x08\x00", b"")] == [
        True,
        False,
        False,
    ]
    timeouts = [encode((1, 1), (2, encode((1, 1), (3, left)))) for left in (-1, 70, 50)]
    report = encode(*((26, timeout) for timeout in timeouts))
    assert parse_lifetime_left_s(Fields(encode((1, report)))) == 50.0
    assert parse_lifetime_left_s(Fields(encode((1, encode((26, timeouts[0])))))) == math.inf


def test_a_heartbeat_is_hadoops_byte_for_byte() -> None:
    """Encode what Hadoop 3.4.2 was sent: a row for 3 containers after the answer 2^7, and one without changes."""
    size = Resources(memory_mib=256, vcores=2, gcores=1)
    row = ResourceRequest(priority=1, request_id=1, name="*", count=3, resources=size, relax=False)
    released = ContainerId(MASTER, 1, 6)
    request = allocate([row], [released], Dialect.GCORES, avoid=["a"], no_longer_avoid=["b"], progress=0.5)
    assert request.encode(128) == bytes.fromhex(
        "0a20 0a020801 12012a 1a11088002 1002 1a0a0a0667636f7265731001 2003 2800 4001"
        "1211 120d0a0908011082fca7bda23410011806 1a06 0a0161 120162 208001 2d0000003f"
    )
    quiet = allocate([], [], Dialect.GCORES, progress=0.0)
    assert (quiet.changes, quiet.encode(0)) == (b"", bytes.fromhex("2000 2d00000000"))
