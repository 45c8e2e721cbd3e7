"""HDFS by its own protocols: calls to NameNodes over Hadoop RPC, and the transfer of blocks to and from DataNodes.

`client_protocol` has the messages of the NameNode as values, `checksums` and `packets` those of a DataNode, all without
a socket; `connections` keeps connections, and `datanode` moves a block over one. What is tried again, and where, is the
caller's affair.

The messages are read by hand (`dlapp.hadoop.wire`) and not by protobuf, which is pure Python on the nodes of a cluster:
of an entry of a listing, with three locations, that makes a value in 27 us, and protobuf takes three times as long for
a message of as many fields.
"""
