"""Hadoop's common protobuf messages, as far as we speak them: rpc.proto beside this file.

The classes are built at import from the compiled descriptors (tests/services/protoc.py makes them) and not taken from
protoc's Python code, which runs with few versions of the protobuf library only and registers Hadoop's names in a pool
that another program's Hadoop messages may share. The ``.pyi`` files are protoc's and serve mypy alone.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from dlapp.hadoop.proto.descriptors import DESCRIPTOR_SET

_pool = DescriptorPool()


def add_descriptors(descriptor_set: str) -> None:
    """Add compiled descriptors to our pool, where what they import is already."""
    for file in FileDescriptorSet.FromString(zlib.decompress(base64.b85decode(descriptor_set))).file:
        _pool.AddSerializedFile(file.SerializeToString())


def definitions(file: str) -> dict[str, Any]:
    """Return what protoc would define in the module of ``file``: message classes and enum values, by name."""
    found: dict[str, Any] = {}
    descriptor = _pool.FindFileByName(file)
    for name, message in descriptor.message_types_by_name.items():
        found[name] = GetMessageClass(message)
    for enum in descriptor.enum_types_by_name.values():
        found.update({value.name: value.number for value in enum.values})
    return found


add_descriptors(DESCRIPTOR_SET)
