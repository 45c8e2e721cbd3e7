"""Streams to running containers: the client side of dlapp-exec and dlapp-port. They reach a container only through its
ApplicationMaster.
"""
