"""Storage of input and output: list, read, write, and an atomic commit that never shows readers a partial output.

A place is named by a *location*, a string with a scheme. ``file://`` is followed by the absolute path exactly as the
operating system has it, without escapes: ``file:///data/50% off #1/a b``. Names that are not UTF-8 are represented as
in Python (surrogateescape). ``hdfs://`` is followed by a NameNode or nameservice, and the path in the same form.

`open_location` (`open`) returns the `FileSystem` (`api`) of a scheme: `local`, `hdfs`, or `remote` for fsspec's, which
are for input only: ``s3://bucket/name``. The configuration of an HDFS is one value, `HdfsPlace`, that the caller passes
down. `inputs` and `fetch_plan` plan and fetch input, `archives` unpacks it, `cache` keeps it on a node. `commit` makes
an output visible, `settlement` decides on all outputs of an application. `checkpoints` copies a directory of a payload.
"""
