"""Streams to running containers: the client side of dlapp-exec, dlapp-port and dlapp-board. They go through the
ApplicationMaster; dlapp-port connects directly where it can reach the container's host.
"""
