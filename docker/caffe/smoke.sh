#!/bin/sh
# Train something tiny: which of four rows of an image is bright. With GPUs granted it says that this Caffe has no CUDA.
set -eu

if [ -n "${NV_GPU:-}" ]; then
    echo "Error: GPUs $NV_GPU were granted, and this Caffe is built for the CPU only" >&2
    exit 1
fi
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
cd "$there"
export GLOG_log_dir="$there"

# 256 images of 4 x 4 pixels in MNIST's own format: big-endian numbers, then a byte for each pixel or label.
awk 'BEGIN {
    srand(1)
    printf "\\000\\000\\010\\003\\000\\000\\001\\000\\000\\000\\000\\004\\000\\000\\000\\004" >"images.txt"
    printf "\\000\\000\\010\\001\\000\\000\\001\\000" >"labels.txt"
    for (i = 0; i < 256; i++) {
        bright = int(4 * rand())
        printf "\\%03o", bright >"labels.txt"
        for (row = 0; row < 4; row++)
            for (column = 0; column < 4; column++)
                printf "\\%03o", int(60 * rand()) + (row == bright ? 150 : 0) >"images.txt"
    }
}'
# shellcheck disable=SC2059
printf "$(cat images.txt)" >images
# shellcheck disable=SC2059
printf "$(cat labels.txt)" >labels
convert_mnist_data images labels db >convert.log 2>&1 || { cat convert.log >&2; exit 1; }

cat >net.prototxt <<'END'
name: "rows"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  transform_param { scale: 0.004 }
  data_param { source: "db" batch_size: 64 backend: LMDB }
}
layer {
  name: "scores" type: "InnerProduct" bottom: "data" top: "scores"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
layer { name: "right" type: "Accuracy" bottom: "scores" bottom: "label" top: "right" include { phase: TEST } }
END
cat >solver.prototxt <<'END'
net: "net.prototxt"
base_lr: 0.5
momentum: 0.9
lr_policy: "fixed"
max_iter: 100
test_interval: 100
test_iter: 4
solver_mode: CPU
END
caffe train -solver solver.prototxt >train.log 2>&1 || { cat train.log >&2; exit 1; }

right=$(sed -n 's/.*right = //p' train.log | tail -n 1)
echo "$(caffe --version 2>&1 | head -n 1): $right right"
awk -v right="$right" 'BEGIN { exit !(right > 0.97) }'
