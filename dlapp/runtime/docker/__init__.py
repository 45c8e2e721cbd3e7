"""Payloads and shells in Docker containers: images, settings, accounts, labels, exits. The way to the daemon is
`dlapp.net.dockerd`; the docker package is loaded only where a registry's credentials or a terminal need it. What plain
processes use, too, is one level up.
"""
