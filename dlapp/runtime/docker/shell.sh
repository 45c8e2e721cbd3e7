# The first process of a shell in a container, below Docker's init; plain POSIX sh.
#
#   sh shell.sh LIFE GPUS_SEEN
#
# LIFE is the FIFO whose writing end dlapp-shell holds; "go" is in it already. No writer left means: end everything.
# GPUS_SEEN is told which GPUs are seen, up to a line "end", and another "go" is waited for; empty: none may be seen.
exec 3<"$1" || exit 125
read -r _dlapp_word <&3 && [ "$_dlapp_word" = go ] || exit 125
if [ -n "$2" ]; then
    (
        for _dlapp_node in /dev/nvidia[0-9]*; do
            [ -e "$_dlapp_node" ] || continue
            # crw-rw-rw- 1 root root 195, 4 ...
            set -- $(ls -ln "$_dlapp_node" 2>/dev/null)
            echo "node ${_dlapp_node#/dev/nvidia} ${5%,}:${6-}"
        done
        if command -v nvidia-smi >/dev/null 2>&1; then
            nvidia-smi -L 2>&1 </dev/null
            echo "smi $?"
        else
            echo "smi none"
        fi
        echo end
    ) >"$2"
    read -r _dlapp_word <&3 && [ "$_dlapp_word" = go ] || exit 125
else
    for _dlapp_node in /dev/nvidia[0-9]*; do
        if [ -e "$_dlapp_node" ]; then
            echo "Error: the container sees $_dlapp_node, although no GPU was asked for" >&2
            exit 125
        fi
    done
fi
unset _dlapp_word _dlapp_node
# kill -1 means all processes that there are, so this must be a pid namespace of our own.
[ "$PPID" = 1 ] || exit 125
(
    trap '' TERM INT HUP QUIT PIPE
    exec </dev/null >/dev/null 2>&1
    while read -r _dlapp_word <&3; do :; done
    kill -s KILL -- -1
) &
# The start file and the prompt say that this is dlapp-shell.
if command -v bash >/dev/null 2>&1; then exec bash --rcfile "$DLAPP_SHELL_DIR/bashrc"; fi
export PS1='(dlapp) $ '
exec sh
