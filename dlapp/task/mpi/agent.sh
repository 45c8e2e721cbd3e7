# Open MPI's remote shell in the head: sh agent.sh NODE COMMAND...
#
# In the head itself the command is started here. Else the head's task is asked to have it started: the file request.PID
# says what, and a line in the FIFO "requests" that it is there. The answer is a line in the FIFO answer.PID.

_dlapp_node=$1
shift
_dlapp_here=$DLAPP_DIR/mpi
case $* in
*prted*)
    echo "dlapp: framework=mpi needs Open MPI 4, and this mpirun is of Open MPI 5 or later" >&2
    exit 255
    ;;
esac
if [ "$_dlapp_node" = "$DLAPP_MPI_NODE" ]; then
    . "$_dlapp_here/node.sh"
    # Two daemons that start at the same moment both make their user's directory, and the second fails (Open MPI 4.1).
    OMPI_MCA_orte_tmpdir_base=$(mktemp -d) || exit 255
    export OMPI_MCA_orte_tmpdir_base
    exec sh -c "$*"
fi

# Relative to the workspace, whose path is another one in each container.
where=$(pwd -P) root=$(cd "$DLAPP_WORKSPACE" && pwd -P)
case $where in
"$root") where=. ;;
"$root"/*) where=${where#"$root"/} ;;
esac

umask 077
answer=$_dlapp_here/answer.$$
mkfifo "$answer" || exit 255
exec 3<>"$answer"
printf '%s\n%s\n%s\n' "$_dlapp_node" "$where" "$*" >"$_dlapp_here/request.$$" || exit 255
echo $$ >"$_dlapp_here/requests" || exit 255
read -r status text <&3 || exit 255
[ -z "$text" ] || echo "dlapp: $text" >&2
exit "$status"
