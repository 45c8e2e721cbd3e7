# The payload of a member: start what the head's mpirun wants to run here, until this container is ended.
#
# The task writes three lines for each command into the FIFO "start": its number, its directory, and the command. Its
# number and exit status go back through the FIFO "ended".

trap 'exit 0' TERM
cd "$DLAPP_WORKSPACE" || exit
. "$DLAPP_DIR/mpi/node.sh"
exec 3<>"$DLAPP_DIR/mpi/start" 4<>"$DLAPP_DIR/mpi/ended"
while IFS= read -r _dlapp_number && IFS= read -r _dlapp_where && IFS= read -r _dlapp_command; do
    (
        trap - TERM
        # Two daemons that start at the same moment both make their user's directory, and the second fails.
        OMPI_MCA_orte_tmpdir_base=$(mktemp -d) && export OMPI_MCA_orte_tmpdir_base &&
            cd "$_dlapp_where" && sh -c "$_dlapp_command" 3<&- 4>&-
        echo "$_dlapp_number $?" >&4
    ) &
done <&3
