"""Storage of input and output: list, read, write, and an exchange that readers never see half done.

A place is named by a *location*, text with a scheme. ``file://`` is followed by the absolute path exactly as the
operating system has it, nothing in it is escaped: ``file:///data/50% off #1/a b``. Names that are not UTF-8 are carried
as Python carries them (surrogateescape). ``hdfs://`` is followed by a NameNode or nameservice, and the path likewise.

`open_location` gives the `FileSystem` behind a scheme; `commit` makes an application's output visible. What is needed
to reach an HDFS is one value, `HdfsPlace`, that the caller passes down. What else has a scheme is fsspec's, for input
only: ``s3://bucket/name``.
"""
