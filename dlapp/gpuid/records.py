"""A card's file: two bytes to lock, two pages to say who has locked them.

    byte 0     locked: the card is reserved for an application; held by its ApplicationMaster and all below it
    byte 1     locked: the card is leased to a container; held by its task, guardian and payload
    page 1     JSON: who holds byte 0          (from offset 4096)
    page 2     JSON: who holds byte 1          (from offset 8192)
    byte 2     locked: somebody changes page 3
    page 3     JSON: quarantine and its history (from offset 12288)

The locks are the truth, the pages are for people, with one exception: a payload in Docker is no child of ours and
inherits no lock, so a lease may name evidence that outlives its lock. Then the card is free when the lock is, and the
evidence says that the payload is gone. A page is written with one call, which a SIGKILL does not divide: the kernel
copies within a page without looking for signals.

Locks are open file description locks (fcntl.F_OFD_SETLK): held by whoever inherited the descriptor, released by the
kernel when the last one has closed it. Source: fcntl(2).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from typing import Any

from dlapp import ofd
from dlapp.gpuid.rules import LedgerError

RESERVED, LEASED, HEALTH = 0, 1, 2
PAGE = 4096
_MADE_IN_S = 0.5

Record = dict[str, Any]


def open_card(directory: int, name: str, where: str, *, write: bool, create: bool = False) -> int:
    """Open a card's file.

    Args:
        directory: descriptor of the ledger's directory; ``where`` is its path, for messages.
        create: make it where it is missing.

    Raises:
        FileNotFoundError: it is not there.
        LedgerError: it is a symbolic link, or no plain file, or has a second name, or may not be opened.
    """
    # No O_CREAT on a name that may exist: in a directory like /tmp the kernel refuses that for another's file
    # (fs.protected_regular). O_NONBLOCK, so that a FIFO in its place does not hold us.
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            fd = os.open(name, flags, dir_fd=directory)
        except FileNotFoundError:
            if not create:
                raise
            _create_card(directory, name)
            fd = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = "is a symbolic link; remove it" if error.errno == errno.ELOOP else error.strerror
        raise LedgerError(f"{where}/{name}: {what}") from error
    found = os.fstat(fd)
    until_s = time.monotonic() + _MADE_IN_S
    while stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and time.monotonic() < until_s:
        time.sleep(0.001)  # whoever makes it has not yet removed the name under which it was made
        found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        what = "has a second name" if stat.S_ISREG(found.st_mode) else "is not a plain file"
        raise LedgerError(f"{where}/{name}: {what}; remove it")
    return fd


def _create_card(directory: int, name: str) -> None:
    # Complete under another name, then linked: nobody meets a file that others may not yet open.
    temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        os.fchmod(fd, 0o666)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(fd)
        os.unlink(temporary, dir_fd=directory)


def is_current(fd: int, directory: int, name: str) -> bool:
    """Whether an open file is still the one of that name: a lock on a removed file would be nobody else's business."""
    try:
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(fd))


def try_lock(fd: int, byte: int, count: int = 1) -> bool:
    """Take the lock on a byte, or on ``count`` from there on, without waiting; False: somebody else has one."""
    return ofd.try_lock(fd, byte, count)


def is_locked(fd: int, byte: int) -> bool:
    """Whether anybody has the byte locked through another open file than this one."""
    return bool(ofd.held(fd, byte, 1))


def read_record(fd: int, byte: int) -> Record | None:
    """What stands on a byte's page; empty: nothing; None: it cannot be read."""
    text = os.pread(fd, PAGE, PAGE * (byte + 1)).rstrip(b"\0 \n")
    if not text:
        return {}
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def write_record(fd: int, byte: int, record: Record) -> None:
    """Write a byte's page; an empty record: nothing. Only for whoever has the byte locked.

    Raises:
        LedgerError: it cannot be written, or is longer than a page.
    """
    text = json.dumps(record).encode() if record else b""
    if len(text) > PAGE:
        raise LedgerError(f"a record of {len(text)} bytes in the GPU ledger: {PAGE} are the most")
    try:
        os.pwrite(fd, text.ljust(PAGE, b"\0"), PAGE * (byte + 1))
    except OSError as error:
        raise LedgerError(f"the GPU ledger cannot be written: {error.strerror}") from error
