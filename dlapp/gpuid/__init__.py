"""The GPU Device ID Manager: assignment of GPUs to containers.

The engine counts GPUs, the ledger names them. One set of rules, two stores: on one machine a directory with a locked
file per GPU; in a cluster a znode per host.

    devices.py      a device, how close two are, who holds one      selection.py    which ones to take; pure
    rules.py        a host's record and all changes to it; pure     record_json.py  a host's record as JSON
    ledger.py       the interface of the stores                     factory.py      opens the configured one

    stores/         machine.py           the store on one machine
                    machine_reader.py    who holds what there
                    locked_devices.py    devices that a process has locked
                    device_files.py      the files of that store
                    device_health.py     its records of quarantine
                    record_liveness.py   its records whose locks are free
                    queue_tickets.py     who waits for the machine's devices
                    zookeeper.py         the store of a cluster
                    ensemble.py          its servers; the one user of kazoo
                    deferred_releases.py releases that wait for them
                    host_lock.py         one writer of a host at a time
                    node_manager.py      devices that a NodeManager chose
    liveness/       probes.py            whether a payload is gone, by its own host
                    gpu_processes.py     their processes by NVML
                    result.py            the result of each of these
    health/         nvml.py              what devices there are, and how they are
                    nvml_subprocess.py   NVML with a deadline, for all callers
                    driver.py            why the driver does not work, by its files
                    readings.py          values of a device from NVML
                    condition.py         what else an operator should know of a device
                    inspection.py        what puts a device into quarantine
                    watch.py             a device that fails under a payload
"""
