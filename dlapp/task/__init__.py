"""Task in a container: the steps around a payload, from the first request to the ApplicationMaster to the result.

- `main`: the process; forks the payload's guardian before anything else is loaded.
- `steps`: pulling, unpacking, fetching, leasing, waiting, running, storing, releasing.
- `am_link`: talking to the ApplicationMaster without ever waiting for it; `am_address`: where the next one is.
- `payload_end`: the signals that a payload gets; `protocol`: the files that it and the task exchange.
- `mpi`: what mpirun starts.
- `rendezvous`: the address and ports of a task, and the roster; `checkpoints`: when copies are made and restored.
- `gpu_lease`, `outputs`, `payload_caches`: what a task holds, stores and keeps on its node.
- `usage`: what a payload and its GPUs use; `failure`: the cause of a failure.
- `interrupt`: how an order to stop reaches a step that is in the middle of something.
- `gpu_health`: the devices of a task, watched while its payload runs.
- `inputs`: a task's input, fetched or taken from the node's cache.
- `environment`: what a payload finds in its environment.
- `logs`: dlapp's own log, and the cap on the payload's.
- `workspace_changes`: what a script made, where it did not make its output.
- `unpack`: the workspace out of its archive.
"""
