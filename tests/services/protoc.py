"""Make dlapp/cluster/yarn/proto/*_pb2.* anew after a change of a .proto: python -m tests.services.protoc

Needs protoc of the package grpcio-tools, for this alone; tests find out when it was forgotten.
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

PROTO = Path(__file__).resolve().parents[2] / "dlapp" / "cluster" / "yarn" / "proto"
NAMES = ("rpc", "yarn")
NOT_OURS = '# Made by tests/services/protoc.py.\n# ruff: noqa\n# fmt: off\n# mypy: disable-error-code="type-arg"\n'


def sources_digest() -> str:
    """SHA-256 of the .proto files, in hex digits; it stands in what was made of them."""
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update((PROTO / f"{name}.proto").read_bytes())
    return digest.hexdigest()


def main() -> None:
    """Write the descriptors and the types for mypy."""
    sources = [f"{name}.proto" for name in NAMES]
    with tempfile.TemporaryDirectory() as out:
        outputs = [f"--descriptor_set_out={out}/set", f"--pyi_out={out}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs]
        subprocess.run([*command, *sources], cwd=PROTO, check=True)
        packed = base64.b85encode(zlib.compress(Path(out, "set").read_bytes(), 9)).decode()
        for name in NAMES:
            types = Path(out, f"{name}_pb2.pyi").read_text().replace("import rpc_pb2", "from . import rpc_pb2")
            (PROTO / f"{name}_pb2.pyi").write_text(NOT_OURS + types)
    lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(packed, 100, break_on_hyphens=False))
    (PROTO / "descriptors.py").write_text(
        '"""Made of the .proto files beside it by tests/services/protoc.py: do not edit."""\n\n'
        f'SOURCES_SHA256 = "{sources_digest()}"\n\nDESCRIPTOR_SET = (\n{lines}\n)\n'
    )


if __name__ == "__main__":
    main()
