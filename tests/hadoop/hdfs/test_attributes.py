"""Messages of attributes of files: what is written is what the protocol says, and what no server sends is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.hdfs import attributes
from dlapp.hadoop.wire import Fields, encode
from tests.hadoop.hdfs.test_messages import status

NO_QUOTA = (1 << 64) - 1
ENTRIES = [
    "user::rwx",
    "user:ann:r-x",
    "group::--x",
    "group:a:b:-w-",
    "mask::r--",
    "other::---",
    "default:user:ann:rw-",
]


def acl(*entries: bytes) -> Fields:
    """An answer to getAclStatus."""
    return Fields(encode((1, encode((1, "tony"), (2, "users"), (3, 0), *((4, entry) for entry in entries)))))


def test_an_access_control_list_is_written_by_the_numbers_of_its_protocol() -> None:
    call = attributes.set_acl("/x", ["user::rwx", "default:group:team:r-x"])
    first = encode((1, 0), (2, 0), (3, 7))
    second = encode((1, 1), (2, 1), (3, 5), (4, "team"))
    assert call == ("setAcl", encode((1, "/x"), (2, first), (2, second)), None)


def test_an_access_control_list_that_is_written_is_read_the_same() -> None:
    written = Fields(attributes.set_acl("/x", ENTRIES).request).all_data(2)
    assert attributes.parse_acl(acl(*written)) == ENTRIES


@pytest.mark.parametrize(("quotas", "found"), [((), False), ((NO_QUOTA, 5), True), ((0,), True), ((NO_QUOTA,), False)])
def test_a_quota_of_a_storage_type_counts_where_it_is_set(quotas: tuple[int, ...], found: bool) -> None:
    types = encode(*((1, encode((1, 1), (2, quota), (3, 0))) for quota in quotas))
    usage = encode((1, encode((1, 9), (2, NO_QUOTA), (3, 9), (4, NO_QUOTA), (5, types))))
    assert attributes.parse_quota_usage(Fields(usage)) is found
    summary = encode((1, encode((1, 9), (2, 9), (3, 9), (4, NO_QUOTA), (5, 9), (6, NO_QUOTA), (7, types))))
    assert attributes.parse_content_summary(Fields(summary)) is found


@pytest.mark.parametrize("set_field", [2, 4])
def test_a_quota_of_names_or_of_space_counts(set_field: int) -> None:
    fields = {1: 0, 2: NO_QUOTA, 3: 0, 4: NO_QUOTA} | {set_field: 0}
    assert attributes.parse_quota_usage(Fields(encode((1, encode(*fields.items())))))


def test_a_directory_that_has_no_snapshot_yet_is_not_among_those_that_have() -> None:
    def one(name: str, above: str, count: int) -> bytes:
        return encode((1, status(name, f1=1, f12=None)), (2, 65536), (3, count), (4, above))

    listed = encode(*((1, entry) for entry in (one("a", "/", 1), one("b", "/x/y", 2), one("c", "/x", 0))))
    assert attributes.parse_snapshottable(Fields(encode((1, listed)))) == ["/a", "/x/y/b"]
    assert attributes.parse_snapshottable(Fields(b"")) == []


def test_only_attributes_of_users_are_read() -> None:
    found = [
        encode((1, 0), (2, "dlapp"), (3, b"\0a")),
        encode((1, 1), (2, "dlapp"), (3, b"b")),
        encode((1, 0), (2, "e")),
    ]
    answer = Fields(encode(*((1, item) for item in found)))
    assert attributes.parse_attributes(answer) == {"user.dlapp": b"\0a", "user.e": b""}


@pytest.mark.parametrize(
    ("parse", "answer"),
    [
        (attributes.parse_acl, b""),
        (attributes.parse_acl, encode((1, encode((4, 7))))),
        (attributes.parse_acl, encode((1, encode((4, encode((1, 4), (2, 0), (3, 7))))))),  # no kind of entry
        (attributes.parse_acl, encode((1, encode((4, encode((1, 0), (2, 2), (3, 7))))))),  # no scope
        (attributes.parse_acl, encode((1, encode((4, encode((1, 0), (2, 0), (3, 8))))))),  # no rights
        (attributes.parse_acl, encode((1, encode((4, encode((1, 0), (2, 0), (3, 7), (4, b"\xff"))))))),
        (attributes.parse_storage_policy, encode((1, encode((1, 7))))),
        (attributes.parse_quota_usage, encode((1, encode((2, 5))))),
        (attributes.parse_content_summary, encode((1, encode((4, b"x"), (6, 5))))),
        (attributes.parse_snapshottable, encode((1, encode((1, encode((3, 1), (4, "/"))))))),
        (attributes.parse_attributes, encode((1, encode((1, 0))))),
    ],
)
def test_an_answer_that_no_namenode_sends_is_refused(parse: Callable[[Fields], object], answer: bytes) -> None:
    with pytest.raises(NotHadoop):
        parse(Fields(answer))
