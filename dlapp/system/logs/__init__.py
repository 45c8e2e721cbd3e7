"""Logs: what a process of dlapp writes about itself, and the files in which a container's output lies, with their
times. What reads them for a user is in `dlapp.client` and `dlapp.cluster`.
"""
