"""Task in a container: the steps around a payload, from the first request to the ApplicationMaster to the result.

- `main`: the process; forks the payload's guardian before anything else is loaded.
- `steps`: pulling, unpacking, fetching, leasing, waiting, running, storing, releasing, as functions of the `state`.
- `preparation`: the steps before the payload.
- `payload`: how it is made, run and ended.
- `link`: talking to the ApplicationMaster without ever waiting for it.
- `data`: workspace, input, output, caches and checkpoints of the container.
- `protocol`: the files that a payload and the task exchange.
- `rendezvous`: the address and ports of a task, and the roster; `mpi`: what mpirun starts.
- `gpu_lease`: the devices that a task holds; `gpu_health`: these devices, watched while its payload runs.
- `usage`: what a payload and its GPUs use; `failure`: the cause of a failure.
- `interrupt`: how an order to stop reaches a step that is in the middle of something.
- `environment`: what a payload finds in its environment.
- `logs`: dlapp's own log, and the cap on the payload's.
"""
