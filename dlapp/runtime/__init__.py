"""How a payload runs: as a plain process or in Docker, and how it ends, whatever dies around it.

Every payload begins as a small shell script (``wrapper.sh``) that opens the reading end of a FIFO, its lifeline. The
task holds the writing end. The payload inherits the reading end, so opening the FIFO with O_WRONLY|O_NONBLOCK fails
with ENXIO exactly when nobody is left.

- `payload`: values; how a script is started.
- `lifeline`: the FIFO and the task's end of it.
- `process`, `guardian`: a plain process, and the process between task and payload that leaves nothing behind.
- `docker`: a container; `sweep`: removes those that an ended application left. The only users of the Docker library.
- `kernel`: the few calls of the kernel that Python does not have.
"""
