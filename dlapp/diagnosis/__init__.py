"""Causes of failures: rules match the end of a program and the end of its logs."""
