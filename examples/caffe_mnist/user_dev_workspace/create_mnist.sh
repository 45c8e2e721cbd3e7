#!/usr/bin/env bash
# Turn the images and labels in data/, in MNIST's own format, into the two databases that LeNet reads.
set -euo pipefail
cd "$(dirname "$0")"

# Input may be read-only: what is unpacked goes elsewhere.
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT

mkdir -p examples
for set in train t10k; do
    for file in "$set-images-idx3-ubyte" "$set-labels-idx1-ubyte"; do
        if [ -e "data/$file" ]; then
            ln -s "$PWD/data/$file" "$plain/$file"
        elif [ -e "data/$file.gz" ]; then
            gunzip --stdout "data/$file.gz" >"$plain/$file"
        else
            echo "Error: neither data/$file nor data/$file.gz is there; does [from_hdfs] bring MNIST's four files?" >&2
            exit 1
        fi
    done
    database=examples/mnist_${set/t10k/test}_lmdb
    rm -rf "$database" # convert_mnist_data refuses one that is there
    convert_mnist_data -backend lmdb "$plain/$set-images-idx3-ubyte" "$plain/$set-labels-idx1-ubyte" "$database"
    echo "$database is made"
done
