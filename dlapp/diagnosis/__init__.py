"""Causes of failures: rules name them by how a program ended and by the end of its logs."""
