"""Access control lists of local files: which users besides the owner may read a file.

Source: acl(5); linux/posix_acl_xattr.h: a version, then entries of tag, rights and id, in the order of the tags.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _OWN_GROUP, _GROUP, _MASK, _OTHERS = 1, 2, 4, 8, 16, 32
_READ, _READ_AND_WRITE = 4, 6
_NOBODY = 0xFFFFFFFF


def allow_reading(fd: int, uids: Collection[int], gids: Collection[int]) -> None:
    """Let the given users and groups read a file of the caller, and no others besides its owner.

    Raises:
        OSError: the file system does not support ACLs (ENOTSUP), or refuses this one.
    """
    entries = [
        (_OWNER, _READ_AND_WRITE, _NOBODY),
        *((_USER, _READ, uid) for uid in sorted(uids)),
        (_OWN_GROUP, 0, _NOBODY),
        *((_GROUP, _READ, gid) for gid in sorted(gids)),
        (_MASK, _READ, _NOBODY),
        (_OTHERS, 0, _NOBODY),
    ]
    os.setxattr(fd, _ATTRIBUTE, _VERSION + b"".join(_ENTRY.pack(*one) for one in entries))
