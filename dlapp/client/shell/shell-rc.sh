# bash in dlapp-shell reads this in place of ~/.bashrc: the same, and a prompt that says where one is.
if [ -r ~/.bashrc ]; then . ~/.bashrc; fi
# ~/.bashrc has set the prompt again, without the name of the virtual environment that PATH still leads to.
_dlapp_venv=${VIRTUAL_ENV-}
_dlapp_venv=${_dlapp_venv##*/}
case $_dlapp_venv in
*[!A-Za-z0-9._-]* | '') ;;
*) case $PS1 in *"($_dlapp_venv)"*) ;; *) PS1="($_dlapp_venv) $PS1" ;; esac ;;
esac
PS1="(dlapp) $PS1"
unset _dlapp_venv
