"""Calls of ClientProtocol on attributes of files and directories, as values: access control lists, policies, quotas,
snapshots and extended attributes.

An entry of an access control list is a text, as in WebHDFS: ``user:ann:r--``, ``default:group::r-x``.

Source: acl.proto, erasurecoding.proto, xattr.proto, hdfs.proto and ClientNamenodeProtocol.proto of Hadoop 2.7 to 3.4;
answers of 3.4.2.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.hadoop.hdfs.client_protocol import Call, parse_status
from dlapp.hadoop.wire import Fields, encode

_DEFAULT = "default:"
_KINDS = ("user", "group", "mask", "other")
"""Kinds of entries of an access control list, by their number in AclEntryProto."""
_RIGHTS = "rwx"
_USER = "user."
"""Prefix of the only namespace of extended attributes that dlapp uses; its number in XAttrProto is 0."""
_CREATE_OR_REPLACE = 3
_NO_QUOTA = (1 << 64) - 1
"""The quota -1, as it is sent."""


# ---- access control lists ----


def get_acl(path: str) -> Call:
    """Request the access control list."""
    return Call("getAclStatus", encode((1, path)))


def set_acl(path: str, entries: Iterable[str]) -> Call:
    """Replace the access control list by ``entries``."""
    return Call("setAcl", encode((1, path), *((2, _encode_entry(one)) for one in entries)))


def _encode_entry(text: str) -> bytes:
    kind, _, rest = text.removeprefix(_DEFAULT).partition(":")
    name, _, rights = rest.rpartition(":")
    allowed = sum(4 >> place for place, right in enumerate(_RIGHTS) if right in rights)
    return encode((1, _KINDS.index(kind)), (2, text.startswith(_DEFAULT)), (3, allowed), (4, name or None))


def parse_acl(answer: Fields) -> list[str]:
    """Return the entries in an answer to `get_acl`, which lack those that the permissions stand for.

    Raises:
        NotHadoop: the answer is invalid; so do the others.
    """
    return [_parse_entry(Fields(one)) for one in answer.message(1).all_data(4)]


def _parse_entry(said: Fields) -> str:
    kind, allowed = _KINDS[said.number(1, below=len(_KINDS))], said.number(3, below=8)
    rights = "".join(right if allowed & 4 >> place else "-" for place, right in enumerate(_RIGHTS))
    return f"{_DEFAULT * said.number(2, below=2)}{kind}:{said.text(4, '')}:{rights}"


# ---- policies, owners, replicas ----


def get_storage_policy(path: str) -> Call:
    """Request the effective storage policy."""
    return Call("getStoragePolicy", encode((1, path)))


def parse_storage_policy(answer: Fields) -> str:
    """Return the name of the policy in an answer to `get_storage_policy`."""
    return answer.message(1).text(2)


def set_storage_policy(path: str, name: str) -> Call:
    """Set the storage policy."""
    return Call("setStoragePolicy", encode((1, path), (2, name)))


def set_ec_policy(path: str, name: str) -> Call:
    """Set the erasure coding policy of a directory."""
    return Call("setErasureCodingPolicy", encode((1, path), (2, name)))


def set_group(path: str, group: str) -> Call:
    """Set the group; the owner stays."""
    return Call("setOwner", encode((1, path), (3, group)))


def set_replication(path: str, count: int) -> Call:
    """Set the number of replicas of a file."""
    return Call("setReplication", encode((1, path), (2, count)))


# ---- quotas and snapshots ----


def get_quota_usage(path: str) -> Call:
    """Request the quotas of a directory and their use; old NameNodes do not know the call."""
    return Call("getQuotaUsage", encode((1, path)))


def parse_quota_usage(answer: Fields) -> bool:
    """Return whether the directory of an answer to `get_quota_usage` has a quota, of names, space or a storage type."""
    return _has_quota(answer.message(1), 2, 4, 5)


def get_content_summary(path: str) -> Call:
    """Request the quotas of a directory, and the total of its content, which takes the NameNode longer."""
    return Call("getContentSummary", encode((1, path)))


def parse_content_summary(answer: Fields) -> bool:
    """Return the same as `parse_quota_usage`, from an answer to `get_content_summary`."""
    return _has_quota(answer.message(1), 4, 6, 7)


def _has_quota(said: Fields, names: int, space: int, types: int) -> bool:
    of_types = said.message(types).all_data(1) if said.has(types) else []
    quotas = [said.number(one, below=1 << 64) for one in (names, space)]
    quotas += [Fields(one).number(2, below=1 << 64) for one in of_types]
    return any(one != _NO_QUOTA for one in quotas)


GET_SNAPSHOTTABLE = Call("getSnapshottableDirListing", b"")
"""Request of the directories that can have snapshots: all for a superuser, else the user's own."""


def parse_snapshottable(answer: Fields) -> list[str]:
    """Return the paths of the directories that have snapshots in an answer to `GET_SNAPSHOTTABLE`."""
    listed = answer.message(1).all_data(1) if answer.has(1) else []
    return [
        f"{said.text(4).rstrip('/')}/{parse_status(said.data(1), {}).name}"
        for said in map(Fields, listed)
        if said.number(3, below=1 << 32)
    ]


# ---- extended attributes ----


def set_attribute(path: str, name: str, value: bytes) -> Call:
    """Set an extended attribute ``user.NAME``."""
    attribute = encode((1, 0), (2, name.removeprefix(_USER)), (3, value))
    return Call("setXAttr", encode((1, path), (2, attribute), (3, _CREATE_OR_REPLACE)))


def get_attributes(path: str) -> Call:
    """Request all extended attributes that the user may read; the NameNode refuses a request of a missing one."""
    return Call("getXAttrs", encode((1, path)))


def parse_attributes(answer: Fields) -> dict[str, bytes]:
    """Return the extended attributes ``user.NAME`` in an answer to `get_attributes`."""
    found = map(Fields, answer.all_data(1))
    return {_USER + one.text(2): one.data(3, b"") for one in found if not one.number(1, below=1 << 8)}
