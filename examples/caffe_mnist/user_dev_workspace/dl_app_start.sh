#!/usr/bin/env bash
# What dlapp starts. The words of user_shell_args arrive as they are, here: -gpu all
set -e

./create_mnist.sh
./train_lenet.sh "$@"
