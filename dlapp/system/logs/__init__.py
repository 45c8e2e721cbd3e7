"""Logs: messages of dlapp's own processes, and the files of a container's output, with their times. The readers for
users are in `dlapp.client` and `dlapp.cluster`.
"""
