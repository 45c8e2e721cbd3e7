"""Streams to running containers: the commands' ends of dlapp-exec and dlapp-port. What they say reaches a container
only through its ApplicationMaster.
"""
