"""Safe access to files and processes: opening files that others can write, acting as another user.

This package does not know applications, GPUs or servers, and imports only `dlapp.errors` of dlapp.
"""
