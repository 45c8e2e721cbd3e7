"""Task in a container: the steps around a payload, from the first request to the ApplicationMaster to the result.

- `main`: the process; forks the payload's guardian before anything else is loaded.
- `steps`: pulling, unpacking, fetching, leasing, waiting, running, storing, releasing, as functions of the `state`.
- `preparation`: the steps before the payload.
- `payload`: creating, running and ending the payload.
- `feed`, `sweep`, `streams`: records of a feed, trials of a sweep, and streams of tools to the container.
- `link`: communication with the ApplicationMaster; no step waits for it.
- `data`: workspace, input, output, caches and checkpoints of the container.
- `protocol`: the files that a payload and the task exchange.
- `rendezvous`: the address and ports of a task, and the roster; `mpi`: the launches of mpirun.
- `gpu_lease`: the devices that a task holds; `gpu_health`: monitoring of these devices while the payload runs.
- `usage`: resource usage of the payload and its GPUs; `failure`: the cause of a failure.
- `interrupt`: delivery of stop orders to a step that is running.
- `environment`: the payload's environment variables.
- `logs`: dlapp's own log, and the cap on the payload's.
"""
