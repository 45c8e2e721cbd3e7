"""Addresses of this machine, TCP ports that its users share, and whether a server on one is ready."""
