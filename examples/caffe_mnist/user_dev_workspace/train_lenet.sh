#!/usr/bin/env bash
# Train LeNet: ./train_lenet.sh [OPTIONS OF caffe train]
# -gpu is for the GPUs that were granted. Without any it is left out, and the CPU trains, as lenet_solver.prototxt says.
set -euo pipefail
cd "$(dirname "$0")"

options=()
while [ $# -gt 0 ]; do
    if [ -n "${NV_GPU:-}" ]; then
        options+=("$1")
    else
        case $1 in
            -gpu | --gpu) [ $# -eq 1 ] || shift ;;
            -gpu=* | --gpu=*) ;;
            *) options+=("$1") ;;
        esac
    fi
    shift
done
if [ -n "${NV_GPU:-}" ]; then
    echo "training on GPU $NV_GPU of this host"
else
    echo "no GPU was granted: training on the CPU"
fi

# A container has as many cores as it asked for, one unless the properties say more; more threads get in each other's way.
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"

mkdir -p output
GLOG_logtostderr=1 exec caffe train --solver=lenet_solver.prototxt "${options[@]}"
