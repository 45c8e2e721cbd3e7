"""The messages of rpc.proto."""

from dlapp.cluster.yarn.proto import definitions

globals().update(definitions("rpc.proto"))
