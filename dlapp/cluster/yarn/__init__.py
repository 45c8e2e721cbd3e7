"""The engine of a Hadoop cluster: YARN, spoken without a JVM.

From bytes upwards: `frames` cuts a stream into messages, `sasl` and `tokens` say who we are, `connection` has the
sockets, `rpc` calls a method and turns a Java exception into an error of ours; `resource_manager` and `node_manager`
hold the calls of an ApplicationMaster, `rest` those of a client. `dialect` is how GPUs are written on the wire.
Protobuf messages (`proto`) stay in here; what comes out are values of `dlapp.cluster` and `values`.
"""
