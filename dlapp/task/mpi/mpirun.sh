#!/bin/sh
# Start the next program of this name on PATH, with a working directory that each container reads as its own.
#
# mpirun has its processes begin in its own directory, by the text of PWD if that is right. The workspace has another
# path in each container. In a daemon /proc/self/cwd is the directory in which the container's task has started it.

_dlapp_here=$DLAPP_DIR/mpi/bin
_dlapp_rest=$PATH:
PATH=
while [ -n "$_dlapp_rest" ]; do
    _dlapp_one=${_dlapp_rest%%:*}
    _dlapp_rest=${_dlapp_rest#*:}
    [ "$_dlapp_one" = "$_dlapp_here" ] || PATH=$PATH${PATH:+:}$_dlapp_one
done
PWD=/proc/self/cwd
export PATH PWD
exec "${0##*/}" "$@"
