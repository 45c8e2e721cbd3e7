#!/bin/sh
# Run the example as a user would, and show each command before it runs. It needs the dlapp commands on PATH, a Docker
# daemon (DOCKER_HOST, or Docker's usual socket) and the image; where that is missing it is made from Debian's packages.
# `make demo-caffe` brings all of this, with a daemon of its own.
set -eu
cd "$(dirname "$0")"

image=naver/c3_dl-caffe
: "${DOCKER_HOST:=unix:///var/run/docker.sock}"
export DOCKER_HOST DLAPP_RUNTIME_DOCKER_HOST="$DOCKER_HOST"

# On one machine, the paths of HDFS lie below this directory.
export DLAPP_LOCAL_FS_ROOT="$PWD/hdfs"

# git keeps no empty directory.
mkdir -p user_dev_workspace/output

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

docker image inspect "$image" >/dev/null 2>&1 || run ../../docker/from-debian.sh caffe "$image:latest"
if [ ! -e hdfs/user/tony/caffe_test/train-images-idx3-ubyte.gz ]; then
    echo "copying the Fashion-MNIST data of the image to $DLAPP_LOCAL_FS_ROOT/user/tony/caffe_test"
    mkdir -p hdfs/user/tony/caffe_test
    docker run --rm --network none "$image" tar -C /usr/share/datasets/fashion-mnist -c . |
        tar -C hdfs/user/tony/caffe_test --no-same-owner -x
fi

printf '\nIn %s, with DLAPP_LOCAL_FS_ROOT=%s:\n' "$PWD" "$DLAPP_LOCAL_FS_ROOT"
run dlapp-launcher --wait dl_app_caffe.properties
run dlapp-status last

printf '\n$ dlapp-logs last | grep accuracy\n'
dlapp-logs last | grep 'accuracy = '
run ls -l hdfs/user/tony/caffe_mnist_example_output
