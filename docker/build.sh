#!/bin/sh
# Build the images, or those named, with what they build on; then see each train something tiny: docker/build.sh [NAME...]
# DLAPP_IMAGES: what their names begin with, naver/c3_dl- if not set.
set -eu
cd "$(dirname "$0")"

prefix=${DLAPP_IMAGES:-naver/c3_dl-}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' ../dlapp/version.py)
revision=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
all=$(for one in */Dockerfile; do echo "${one%/*}"; done | LC_ALL=C sort)

parent_of() {
    sed -n 's|^ARG BASE=naver/c3_dl-\(.*\):.*|\1|p' "$1/Dockerfile"
}

wanted=
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all
for name in "$@"; do
    if [ ! -e "$name/Dockerfile" ]; then
        # shellcheck disable=SC2086
        echo "Error: no image is called $name; there are:" $all >&2
        exit 2
    fi
    chain=$name
    while parent=$(parent_of "${chain%% *}") && [ -n "$parent" ]; do
        chain="$parent $chain"
    done
    for one in $chain; do
        case " $wanted " in *" $one "*) ;; *) wanted="$wanted $one" ;; esac
    done
done

for name in $wanted; do
    image=$prefix$name:$version
    parent=$(parent_of "$name")
    echo "building $image"
    docker build ${parent:+--build-arg "BASE=$prefix$parent:$version"} --build-arg "VERSION=$version" \
        --build-arg "REVISION=$revision" --tag "$image" --tag "$prefix$name:latest" "$name"
    docker run --rm --network none --user 65534:65534 --env HOME=/tmp "$image" dl-smoke
done
