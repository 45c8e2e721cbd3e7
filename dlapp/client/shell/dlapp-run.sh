#!/bin/sh
# dlapp-run, as it is typed inside dlapp-shell. It works in any image: it needs no Python, and of other programs only
# sleep. dlapp-shell outside does the work; this sends it a request and prints the reply.
#
#   requests        a FIFO: we write "<our number> <word>..."
#   reply.<number>  a FIFO made for us: "o <line>" for stdout, "e <line>" for stderr, "x <exit code>" at the end
directory=${DLAPP_SHELL_DIR:-}
if [ -z "$directory" ] || ! [ -p "$directory/requests" ]; then
    echo "Error: dlapp-run works inside dlapp-shell only (outside it is: dlapp-launcher FILE)" >&2
    exit 2
fi
# A word of the request has letters, digits and _.=- only; all else is %XX, and the empty word is %.
LC_ALL=C
request=$$
for word do
    case $word in
    '') request="$request %" ;;
    *[!\ -~]*)
        echo "Error: dlapp-run passes on printable ASCII characters only" >&2
        exit 2
        ;;
    *[!A-Za-z0-9_.=-]*)
        request="$request "
        while [ -n "$word" ]; do
            rest=${word#?}
            char=${word%"$rest"}
            case $char in
            [A-Za-z0-9_.=-]) request=$request$char ;;
            *) request=$request$(printf '%%%02X' "'$char") ;;
            esac
            word=$rest
        done
        ;;
    *) request="$request $word" ;;
    esac
done
if [ ${#request} -gt 4000 ]; then
    echo "Error: these options are too long for dlapp-run; write them into the properties file" >&2
    exit 2
fi

number=$$
reply=$directory/reply.$number
application=
interrupted() {
    if [ -n "$application" ]; then
        echo "Detached: $application continues without this command (dlapp-status $application shows it;" \
            "dlapp-softkill $application ends it and keeps its output, dlapp-kill $application discards it)" >&2
    else
        echo "Interrupted while submitting (dlapp-list shows if the application is there)" >&2
    fi
    exit 130
}
trap interrupted INT

printf '%s\n' "$request" >"$directory/requests" || exit 5
tries=0  # for a minute: the request was taken, and a machine that is busy answers late
until [ -p "$reply" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 1200 ]; then
        echo "Error: dlapp-shell does not answer" >&2
        exit 5
    fi
    sleep 0.05 2>/dev/null || sleep 1 || exit 5
done
exec 3<"$reply" || exit 5
while IFS= read -r line <&3; do
    case $line in
    "o DL App ID = "*)
        application=${line#"o DL App ID = "}
        printf '%s\n' "${line#o }"
        ;;
    "o "*) printf '%s\n' "${line#o }" ;;
    "e "*) printf '%s\n' "${line#e }" >&2 ;;
    "x "*) exit "${line#x }" ;;
    esac
done
echo "Error: dlapp-shell ended before it could answer" >&2
exit 5
