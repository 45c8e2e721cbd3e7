"""Workspace of an application: scanned, and packed into an archive in one pass. This package does not know properties,
specs or engines.
"""
