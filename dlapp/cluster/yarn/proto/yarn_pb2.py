"""The messages of yarn.proto."""

from dlapp.cluster.yarn.proto import definitions

globals().update(definitions("yarn.proto"))
