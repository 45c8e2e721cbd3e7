"""Payloads: as plain processes or in Docker, and how they end, whichever process dies around them.

Every payload starts with a small shell script (``wrapper.sh``) that opens the reading end of a FIFO, its lifeline. The
task holds the writing end. The payload inherits the reading end, so opening the FIFO with O_WRONLY|O_NONBLOCK fails
with ENXIO exactly when all of its processes have ended.

- `payload`: values; how a script is started.
- `lifeline`: the FIFO and the task's end of it.
- `process`, `guardian`: a plain process, and the process between task and payload that cleans up all of its
  descendants.
- `docker`: a `payload` in a container; `exit_status`: how it ended; `container_factory`: creates the container;
  `container`: a container as a value, and its restrictions; `accounts`: the user's account in it; `images`: pulling;
  `labels`: ownership of containers, and those of dead tasks; `cleanup`: removes the containers of an ended application.
- `stack_dump`: the stacks of a hung payload, by py-spy.
- `gpu`: how a container gets its GPUs (`modes`, `facts`), the check that it did (`verification`), and the oldest mode
  (`nvidia_docker`).

`dlapp.net.dockerd` is the client of Docker's API in what runs on nodes; commands check a dockerd with the docker
package (`docker.client`).
"""
