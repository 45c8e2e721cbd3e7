"""Make the *_pb2.* of dlapp/hadoop/proto and dlapp/cluster/yarn/proto anew after a change of a .proto.

Run as python -m tests.services.protoc. Needs protoc of the package grpcio-tools, for this alone; tests find out when it
was forgotten.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tempfile
import textwrap
import zlib
from pathlib import Path

DLAPP = Path(__file__).resolve().parents[2] / "dlapp"
PACKAGES = {"rpc": DLAPP / "hadoop" / "proto", "yarn": DLAPP / "cluster" / "yarn" / "proto"}
NOT_OURS = '# Made by tests/services/protoc.py.\n# ruff: noqa\n# fmt: off\n# mypy: disable-error-code="type-arg"\n'


def sources_digest(name: str) -> str:
    """SHA-256 of a .proto file, in hex digits; it stands in what was made of it."""
    return hashlib.sha256((PACKAGES[name] / f"{name}.proto").read_bytes()).hexdigest()


def main() -> None:
    """Write the descriptors and the types for mypy."""
    for name, package in PACKAGES.items():
        with tempfile.TemporaryDirectory() as out:
            outputs = [f"--descriptor_set_out={out}/set", f"--pyi_out={out}"]
            places = [f"-I{place}" for place in PACKAGES.values()]
            command = [sys.executable, "-m", "grpc_tools.protoc", *places, *outputs, f"{name}.proto"]
            subprocess.run(command, check=True)
            packed = base64.b85encode(zlib.compress(Path(out, "set").read_bytes(), 9)).decode()
            types = Path(out, f"{name}_pb2.pyi").read_text()
        types = types.replace("import rpc_pb2", "from dlapp.hadoop.proto import rpc_pb2")
        (package / f"{name}_pb2.pyi").write_text(NOT_OURS + types)
        lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(packed, 100, break_on_hyphens=False))
        (package / "descriptors.py").write_text(
            f'"""Made of {name}.proto beside it by tests/services/protoc.py: do not edit."""\n\n'
            f'SOURCES_SHA256 = "{sources_digest(name)}"\n\nDESCRIPTOR_SET = (\n{lines}\n)\n'
        )


if __name__ == "__main__":
    main()
