#!/bin/sh
# Make a stand-in for an image where no registry answers: docker/from-debian.sh NAME [TAG]
#
# The same packages at the same versions and the same dl-smoke, on Debian in place of the Dockerfile's base: Debian 11 for
# caffe; Debian 13 with its Python 3.13 for the others, without the base's own CUDA, so for the CPU. Needs root,
# debootstrap, Debian's and PyPI's servers and a Docker daemon. TAG: naver/c3_dl-NAME:debian if not given.
set -eu

name=${1?which image? one of the directories beside this script}
tag=${2:-naver/c3_dl-$name:debian}
here=$(cd "$(dirname "$0")" && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
if [ ! -e "$here/$name/Dockerfile" ]; then
    # shellcheck disable=SC2046
    echo "Error: no image is called $name; there are:" \
        $(cd "$here" && for one in */Dockerfile; do echo "${one%/*}"; done | LC_ALL=C sort) >&2
    exit 2
fi
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "Error: it takes root and debootstrap (apt-get install debootstrap)" >&2
    exit 1
fi

# The image and those that it builds on, the lowest first.
chain=$name
while parent=$(sed -n 's|^ARG BASE=naver/c3_dl-\(.*\):.*|\1|p' "$here/${chain%% *}/Dockerfile") && [ -n "$parent" ]; do
    chain="$parent $chain"
done
suite=trixie
[ "$name" != caffe ] || suite=bullseye
packages=
for one in $chain; do
    [ ! -e "$here/$one/packages.txt" ] || packages="$packages $(tr '\n' ' ' <"$here/$one/packages.txt")"
done

tree=$(mktemp -d)
# debootstrap mounts /proc in the tree, and leaves it there if it is killed.
trap 'umount -q "$tree/proc" 2>/dev/null || :; rm -rf --one-file-system "$tree" "$tree.log"' EXIT
trap 'exit 130' INT TERM HUP PIPE
chmod 755 "$tree"
echo "$name: Debian $suite with$packages"
# shellcheck disable=SC2086
debootstrap --variant=minbase --include="$(echo $packages | tr ' ' ',')" "$suite" "$tree" "$mirror" >"$tree.log" 2>&1 || {
    tail -n 20 "$tree.log" >&2
    exit 1
}
rm -f "$tree.log"

path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set --
if [ "$name" != caffe ]; then
    path=/opt/dl/bin:$path
    chroot "$tree" python3 -m venv /opt/dl
    # pip in the tree reaches PyPI the way this machine does.
    cp /etc/resolv.conf "$tree/etc/resolv.conf"
    cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$tree/ca.crt"
    export SSL_CERT_FILE=/ca.crt REQUESTS_CA_BUNDLE=/ca.crt PIP_CERT=/ca.crt PIP_FIND_LINKS=
    for one in $chain; do
        echo "$name: the Python packages of $one"
        cp "$here/$one/requirements.txt" "$tree/opt/dl/requirements.txt"
        PATH=$path TMPDIR=/tmp chroot "$tree" pip install --quiet --no-cache-dir --disable-pip-version-check \
            --require-hashes --only-binary :all: -r /opt/dl/requirements.txt
    done
    rm -f "$tree/ca.crt" "$tree/etc/resolv.conf"
    cp "$here/$name/smoke.py" "$tree/opt/dl/bin/dl-smoke"
    set -- --change 'ENV PYTHONUNBUFFERED=1'
    backend=$(sed -n 's/^ENV \(KERAS_BACKEND=.*\)/\1/p' "$here/$name/Dockerfile")
    [ -z "$backend" ] || set -- "$@" --change "ENV $backend"
else
    cp "$here/$name/smoke.sh" "$tree/usr/local/bin/dl-smoke"
fi
rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*

echo "$name: docker import $tag"
tar -C "$tree" -c . | docker import --change "ENV PATH=$path" "$@" \
    --change "LABEL org.opencontainers.image.title=$name dlapp.image.made=from-debian" - "$tag" >/dev/null
