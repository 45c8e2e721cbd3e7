"""Identity of the load of NVIDIA's kernel module: another one after the module was unloaded and loaded."""

from __future__ import annotations

import os

_MODULE = "/sys/module/nvidia"


def driver_load(path: str = _MODULE) -> str:
    """Return the identity of the driver's current load; empty: the driver is not loaded, or hidden.

    Source: the inode number of a directory in sysfs is the number of its kernfs node, which is unique and increases
    until the reboot (``idr_alloc_cyclic`` in ``__kernfs_new_node``). The times of the directory are those of its inode
    in the cache, and change with it.

    Args:
        path: the directory of the module in sysfs.
    """
    try:
        return str(os.stat(path).st_ino)
    except OSError:
        return ""
