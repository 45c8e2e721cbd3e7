"""One TensorBoard for many applications: copies of their event files on this machine, and the server process.

TensorBoard of a single application runs beside its task (`dlapp.task.payload.tensorboard`).
"""
