# The first process of a shell in a container, below Docker's init; plain POSIX sh.
#
#   sh shell.sh LIFE
#
# LIFE is the FIFO whose writing end dlapp-shell holds; "go" is in it already. No writer left means: end everything.
exec 3<"$1" || exit 125
read -r _dlapp_word <&3 && [ "$_dlapp_word" = go ] || exit 125
unset _dlapp_word
# kill -1 means all processes that there are, so this must be a pid namespace of our own.
[ "$PPID" = 1 ] || exit 125
(
    trap '' TERM INT HUP QUIT PIPE
    exec </dev/null >/dev/null 2>&1
    while read -r _dlapp_word <&3; do :; done
    kill -s KILL -- -1
) &
if command -v bash >/dev/null 2>&1; then exec bash; fi
exec sh
