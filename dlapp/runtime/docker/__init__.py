"""Payloads and shells in Docker containers: images, settings, accounts, labels, exits. The client of the daemon is
`dlapp.net.dockerd`; the docker package is loaded only for a registry's credentials or a terminal. Code that plain
processes also use is one level up.
"""
