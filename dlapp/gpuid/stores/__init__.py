"""Where leases are kept: the machine's lock files, ZooKeeper, or a NodeManager."""
