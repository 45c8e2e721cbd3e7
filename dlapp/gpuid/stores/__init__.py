"""Stores of leases: the machine's lock files, ZooKeeper, or a NodeManager."""
