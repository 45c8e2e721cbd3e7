#!/bin/sh
# Write each image's requirements.txt anew from its requirements.in: every package, its version and its hashes.
# What is locked already stays unless requirements.in asks for another version. Needs uv (pip install uv).
set -eu
cd "$(dirname "$0")"

# The interpreter and the C library of the base image, Ubuntu 24.04.
for file in */requirements.in; do
    uv pip compile --quiet --generate-hashes --no-annotate --no-header --only-binary :all: \
        --python-version 3.12 --python-platform x86_64-manylinux_2_39 \
        --output-file "${file%.in}.txt" "$file"
done
