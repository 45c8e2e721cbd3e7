"""Data of a container: the workspace, input, output, caches and checkpoints."""
