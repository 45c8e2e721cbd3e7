"""The application's own directory, as its ApplicationMaster uses it.

`interface` is what it does there, `local` a directory of this machine, `hdfs` one in the staging directory on HDFS.
"""
