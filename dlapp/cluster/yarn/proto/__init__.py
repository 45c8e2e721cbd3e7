"""YARN's protobuf messages, as far as we speak them: yarn.proto beside this file (see `dlapp.hadoop.proto`)."""

from __future__ import annotations

from dlapp.cluster.yarn.proto.descriptors import DESCRIPTOR_SET
from dlapp.hadoop.proto import add_descriptors, definitions

__all__ = ("definitions",)

add_descriptors(DESCRIPTOR_SET)
