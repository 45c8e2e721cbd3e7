"""Task's part of framework=mpi: processes that mpirun starts in other containers (`dlapp.frameworks.mpi`).

    head's payload     mpirun -> agent.sh --files in DLAPP_DIR/mpi--> head's task
                                                                          |  reports (`dlapp.values.messages.MpiLaunch`)
                                                                  ApplicationMaster
                                                                          |  orders
    member's payload   orted <- member.sh <-FIFO in DLAPP_DIR/mpi-- member's task

So a daemon is part of its container's payload, with its user, limits, GPUs and logs, and ends with it. Tasks and the
ApplicationMaster authenticate each other as usual; no port is opened, and there is no secret that a payload could see.
Images need only a shell, mkfifo and Open MPI.

The members run what the head's payload writes, as the same user. Other users cannot access the directory.
"""
