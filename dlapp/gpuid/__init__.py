"""The GPU Device ID Manager: which GPU belongs to whom.

The engine counts GPUs, the ledger names them. One set of rules, two stores: on one machine a directory of files, one
for each card, held by kernel locks; in a cluster a znode for each host.

    devices.py     a device, how close two are, who holds one      choice.py      which ones to take; pure
    rules.py       a host's record and all changes to it; pure     ledger.py      the interface of both stores
    machine.py     the store on one machine                        records.py     what stands in a card's file
    zookeeper.py   the store of a cluster; the one user of kazoo
    evidence.py    whether a payload is gone, by its own host      containers.py  what dockerd says of it
    computing.py   what NVML says of it                            nvml.py        what cards there are, and how they are
    asked.py       NVML with a deadline, for the runner
    health.py      what puts a card into quarantine                watch.py       a card that fails under a payload
"""
