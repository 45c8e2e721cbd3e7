"""The GPU Device ID Manager: which GPU belongs to whom.

The engine counts GPUs, the ledger names them. On one machine the ledger is a directory of files, one for each card,
held by kernel locks (`machine`).

    devices.py   a device, who holds it, and which ones to take; pure
    nvml.py      what cards there are; the one user of pynvml
    records.py   what stands in a card's file
    machine.py   MachineLedger
"""
