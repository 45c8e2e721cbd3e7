"""Payloads in Docker containers: images, settings, accounts, labels, exits. The client of the daemon is
`dlapp.net.dockerd`; `client` is that of commands, by the docker package, and a task never loads it. Code that plain
processes also use is one level up.
"""
