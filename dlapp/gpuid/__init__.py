"""The GPU Device ID Manager: which GPU belongs to whom.

The engine counts GPUs, the ledger names them. One set of rules, two stores: on one machine a directory of files, one
for each card, held by kernel locks; in a cluster a znode for each host.

    devices.py     a device, how close two are, who holds one      choice.py      which ones to take; pure
    rules.py       a host's record and all changes to it; pure     ledger.py      the interface of both stores
    machine.py     the store on one machine                        records.py     what stands in a card's file
    holds.py       what a process holds of that store              given.py       cards that a NodeManager chose
    zookeeper.py   the store of a cluster                          ensemble.py    its servers; the one user of kazoo
    stored.py      a host's record as JSON                         later.py       releases that wait for them
    stores.py      which store it is, by the configuration         doctor.py      all of it, for dlapp-doctor
    evidence.py    whether a payload is gone, by its own host      containers.py  what dockerd says of it
    computing.py   what NVML says of it                            finding.py     what each of these says
    nvml.py        what cards there are, and how they are          asked.py       NVML with a deadline, for the runner
    readings.py    what NVML says of a card                        health.py      what puts a card into quarantine
    watch.py       a card that fails under a payload
"""
