"""Connection to a DataNode: reads a block, or writes one through it to all DataNodes of a pipeline.

Data is passed on only after verification against the checksums that the DataNode sends. What a DataNode sends is
bounded by the request; each wait has a time limit.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence

from dlapp.hadoop.connection import is_silent, reason, shut_down
from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop
from dlapp.hadoop.hdfs import packets
from dlapp.hadoop.hdfs.checksums import Checksum
from dlapp.hadoop.hdfs.client_protocol import LocatedBlock
from dlapp.hadoop.hdfs.connections import Address
from dlapp.hadoop.hdfs.packets import BlockRefusal, PacketHeader
from dlapp.hadoop.wire import Fields

BUFFER_BYTES = 1 << 20
PACKET_BYTES = 256 << 10
"""Size of written packets. Java's clients use 64 KiB; each packet costs both sides some work."""
IDLE_S = 3.0
"""A DataNode closes a connection that is idle for 4 s (``dfs.datanode.socket.reuse.keepalive``)."""
_MORE_S = 5.0
"""Added to the time limit of an answer for each DataNode of a pipeline.

Source: HdfsConstants.READ_TIMEOUT_EXTENSION."""
_MAX_HEARTBEATS = 1000
"""Maximum number of heartbeats while one block is read or written. DataNodes send one in half of their peers' timeout,
which is 30 s."""
_SLOWEST_BYTES = 64 << 10
"""Minimum amount of data per longest wait, once data has started to arrive."""
_MAX_PIECES = 512
"""Number of buffers passed on at once; the kernel accepts 1024 (IOV_MAX)."""

OnContent = Callable[[list[memoryview]], None]


class BlockRefused(HadoopError):
    """A DataNode refused a request.

    Attributes:
        refusal: its answer.
    """

    def __init__(self, name: str, refusal: BlockRefusal) -> None:
        words = refusal.message or packets.status_text(refusal.status)
        bad = f" (of {refusal.bad_node})" if refusal.bad_node else ""
        super().__init__(f"{name}: {words}{bad}")
        self.refusal = refusal


class CorruptReplica(HadoopError):
    """Data of a DataNode does not match the checksums that it sent."""


class PipelineFailed(HadoopError):
    """A DataNode of a pipeline did not accept a packet; ``position``: its position in the pipeline."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class SourceEnded(Exception):
    """A source file of a block that is shorter than expected."""


class DataNodeConnection:
    """`Reusable` connection to a DataNode. For one thread, except for `abort`.

    Attributes:
        has_heard: data has arrived since the last operation was sent.

    Args:
        address: address of the DataNode's data transfer.
        connect_s: time limit of connecting [s].
        silence_s: time limit of any single wait [s].

    Raises:
        ConnectionLost: the connection failed.
    """

    def __init__(self, address: Address, *, connect_s: float, silence_s: float) -> None:
        self.name = f"{address[0]}:{address[1]}"
        try:
            self._socket = socket.create_connection(address, timeout=connect_s)
        except OSError as error:
            raise ConnectionLost(f"{self.name}: {reason(error)}", sent=False) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(silence_s)
        self._silence_s = silence_s
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._checksum: Checksum | None = None
        self._heartbeats = 0
        self.has_heard = False
        self._used_at = time.monotonic()

    def close(self) -> None:
        self._socket.close()

    def abort(self) -> None:
        shut_down(self._socket)

    def is_fresh(self) -> bool:
        is_young = time.monotonic() - self._used_at < IDLE_S
        return is_young and self._start == self._end and is_silent(self._socket)

    # ---- reading ----

    def read(self, located: LocatedBlock, client: str, start: int, count: int, on_content: OnContent) -> None:
        """Read a range of a block; the connection can be reused afterwards, unless an error was raised.

        Args:
            located: the block.
            client: name of the reading client.
            start, count: the range.
            on_content: receives the verified data, in order, in buffers that are valid only during the call. An error
                from it ends the read.

        Raises:
            BlockRefused: it does not have the block, or the token is not valid.
            CorruptReplica: the data does not match its checksums; the data before that was passed on.
            CannotVerify: its checksum type is not supported here.
            ConnectionLost: it ended, or took too long; the data before that was passed on.
            NotHadoop: it sent something else.
        """
        self._reserve(min(BUFFER_BYTES, count + count // 64 + 4096))
        self._send_operation(packets.read_operation(located, client, start, count))
        self._receive(located, start, count, on_content)
        self._send(packets.read_status(packets.CHECKSUM_OK))
        self._used_at = time.monotonic()

    def read_small(self, blocks: Sequence[LocatedBlock], client: str, on_content: Callable[[bytes], None]) -> None:
        """Read whole small blocks, which costs both sides less than consecutive calls of `read`.

        All are requested before the first one arrives, and each is acknowledged with that request: as received, not as
        verified. A DataNode executes the operations of a connection in order, and closes it at the first failure.

        Args:
            blocks: few enough that their operations fit into the buffers of a connection.
            on_content: receives each block, verified, in order. An error from it ends the read.

        Raises:
            as `read`; the blocks before were passed on.
        """
        self._reserve(min(BUFFER_BYTES, sum(one.block.size_bytes + 4096 for one in blocks)))
        received = packets.read_status(packets.SUCCESS)
        operations = [packets.read_operation(one, client, 0, one.block.size_bytes) for one in blocks]
        self._send_operation(received.join(operations) + received)
        for one in blocks:
            parts: list[bytes] = []
            self._receive(one, 0, one.block.size_bytes, lambda pieces: parts.extend(map(bytes, pieces)))  # noqa: B023
            on_content(b"".join(parts))
        self._used_at = time.monotonic()

    def _receive(self, located: LocatedBlock, start: int, count: int, on_content: OnContent) -> None:
        """Receive the data requested by `read`."""
        self._heartbeats = 0
        answer = packets.parse_read_answer(self._answer())
        checksum = self._checksum
        if checksum is None or (checksum.kind, checksum.chunk_bytes) != (answer.checksum_kind, answer.chunk_bytes):
            checksum = self._checksum = Checksum(answer.checksum_kind, answer.chunk_bytes)
        at, stop, number = answer.first_offset, start + count, 0
        if not start - checksum.chunk_bytes < at <= start:
            raise NotHadoop(f"{self.name}: a block from byte {at} on, where {start} was asked for")
        # Data is sent in whole checksum chunks.
        most = -(-stop // checksum.chunk_bytes) * checksum.chunk_bytes
        pieces: list[memoryview] = []

        def deliver() -> None:
            if pieces:
                ready, pieces[:] = list(pieces), []
                on_content(ready)

        try:
            while True:
                header_bytes, rest = packets.packet_size(bytes(self._need(packets.PREFIX.size, deliver)))
                body = self._need(header_bytes + rest, deliver)
                header = packets.parse_packet_header(bytes(body[:header_bytes]))
                if header.number == packets.HEARTBEAT and not rest:
                    self._note_heartbeat()
                    continue
                sums = checksum.size(header.data_bytes)
                if header.offset != at or header.number != number or rest != sums + header.data_bytes:
                    raise NotHadoop(f"{self.name}: a packet that does not follow the one before at byte {at}")
                number += 1
                if header.is_last or not header.data_bytes:
                    break
                data = body[header_bytes + sums :]
                if at + len(data) > most:
                    raise NotHadoop(f"{self.name}: more of the block than was asked for")
                if not checksum.verify(data, body[header_bytes : header_bytes + sums]):
                    raise CorruptReplica(f"{self.name}: the replica of block {located.block.block_id} is corrupt")
                low, high = max(start - at, 0), min(len(data), stop - at)
                if low < high:
                    pieces.append(data[low:high])
                at += len(data)
                if len(pieces) >= _MAX_PIECES:
                    deliver()
        finally:
            deliver()
        if not header.is_last or at < stop:
            raise ConnectionLost(f"{self.name}: ended the block early, at byte {at}", sent=True)

    # ---- writing ----

    def write(
        self,
        located: LocatedBlock,
        client: str,
        checksum: Checksum,
        read: Callable[[int, int], bytes],
        count: int,
        between: Callable[[], None],
    ) -> None:
        """Write a block, and wait until all DataNodes of the pipeline have it; the connection cannot be reused.

        Args:
            located: the block, with the DataNodes; this connection is to the first of them.
            client: name of the writing client.
            checksum: checksum type for the block.
            read: returns this many bytes of the block from an offset.
            count: bytes of the block.
            between: called after each packet.

        Raises:
            BlockRefused: the pipeline was not set up.
            PipelineFailed: one of its DataNodes failed.
            ConnectionLost: this connection ended, or took too long.
            SourceEnded: ``read`` returned less than requested.
            NotHadoop: it answered something else.
        """
        self._reserve(4096)
        self._socket.settimeout(self._silence_s + _MORE_S * len(located.nodes))
        self._send_operation(packets.write_operation(located, client, checksum.kind, checksum.chunk_bytes))
        self._answer()
        size = max(PACKET_BYTES // checksum.chunk_bytes, 1) * checksum.chunk_bytes
        at = number = acknowledged = 0
        try:
            while at < count:
                data = read(at, min(size, count - at))
                if len(data) < min(size, count - at):
                    raise SourceEnded
                self._send_packet(PacketHeader(at, number, False, len(data)), checksum.of(data), data)
                at, number = at + len(data), number + 1
                acknowledged = self._acks(located, acknowledged, number, wait=False)
                between()
            self._send_packet(PacketHeader(at, number, True, 0), b"", b"")
        except ConnectionLost as lost:
            # The reason for the end may be in an unread acknowledgement.
            with contextlib.suppress(ConnectionLost, NotHadoop):
                self._socket.settimeout(1)
                self._acks(located, acknowledged, number + 1, wait=True)
            raise lost
        self._acks(located, acknowledged, number + 1, wait=True)

    def _send_packet(self, header: PacketHeader, sums: bytes, data: bytes) -> None:
        head = packets.encode_packet_header(header, len(sums)) + sums
        try:
            sent = self._socket.sendmsg([head, data])
            if sent < len(head):
                self._socket.sendall(head[sent:] + data)
            elif sent < len(head) + len(data):
                self._socket.sendall(memoryview(data)[sent - len(head) :])
        except OSError as error:
            raise ConnectionLost(f"{self.name}: {reason(error)}", sent=True) from error

    def _acks(self, located: LocatedBlock, done: int, sent: int, *, wait: bool) -> int:
        """Read acknowledgements; return the number of acknowledged packets.

        Args:
            done, sent: packets acknowledged before, and packets sent.
            wait: wait until all are acknowledged; else read only what has arrived.
        """
        while done < sent and (wait or self._start < self._end or not is_silent(self._socket)):
            ack = packets.parse_ack(self._delimited())
            for position, status in enumerate(ack.statuses):
                if status != packets.SUCCESS:
                    node = located.nodes[min(position, len(located.nodes) - 1)]
                    words = f"{node.name} did not take block {located.block.block_id}: {packets.status_text(status)}"
                    raise PipelineFailed(words, position)
            if ack.number == packets.HEARTBEAT:
                self._note_heartbeat()
                continue
            if ack.number != done or len(ack.statuses) != len(located.nodes):
                raise NotHadoop(f"{self.name}: an acknowledgement that does not belong to a packet")
            done += 1
        return done

    # ---- bytes ----

    def _answer(self) -> Fields:
        answer = packets.parse_answer(self._delimited())
        if isinstance(answer, BlockRefusal):
            raise BlockRefused(self.name, answer)
        return answer

    def _delimited(self) -> bytes:
        """Return the next length-prefixed message."""
        size = shift = 0
        while True:
            byte = self._need(1)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise NotHadoop(f"{self.name}: an answer that cannot be read")
        if size > packets.MAX_ANSWER_BYTES:
            raise NotHadoop(f"{self.name}: an answer of {size} bytes")
        return bytes(self._need(size))

    def _reserve(self, size: int) -> None:
        """Ensure a buffer of at least this size [bytes]."""
        if len(self._buffer) < size:
            fresh = bytearray(size)
            fresh[: self._end - self._start] = self._view[self._start : self._end]
            self._end, self._start = self._end - self._start, 0
            self._buffer, self._view = fresh, memoryview(fresh)

    def _need(self, count: int, before_moving: Callable[[], None] | None = None) -> memoryview:
        """Return the next bytes, valid until a call that moves the content of the buffer.

        Args:
            before_moving: called before earlier returned bytes are overwritten.
        """
        if self._start + count > len(self._buffer):
            if before_moving is not None:
                before_moving()
            if count > len(self._buffer):
                self._reserve(count)
            else:
                left = self._end - self._start
                self._view[:left] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, left
        began = 0.0
        while (have := self._end - self._start) < count:
            if have:
                now = time.monotonic()
                began = began or now
                if now - began > self._silence_s * (1 + count // _SLOWEST_BYTES):
                    raise ConnectionLost(f"{self.name}: sends too slowly", sent=True)
            try:
                received = self._socket.recv_into(self._view[self._end :])
            except OSError as error:
                raise ConnectionLost(f"{self.name}: {reason(error)}", sent=True) from error
            if not received:
                raise ConnectionLost(f"{self.name}: closed the connection", sent=True)
            self._end += received
            self.has_heard = True
        self._start += count
        return self._view[self._start - count : self._start]

    def _note_heartbeat(self) -> None:
        self._heartbeats += 1
        if self._heartbeats > _MAX_HEARTBEATS:
            raise NotHadoop(f"{self.name}: heartbeats without an end")

    def _send_operation(self, data: bytes) -> None:
        self.has_heard = False
        self._send(data)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"{self.name}: {reason(error)}", sent=True) from error


def write_all(fd: int, pieces: list[memoryview], offset: int) -> int:
    """Write buffers at an offset of a file; return the number of bytes.

    Raises:
        OSError: it cannot be written.
    """
    total = sum(map(len, pieces))
    written = os.pwritev(fd, pieces, offset)
    while written < total:
        rest = b"".join(pieces)[written:]
        more = os.pwrite(fd, rest, offset + written)
        written += more
    return total
