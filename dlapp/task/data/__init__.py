"""Data of a container on its way: the workspace, input, output, caches and checkpoints."""
