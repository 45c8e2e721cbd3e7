"""Hadoop's protocols, spoken without a JVM.

From bytes upwards: `framing` cuts a stream into messages, `wire` reads and writes a message field by field,
`rpc_messages` has those of RPC itself, `sasl` and `tokens` prove who the caller is, `connection` has the sockets,
`failover` calls a method on one of several servers and turns a Java exception into one of `errors`. `configuration`
reads the site files, `web` is HTTP to servers of Hadoop.
"""
