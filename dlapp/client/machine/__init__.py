"""State of a machine for its users and operators: the GPU ledger, its exporter, and the caches. This package never
submits or ends an application.
"""
