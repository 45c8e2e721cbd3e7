"""The messages of rpc.proto."""

from dlapp.hadoop.proto import definitions

globals().update(definitions("rpc.proto"))
