"""Payloads: as plain processes or in Docker, and how they end, whatever dies around them.

Every payload begins as a small shell script (``wrapper.sh``) that opens the reading end of a FIFO, its lifeline. The
task holds the writing end. The payload inherits the reading end, so opening the FIFO with O_WRONLY|O_NONBLOCK fails
with ENXIO exactly when nobody is left.

- `payload`: values; how a script is started.
- `lifeline`: the FIFO and the task's end of it.
- `process`, `guardian`: a plain process, and the process between task and payload that leaves nothing behind.
- `docker`: a `payload` or a `shell` in a container; `exit_status`: how it ended; `container_factory`: what both are
  made with; `container`: a container as a value, and the fences around it; `accounts`: who one is in it; `images`:
  pulling; `labels`: whose a container is, and those of dead tasks; `cleanup`: removes those that an ended one left.
- `stack_dump`: the stacks of a payload that hangs, by py-spy.
- `gpu`: how a container gets its GPUs (`modes`, `facts`), whether it did (`verification`), and the oldest way
  (`nvidia_docker`).

Docker's API is spoken by `dlapp.net.dockerd`; the docker library is used for the shell's terminal alone.
"""
