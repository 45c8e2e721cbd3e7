# bash in dlapp-shell reads this in place of ~/.bashrc: the same, and a prompt that says where one is.
_dlapp_workspace=$PWD
# shellcheck disable=SC2086 # names, separated by spaces
_dlapp_variables=$(declare -p $DLAPP_SHELL_VARIABLES)
unset DLAPP_SHELL_VARIABLES
if [ -r ~/.bashrc ]; then . ~/.bashrc; fi
# ~/.bashrc may have set the variables of the program again, PATH, and the directory.
eval "$_dlapp_variables"
case $PATH in "$DLAPP_SHELL_DIR/bin:"*) ;; *) export PATH="$DLAPP_SHELL_DIR/bin:$PATH" ;; esac
builtin cd "$_dlapp_workspace" || echo "dlapp-shell: the workspace is $_dlapp_workspace" >&2
unset _dlapp_variables _dlapp_workspace
# ~/.bashrc has set the prompt again, without the name of the virtual environment that PATH still leads to.
_dlapp_venv=${VIRTUAL_ENV-}
_dlapp_venv=${_dlapp_venv##*/}
case $_dlapp_venv in
*[!A-Za-z0-9._-]* | '') ;;
*) case $PS1 in *"($_dlapp_venv)"*) ;; *) PS1="($_dlapp_venv) $PS1" ;; esac ;;
esac
PS1="(dlapp) $PS1"
unset _dlapp_venv
