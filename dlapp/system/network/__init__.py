"""Addresses of this machine, and TCP ports that its users share."""
