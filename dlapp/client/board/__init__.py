"""One TensorBoard over many applications: their event files on this machine, and the process that shows them.

What a single application shows while it runs is of its task (`dlapp.task.tensorboard`).
"""
