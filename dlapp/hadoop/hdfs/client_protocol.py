"""Calls of the NameNode's ClientProtocol, as values: encoded requests and decoded answers.

An answer is validated completely before any of it is used: the NameNode's port may belong to any server.

Source: ClientNamenodeProtocol.proto, hdfs.proto and PBHelperClient of Hadoop 2.7 to 3.4; answers of 3.4.2.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.wire import Fields, encode

PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
MAX_LENGTH = 1 << 50
"""Larger than any file [bytes]."""
MAX_BLOCK_BYTES = 1 << 42
MAX_NODES = 512
"""Maximum number of DataNodes of one block; ``dfs.replication.max`` is 512."""
_MAX_KEPT = 4096
_MAX_DATA_BLOCKS = 16
"""Maximum number of blocks of a group; the low bits of the group's id are the block's index. Source:
HdfsServerConstants.MAX_BLOCKS_IN_GROUP."""
_IP = re.compile(r"[0-9A-Fa-f.:]{2,45}")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
_CREATE = 1
_ACL, _ENCRYPTED, _STRIPED = 1, 2, 4
"""Flags of a status; before 3.0 they are the bits 12 to 14 of its permissions."""
_BUILT_IN_POLICIES: Mapping[int, str] = {
    1: "RS-6-3-1024k",
    2: "RS-3-2-1024k",
    3: "RS-LEGACY-6-3-1024k",
    4: "XOR-2-1-1024k",
    5: "RS-10-4-1024k",
}
"""Erasure coding policies that the NameNode sends by id only. Source: SystemErasureCodingPolicies."""
DIRECTORY, FILE, SYMLINK = 1, 2, 3
ACTIVE, OBSERVER = 1, 3
"""States of a NameNode. Source: HAServiceProtocol.proto, HAServiceStateProto."""


class Call(NamedTuple):
    """RPC call: its method and its message; ``protocol``: None for the ClientProtocol."""

    method: str
    request: bytes
    protocol: str | None = None


class HdfsBlock(NamedTuple):
    """Block of a file: pool, number, generation and length."""

    pool: str
    block_id: int
    generation: int
    size_bytes: int

    def encode(self) -> bytes:
        """Return it as an ExtendedBlockProto."""
        return encode((1, self.pool), (2, self.block_id), (3, self.generation), (4, self.size_bytes))


class DataNode(NamedTuple):
    """DataNode: its transfer address, and all that the NameNode reports about it, as a DatanodeInfoProto.

    Args:
        host: its IP address.
        hostname: the name that it has registered with; empty: not reported, or not a host name.
    """

    host: str
    port: int
    info: bytes
    hostname: str = ""

    @property
    def name(self) -> str:
        """Return its address as text."""
        return f"{self.host}:{self.port}"


class Striping(NamedTuple):
    """Layout of the content of an erasure coded file in groups of blocks: cell after cell, block after block.

    Args:
        data_blocks: data blocks of a group.
        cell_bytes: size of a cell [bytes].
    """

    data_blocks: int
    cell_bytes: int

    def size_in(self, index: int, group_bytes: int) -> int:
        """Return the length of one block of a group, from the length of the group's content."""
        whole, rest = divmod(group_bytes, self.data_blocks * self.cell_bytes)
        return whole * self.cell_bytes + min(max(rest - index * self.cell_bytes, 0), self.cell_bytes)


class LocatedBlock(NamedTuple):
    """Block with the DataNodes that have it, or are to get it.

    Args:
        block: block of the file.
        offset: the offset of its first byte in the file.
        nodes: the DataNodes.
        token: token for the DataNodes, a TokenProto; passed on unchanged.
        storage_types: storage type of each DataNode, by number.
        is_striped: it is a block group of an erasure coded file.
        indices, tokens: for a group: for each DataNode the index of its block, and the token for it.
    """

    block: HdfsBlock
    offset: int
    nodes: tuple[DataNode, ...]
    token: bytes
    storage_types: tuple[int, ...] = ()
    is_striped: bool = False
    indices: bytes = b""
    tokens: tuple[bytes, ...] = ()

    def of_group(self, index: int, striping: Striping) -> LocatedBlock | None:
        """Return one block of a group, with offset 0; None: no DataNode has it."""
        place = self.indices.find(index)
        if not 0 <= place < len(self.nodes):
            return None
        size = striping.size_in(index, self.block.size_bytes)
        block = self.block._replace(block_id=self.block.block_id + index, size_bytes=size)
        token = self.tokens[place] if place < len(self.tokens) else self.token
        return LocatedBlock(block, 0, (self.nodes[place],), token)

    @property
    def end(self) -> int:
        """Return the offset after its last byte."""
        return self.offset + self.block.size_bytes

    @property
    def has_token(self) -> bool:
        """Return True if the token is not empty."""
        return bool(Fields(self.token).data(1, b""))

    def encode(self, node: DataNode) -> bytes:
        """Return it as a LocatedBlockProto with one DataNode."""
        return encode((1, self.block.encode()), (2, self.offset), (3, node.info), (4, 0), (5, self.token))


class FileBlocks(NamedTuple):
    """Blocks of a range of a file.

    Args:
        is_plain: the file is neither encrypted nor erasure coded.
        striping: layout of an erasure coded file, if it is not encrypted and the policy is known.
    """

    size_bytes: int
    blocks: tuple[LocatedBlock, ...]
    is_plain: bool
    striping: Striping | None = None

    def at(self, offset: int) -> LocatedBlock | None:
        """Return the block that contains an offset of the file."""
        return next((one for one in self.blocks if one.offset <= offset < one.end), None)


class Status(NamedTuple):
    """Status of a file or directory, as reported by the NameNode.

    Args:
        kind: `DIRECTORY`, `FILE` or `SYMLINK`.
        name: its last path component; empty if it was requested by its path.
        blocks: blocks of a file, if listed with them.
        ec_policy: name of its erasure coding policy; empty: none; ``?``: an unknown one.
    """

    kind: int
    name: str
    size_bytes: int
    mode: int
    owner: str
    group: str
    mtime_ms: int
    inode_id: int
    link: str
    replication: int
    storage_policy: int
    ec_policy: str
    is_encrypted: bool
    has_acl: bool
    blocks: FileBlocks | None


class ServerDefaults(NamedTuple):
    """The NameNode's defaults for new files. ``encrypts``: DataNodes accept encrypted connections only."""

    block_bytes: int
    bytes_per_checksum: int
    replication: int
    checksum_kind: int
    encrypts: bool


# ---- calls ----


GET_SERVER_DEFAULTS = Call("getServerDefaults", b"")
GET_HA_STATE = Call("getHAServiceState", b"")
GET_SAFE_MODE = Call("setSafeMode", encode((1, 3), (2, True)))
"""Request whether it is in safe mode, which everybody may send."""
GET_HA_SIGNATURE = Call(
    "getProtocolSignature",
    encode((1, "org.apache.hadoop.ha.protocolPB.HAServiceProtocolPB"), (2, "RPC_PROTOCOL_BUFFER")),
    "org.apache.hadoop.ipc.ProtocolMetaInfoPB",
)
"""Request of what a server has of HAServiceProtocol on its port for clients.

Each NameNode has it, also one without others; a Router, which has the ClientProtocol, too, does not. Everybody may send
it, and the server neither changes nor logs anything. Source: NameNodeRpcServer, RouterRpcServer,
ProtocolMetaInfoServerSideTranslatorPB (its getProtocolVersions fails for a protocol of one kind of RPC).
"""
SYNCHRONIZE = Call("msync", b"")
"""Request of the last transaction id of the active NameNode, which the header of the answer contains."""


def get_file_info(path: str) -> Call:
    """Request the status of a path."""
    return Call("getFileInfo", encode((1, path)))


def get_listing(path: str, after: bytes, *, located: bool) -> Call:
    """Request the entries of a directory after a name; with ``located`` the answer has the blocks of files."""
    return Call("getListing", encode((1, path), (2, after), (3, located)))


def get_block_locations(path: str, offset: int, count: int) -> Call:
    """Request the blocks of a range of a file."""
    return Call("getBlockLocations", encode((1, path), (2, offset), (3, count)))


def create(path: str, mode: int, client: str, defaults: ServerDefaults, *, parents: bool) -> Call:
    """Create a file, if the path does not exist, and open it for writing.

    Args:
        path: the path of the file.
        mode: permissions.
        client: name of the writing client.
        defaults: defaults of the NameNode.
        parents: create missing parent directories.
    """
    permission = encode((1, mode))
    return Call(
        "create",
        encode(
            (1, path),
            (2, permission),
            (3, client),
            (4, _CREATE),
            (5, parents),
            (6, defaults.replication),
            (7, defaults.block_bytes),
            (9, permission),
        ),
    )


def add_block(path: str, client: str, file_id: int, previous: HdfsBlock | None, excluded: Iterable[DataNode]) -> Call:
    """Request a further block of an open file.

    Args:
        path: the path of the file.
        client: name of the writing client.
        file_id: its inode number.
        previous: its last block so far.
        excluded: DataNodes that failed.
    """
    return Call(
        "addBlock",
        encode(
            (1, path),
            (2, client),
            (3, previous and previous.encode()),
            *((4, one.info) for one in excluded),
            (5, file_id),
        ),
    )


def abandon_block(path: str, client: str, file_id: int, block: HdfsBlock) -> Call:
    """Abandon the last block of an open file.

    Args:
        path, client, file_id: as in `add_block`.
        block: that block.
    """
    return Call("abandonBlock", encode((1, block.encode()), (2, path), (3, client), (4, file_id)))


def complete(path: str, client: str, file_id: int, last: HdfsBlock | None) -> Call:
    """Close a file; the answer is false until the DataNodes have reported its blocks to the NameNode.

    Args:
        path, client, file_id: as in `add_block`.
        last: its last block; None: the file is empty.
    """
    return Call("complete", encode((1, path), (2, client), (3, last and last.encode()), (4, file_id)))


def renew_lease(client: str) -> Call:
    """Renew the lease on a client's open files."""
    return Call("renewLease", encode((1, client)))


def set_times(path: str, mtime_ms: int) -> Call:
    """Set the modification time."""
    return Call("setTimes", encode((1, path), (2, mtime_ms), (3, -1)))


def set_permission(path: str, mode: int) -> Call:
    """Set permission bits."""
    return Call("setPermission", encode((1, path), (2, encode((1, mode)))))


def rename(old: str, new: str, *, overwrite: bool) -> Call:
    """Rename to a free name; with ``overwrite`` replace an existing file or empty directory."""
    return Call("rename2", encode((1, old), (2, new), (3, overwrite)))


def delete(path: str, *, recursive: bool) -> Call:
    """Delete a file, or a directory; the answer has whether it existed."""
    return Call("delete", encode((1, path), (2, recursive)))


def make_directory(path: str, mode: int) -> Call:
    """Create a directory and its parents; an existing one stays unchanged."""
    return Call("mkdirs", encode((1, path), (2, encode((1, mode))), (3, True)))


def check_access(path: str, rights: int) -> Call:
    """Check whether the caller has some rights, as bits: 4 read, 2 write, 1 execute."""
    return Call("checkAccess", encode((1, path), (2, rights)))


def report_bad_block(located: LocatedBlock, node: DataNode) -> Call:
    """Report a corrupt replica."""
    return Call("reportBadBlocks", encode((1, located.encode(node))))


# ---- answers ----


def parse_server_defaults(answer: Fields) -> ServerDefaults:
    """Return the answer to `GET_SERVER_DEFAULTS`. Raises NotHadoop on an invalid answer, as do the others."""
    said = answer.message(1)
    found = ServerDefaults(
        block_bytes=said.number(1, below=MAX_BLOCK_BYTES),
        bytes_per_checksum=said.number(2, below=1 << 24),
        replication=said.number(4, below=1 << 15),
        checksum_kind=said.number(8, 1, below=1 << 8),
        encrypts=bool(said.number(6, 0)),
    )
    size, chunk = found.block_bytes, found.bytes_per_checksum
    if not (chunk and size and size % chunk == 0 and found.replication):
        raise NotHadoop(f"the NameNode wants blocks of {size} bytes with a checksum for each {chunk} bytes")
    return found


def parse_file_info(answer: Fields) -> Status | None:
    """Return the answer to `get_file_info` or `create`; None: the path does not exist."""
    return parse_status(answer.data(1), {}) if answer.has(1) else None


class Listing(NamedTuple):
    """Part of a directory; ``remaining``: number of entries after it."""

    entries: list[Status]
    remaining: int


def parse_listing(answer: Fields, nodes: dict[bytes, DataNode]) -> Listing | None:
    """Return the answer to `get_listing`; None: no such path. ``nodes``: known DataNodes, each exists only once."""
    if not answer.has(1):
        return None
    said = answer.message(1)
    return Listing([parse_status(one, nodes) for one in said.all_data(1)], said.number(2, below=1 << 32))


def parse_status(data: bytes, nodes: dict[bytes, DataNode]) -> Status:
    """Return an HdfsFileStatusProto."""
    said = Fields(data)
    kind, mode = said.number(1), _permission(said.data(4))
    if kind not in (DIRECTORY, FILE, SYMLINK):
        raise NotHadoop(f"the NameNode sent a file of the type {kind}")
    flags = said.number(18, below=1 << 32) if said.has(18) else mode >> 12 & 7
    return Status(
        kind=kind,
        name=said.text(2),
        size_bytes=said.number(3, below=MAX_LENGTH),
        mode=mode & 0o1777,
        owner=said.text(5),
        group=said.text(6),
        mtime_ms=said.number(7, below=1 << 53),
        inode_id=said.number(13),
        link=said.text(9, ""),
        replication=said.number(10, 0, below=1 << 15),
        storage_policy=said.number(16, 0, below=1 << 8),
        ec_policy=_policy(said, is_striped=bool(flags & _STRIPED)),
        is_encrypted=bool(flags & _ENCRYPTED) or said.has(15),
        has_acl=bool(flags & _ACL),
        blocks=parse_blocks(said.data(12), nodes) if said.has(12) else None,
    )


@functools.lru_cache(256)
def _permission(data: bytes) -> int:
    """Return an FsPermissionProto, cached: few differ."""
    return Fields(data).number(1, below=1 << 32)


def _policy(said: Fields, *, is_striped: bool) -> str:
    if not said.has(17):
        return "?" * is_striped
    policy = said.message(17)
    return policy.text(1, "") or _BUILT_IN_POLICIES.get(policy.number(4), "?" * is_striped)


def parse_block_locations(answer: Fields) -> FileBlocks | None:
    """Return the answer to `get_block_locations`; None: it is a directory."""
    return parse_blocks(answer.data(1), {}) if answer.has(1) else None


def parse_blocks(data: bytes, nodes: dict[bytes, DataNode]) -> FileBlocks:
    """Return a LocatedBlocksProto."""
    said = Fields(data)
    blocks = [parse_located_block(one, nodes) for one in said.all_data(2)]
    # The last block of a file under construction is a separate field.
    blocks += [parse_located_block(one, nodes) for one in said.all_data(4) if not said.number(5)]
    at = 0
    for one in blocks:
        if one.offset < at:
            raise NotHadoop(f"the NameNode sent blocks that overlap at byte {one.offset} of a file")
        at = one.end
    is_plain = not (said.has(6) or said.has(7) or any(one.is_striped for one in blocks))
    striping = None
    if said.has(7) and not said.has(6) and all(one.is_striped for one in blocks):
        striping = _striping(said.message(7))
    return FileBlocks(said.number(1, below=MAX_LENGTH), tuple(blocks), is_plain, striping)


def _striping(policy: Fields) -> Striping | None:
    """Return the layout of an ErasureCodingPolicyProto; None: unknown."""
    if not policy.has(2):
        built_in = _BUILT_IN_POLICIES.get(policy.number(4))
        return Striping(int(built_in.split("-")[-3]), 1 << 20) if built_in else None
    found = Striping(policy.message(2).number(2, below=_MAX_DATA_BLOCKS), policy.number(3, below=1 << 31))
    if not found.data_blocks or not found.cell_bytes:
        raise NotHadoop("the NameNode sent an erasure coding policy without data")
    return found


def parse_added_block(answer: Fields) -> LocatedBlock:
    """Return the answer to `add_block`."""
    found = parse_located_block(answer.data(1), {})
    if not found.nodes:
        raise NotHadoop("the NameNode gave a block without a DataNode")
    return found


def parse_located_block(data: bytes, nodes: dict[bytes, DataNode]) -> LocatedBlock:
    """Return a LocatedBlockProto."""
    said = Fields(data)
    block, infos = said.message(1), said.all_data(3)
    if len(infos) > MAX_NODES:
        raise NotHadoop(f"the NameNode names {len(infos)} DataNodes of one block")
    token = said.data(5)
    _check_message(token)
    return LocatedBlock(
        HdfsBlock(
            block.text(1),
            block.number(2, below=1 << 64),
            block.number(3),
            block.number(4, 0, below=MAX_BLOCK_BYTES),
        ),
        said.number(2, below=MAX_LENGTH),
        tuple(_node(one, nodes) for one in infos),
        token,
        tuple(said.numbers(7, below=1 << 8)[:MAX_NODES]),
        said.has(9),
        said.data(9, b"")[:MAX_NODES],
        tuple(said.all_data(10)[:MAX_NODES]),
    )


@functools.lru_cache(16)
def _check_message(data: bytes) -> None:
    """Parse a TokenProto; without tokens all are equal. Raises NotHadoop: it is not a message."""
    Fields(data)


def _node(info: bytes, nodes: dict[bytes, DataNode]) -> DataNode:
    if (found := nodes.get(info)) is None:
        said = Fields(info).message(1)
        host, port = said.text(1), said.number(4, below=1 << 16)
        if not _IP.fullmatch(host) or not port:
            raise NotHadoop(f"the NameNode names a DataNode at {host[:60]!r}, port {port}")
        if len(nodes) >= _MAX_KEPT:
            nodes.clear()  # a DataNode's data, such as free space, changes between parts of a listing
        hostname = said.text(2) if said.has(2) else ""
        nodes[info] = found = DataNode(host, port, info, hostname if _HOST_NAME.fullmatch(hostname) else "")
    return found


def parse_flag(answer: Fields) -> bool:
    """Return the only bool of an answer."""
    return bool(answer.number(1))


def parse_is_namenode(answer: Fields) -> bool:
    """Return whether the answer to `GET_HA_SIGNATURE` is a NameNode's: it has a version of the protocol."""
    return bool(answer.all_data(1))
