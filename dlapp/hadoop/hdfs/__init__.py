"""HDFS by its own protocols: calls to NameNodes over Hadoop RPC, and the transfer of blocks to and from DataNodes.

`wire` reads and writes protobuf messages, `client_protocol` has the messages of the NameNode as values, `checksums` and
`packets` those of a DataNode, all without a socket; `connections` keeps connections, and `datanode` moves a block over
one. What is tried again, and where, is the caller's affair.

The messages are read by hand and not by protobuf: on the nodes of a cluster that is pure Python, which takes some 1 ms
for the entry of a listing with its locations, and `wire` takes 0.05 ms.
"""
