#!/usr/bin/env bash
# Turn the images and labels in data/, in MNIST's own format, into the two databases that LeNet reads.
set -euo pipefail
cd "$(dirname "$0")"

mkdir -p examples
for set in train t10k; do
    for part in images-idx3 labels-idx1; do
        file=data/$set-$part-ubyte
        [ -e "$file" ] || [ ! -e "$file.gz" ] || gunzip --keep "$file.gz"
        if [ ! -e "$file" ]; then
            echo "Error: neither $file nor $file.gz is there; does [from_hdfs] bring MNIST's four files?" >&2
            exit 1
        fi
    done
    database=examples/mnist_${set/t10k/test}_lmdb
    rm -rf "$database" # convert_mnist_data refuses one that is there
    convert_mnist_data -backend lmdb "data/$set-images-idx3-ubyte" "data/$set-labels-idx1-ubyte" "$database"
    echo "$database is made"
done
