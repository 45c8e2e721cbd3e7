#!/bin/sh
# Run the example on the Hadoop that `make yarn-up` starts. It needs the dlapp commands on PATH, and a python3 there
# that has numpy and matplotlib: `make demo-yarn` sees to both.
set -eu
cd "$(dirname "$0")"

: "${HADOOP_CONF_DIR:=${TMPDIR:-/tmp}/dlapp-hadoop-$(id -u)/conf}"
if [ ! -e "$HADOOP_CONF_DIR/core-site.xml" ]; then
    echo "Error: no Hadoop is up; make yarn-up starts one" >&2
    exit 1
fi
up=${HADOOP_CONF_DIR%/conf}
if [ -e "$up/dlapp.yaml" ]; then
    : "${DLAPP_CONFIG:=$up/dlapp.yaml}"
    export DLAPP_CONFIG
fi
export HADOOP_CONF_DIR DLAPP_CLUSTER=yarn

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

# The nodes are this machine here, so its python3 is theirs; on a cluster an image or a module would bring numpy. It
# computes without GPUs, and a cluster that counts them would give each container one.
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
echo "The file of make demo, with gcores=0 in [resources], and in [application] the PATH of this shell for the program:"
sed "s|^\[resources\]|env.PATH=$PATH\n\n[resources]\ngcores=0|; s|=\./workspace|=$PWD/workspace|" dl_app.properties \
    >"$there/dl_app.properties"
python3 put_on_hdfs.py data/digits.csv.gz

echo "In $(pwd), on the cluster of $HADOOP_CONF_DIR:"
run dlapp-launcher --wait "$there/dl_app.properties"
run dlapp-status last
run dlapp-logs last

printf '\nThe cluster stays up (make yarn-down ends it). To use it from this shell:\n'
echo "export HADOOP_CONF_DIR=$HADOOP_CONF_DIR"
[ -z "${DLAPP_CONFIG:-}" ] || echo "export DLAPP_CONFIG=$DLAPP_CONFIG"
