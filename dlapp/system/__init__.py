"""Safe access to files and processes: opening files that others can write, acting for another user.

Knows nothing of applications, GPUs or servers, and imports nothing of dlapp but `dlapp.errors`.
"""
