"""Untrusted tar and zip files: reading them in bounded memory and time, and unpacking them."""
