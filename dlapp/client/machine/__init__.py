"""State of a machine as its users and its operator see it: the GPU ledger, its exporter, and the caches. Nothing here
submits or ends an application.
"""
