# The first process of every payload; plain POSIX sh: dash, bash and busybox run it alike.
#
#   sh wrapper.sh MODE LIFE OUT ERR EXIT HOW SCRIPT [ARGUMENT...]
#
# LIFE  the FIFO whose writing end the task holds; "go" is in it already. No writer left means: end everything.
# MODE  exec: become the payload; a guardian is our parent, has the exit status and ends what is left.
#       wait: stay as the payload's parent. Only in a container of our own, below its init: on "term" in the FIFO those
#       processes get SIGTERM that are due (on "abort" all get SIGABRT) and their end is waited for, on "kill" or its
#       closing all get SIGKILL; EXIT is told the exit code. Without an order, processes that may still write the output
#       have a moment then, and EXIT is told how many are left, and the name of the first. Then the FIFO "ending" beside
#       LIFE, if there is one, is told "end", and "done" in LIFE is waited for: as long as we live the container's
#       counters can be read. No GPU was asked for, so none may be seen.
#       look: the same, but first EXIT is told which GPUs are seen, up to a line "end", and another "go" is waited for.
# HOW   shell: run SCRIPT by bash, or sh; program: execute it; a path: the same, its interpreter must be there;
#       command: SCRIPT is a command, which PATH has, or a path; command:DIRECTORY: the same, started there.
#
# Variables of the user's environment must arrive as they are, hence the names.
_dlapp_mode=$1 _dlapp_life=$2 _dlapp_out=$3 _dlapp_err=$4 _dlapp_exit=$5 _dlapp_how=$6 _dlapp_script=$7
shift 7
case $_dlapp_how in command | command:*) ;; *) _dlapp_script=./$_dlapp_script ;; esac
unset TINI_KILL_PROCESS_GROUP
exec </dev/null 3<"$_dlapp_life" || exit 125
# A task that is gone leaves no word: then nothing is started.
read -r _dlapp_word <&3 && [ "$_dlapp_word" = go ] || exit 125

case $_dlapp_mode in
look)
    (
        for _dlapp_node in /dev/nvidia[0-9]*; do
            [ -e "$_dlapp_node" ] || continue
            # crw-rw-rw- 1 root root 195, 4 ...
            set -- $(ls -ln "$_dlapp_node" 2>/dev/null)
            echo "node ${_dlapp_node#/dev/nvidia} ${5%,}:${6-}"
        done
        if command -v nvidia-smi >/dev/null 2>&1; then
            nvidia-smi -L 2>&1
            echo "smi $?"
        else
            echo "smi none"
        fi
        echo end
    ) >"$_dlapp_exit"
    read -r _dlapp_word <&3 && [ "$_dlapp_word" = go ] || exit 125
    _dlapp_mode=wait
    ;;
wait)
    for _dlapp_node in /dev/nvidia[0-9]*; do
        if [ -e "$_dlapp_node" ]; then
            echo "sees $_dlapp_node" >"$_dlapp_exit"
            exit 125
        fi
    done
    ;;
esac

# Variables and arguments that were not known when the container was made; only the task writes this file before the
# payload runs.
if [ "$_dlapp_mode" = wait ] && [ -f /dlapp/run/env.sh ]; then
    . /dlapp/run/env.sh || exit 125
fi

# A payload that hangs is ended by SIGABRT; its memory is not written to a disk for that.
[ -z "${DLAPP_HANG_TIMEOUT-}" ] || ulimit -S -c 0

case $_dlapp_how in
shell)
    if command -v bash >/dev/null 2>&1; then set -- bash "$_dlapp_script" "$@"; else set -- sh "$_dlapp_script" "$@"; fi
    ;;
program | command)
    set -- "$_dlapp_script" "$@"
    ;;
command:*)
    if ! cd "${_dlapp_how#command:}"; then
        echo "no workdir" >"$_dlapp_exit"
        exit 127
    fi 2>/dev/null
    set -- "$_dlapp_script" "$@"
    ;;
*)
    if ! [ -x "$_dlapp_how" ]; then
        echo "no interpreter" >"$_dlapp_exit"
        exit 127
    fi
    set -- "$_dlapp_script" "$@"
    ;;
esac

if [ "$_dlapp_mode" = exec ]; then
    exec "$@" >>"$_dlapp_out" 2>>"$_dlapp_err"
fi

# From here on kill -1 is used. It means all processes that there are, so this must be a pid namespace of our own.
[ "$_dlapp_mode" = wait ] && [ "$PPID" = 1 ] || exit 125
_dlapp_soft=
trap '_dlapp_soft=1' USR1
# A payload may signal its whole process group, which we are part of.
trap : TERM INT HUP QUIT ABRT

# Whether SIGTERM would end this process, and it waits for others: it is their parent, or reads a pipe.
_dlapp_waits() {
    case $_dlapp_parents in *" $1 "*) ;; *) [ -p "/proc/$1/fd/0" ] || return ;; esac
    while read -r _dlapp_key _dlapp_mask; do
        # Blocked, ignored or caught: bit 14 of the mask.
        case $_dlapp_key$_dlapp_mask in Sig[BIC]*[4-7c-f]???) return 1 ;; esac
    done <"/proc/$1/status"
}

# Send SIGTERM to the processes that are due, as runtime/guardian.py does.
_dlapp_terminate() {
    _dlapp_parents=' ' _dlapp_running='' _dlapp_due=''
    read -r _dlapp_own </proc/self/stat
    for _dlapp_pid in /proc/[0-9]*; do
        read -r _dlapp_stat <"$_dlapp_pid/stat" || continue
        _dlapp_pid=${_dlapp_pid#/proc/}
        set -- ${_dlapp_stat##*) }
        [ "$1" != Z ] || continue
        _dlapp_parents="$_dlapp_parents$2 "
        case $_dlapp_pid in 1 | $$ | "${_dlapp_own%% *}") continue ;; esac
        _dlapp_running="$_dlapp_running $_dlapp_pid"
        case $_dlapp_told in *" $_dlapp_pid "*) _dlapp_due=none ;; esac
    done
    if [ -n "$_dlapp_due" ]; then
        _dlapp_rest=''
        return
    elif [ -n "$_dlapp_told" ] && [ -z "$_dlapp_rest" ]; then
        _dlapp_rest=1
        return
    elif [ -z "$_dlapp_told" ]; then
        for _dlapp_pid in $_dlapp_running; do
            _dlapp_waits "$_dlapp_pid" || _dlapp_due="$_dlapp_due $_dlapp_pid"
        done
    fi
    _dlapp_told=" ${_dlapp_due:-$_dlapp_running} " _dlapp_rest=''
    kill -s TERM $_dlapp_told
}

(
    trap '' TERM INT HUP QUIT ABRT USR1 PIPE
    exec >/dev/null 2>&1
    _dlapp_told='' _dlapp_rest=''
    while read -r _dlapp_word <&3; do
        [ "$_dlapp_word" = kill ] && break
        [ "$_dlapp_word" = done ] && continue
        kill -s USR1 $$
        if [ "$_dlapp_word" = abort ]; then kill -s ABRT -- -1; else _dlapp_terminate; fi
    done
    kill -s KILL -- -1
) &
_dlapp_reader=$!

# Set _dlapp_left to the number of other processes, _dlapp_name to the first one's program, and _dlapp_writes if one of
# them holds the payload's output, reads a pipe, or is ending and may have started another one, as in
# runtime/guardian.py. A process that is ending has no open files. One without a parent here is a user's command.
_dlapp_look() {
    _dlapp_left=0 _dlapp_name='' _dlapp_writes=''
    for _dlapp_pid in /proc/[0-9]*; do
        case ${_dlapp_pid#/proc/} in 1 | $$ | "$_dlapp_reader") continue ;; esac
        read -r _dlapp_word <"$_dlapp_pid/stat" || continue
        case ${_dlapp_word##*) } in Z* | ?' 0 '*) continue ;; esac
        [ ! -p "$_dlapp_pid/fd/0" ] || _dlapp_writes=1
        for _dlapp_fd in "$_dlapp_pid"/fd/*; do
            if [ "$_dlapp_fd" -ef "$_dlapp_out" ] || [ "$_dlapp_fd" -ef "$_dlapp_err" ]; then _dlapp_writes=1; fi
        done
        set -- "$_dlapp_pid"/fd/*
        if [ -h "$1" ]; then
            [ "$_dlapp_left" != 0 ] || read -r _dlapp_name <"$_dlapp_pid/comm"
            _dlapp_left=$((_dlapp_left + 1))
        else
            _dlapp_writes=1
        fi
    done
} 2>/dev/null
# In the foreground: in the background a shell without a terminal would have it ignore SIGINT for good. In a subshell,
# so that this shell's own word on how it ended ("Killed") does not get into the payload's stderr.
(exec "$@" >>"$_dlapp_out" 2>>"$_dlapp_err")
_dlapp_code=$?
echo "exited $_dlapp_code" >"$_dlapp_exit"
if [ -n "$_dlapp_soft" ]; then
    # What the payload started has the grace time too. Three are ours: init, this shell, and the one in the background.
    while set -- /proc/[0-9]* && [ $# -gt 3 ]; do sleep 0.1 2>/dev/null || sleep 1 || break; done
else
    # Two seconds, with a sleep that knows no fractions, too.
    _dlapp_tenths=0
    while _dlapp_look && [ -n "$_dlapp_writes" ] && [ "$_dlapp_tenths" -lt 20 ]; do
        if sleep 0.1 2>/dev/null; then _dlapp_tenths=$((_dlapp_tenths + 1)); else
            sleep 1 || break
            _dlapp_tenths=$((_dlapp_tenths + 10))
        fi
    done
    [ "$_dlapp_left" = 0 ] || printf 'left %s %s\n' "$_dlapp_left" "$_dlapp_name" >>"$_dlapp_exit"
fi
_dlapp_ending=${_dlapp_life%/*}/ending
if [ -p "$_dlapp_ending" ]; then
    # From now on this shell reads LIFE. To open a FIFO both ways does not wait for somebody at the other end.
    kill -s KILL "$_dlapp_reader"
    wait "$_dlapp_reader"
    echo end 1<>"$_dlapp_ending" && while read -r _dlapp_word <&3; do
        case $_dlapp_word in kill | done) break ;; esac
    done
fi 2>/dev/null
exit "$_dlapp_code"
