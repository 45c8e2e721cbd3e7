"""dlapp-launcher: check, pack and submit an application; on request wait for its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from dlapp.errors import EXIT_INTERRUPTED, UsageError
from dlapp.tools.common import (
    ProgramCommand,
    command,
    complete_id,
    json_option,
    note,
    override_options,
    print_json,
    say,
)

if TYPE_CHECKING:
    from dlapp.application.description import Snapshot
    from dlapp.application.overrides import Overrides
    from dlapp.client import Client
    from dlapp.client.application import Application
    from dlapp.values.ids import ApplicationId

    Submit = Callable[..., Application]

ID_LINE = "DL App ID = "


@command("dlapp-launcher", example="dlapp-launcher --wait dl_app.properties", kind=ProgramCommand)
@click.argument("file", metavar="FILE", type=click.Path(), required=False)
@click.option("--wait", is_flag=True, help="Show the progress until the application ends, and exit with its code.")
@click.option("--print-spec", is_flag=True, help="Print the specification with all defaults as JSON; submit nothing.")
@click.option("--plan", is_flag=True, help="Show what a submission would pack, request and wait for; submit nothing.")
@click.option("--init", is_flag=True, help="Write FILE, with a comment on each key; submit nothing.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of properties files, for editors; needs no FILE.")
@click.option(
    "--resume",
    metavar="ID",
    shell_complete=complete_id(),
    help="Continue from the newest checkpoint of an ended application; without FILE with its own workspace.",
)
@click.option(
    "--again",
    metavar="ID",
    shell_complete=complete_id(),
    help="Submit an application once more, from its beginning; without FILE with its own workspace.",
)
@click.option(
    "--trial", metavar="N", type=click.IntRange(min=0), help="Run the program of a sweep once, as its trial N."
)
@click.option("--of", "sweep", metavar="ID", shell_complete=complete_id(), help="The sweep of --trial.")
@click.option("--hold", is_flag=True, help="Do not start it before dlapp-release.")
@click.option("--cluster", metavar="NAME", help="Submit to this engine instead of the configured one.")
@override_options("a key")
@json_option("Print the result as JSON; the lines for people go to stderr.")
def main(
    file: str | None,
    wait: bool,
    print_spec: bool,
    plan: bool,
    init: bool,
    schema: bool,
    resume: str | None,
    again: str | None,
    trial: int | None,
    sweep: str | None,
    hold: bool,
    cluster: str | None,
    settings: Sequence[str],
    variables: Sequence[str],
    as_json: bool,
    program_args: tuple[str, ...] | None,
) -> int:
    """Run the application that the properties file FILE describes.

    When its id is printed, it runs independently of this command, the terminal and the login. The words after -- are
    the program's arguments, in place of user_shell_args.
    """
    if schema:
        return _print_schema(
            alone=not (file or init or wait or print_spec or plan or as_json or hold or resume or again or sweep)
        )
    if (trial is None) != (sweep is None):
        raise UsageError("--trial N and --of ID go together")
    if sweep is not None and file is not None:
        raise UsageError(f"--trial runs the recorded program of {sweep}, and takes no FILE")
    origins = {"--resume": resume, "--again": again, "--trial": sweep}
    given_origins = [option for option, application in origins.items() if application is not None]
    if file is None and (init or not given_origins):
        raise UsageError("FILE is missing")
    if init:
        assert file is not None
        flags = wait or print_spec or plan or as_json or hold
        _init(file, alone=not (flags or settings or variables or program_args or given_origins))
        return 0
    if given_origins:
        _check_resubmission(given_origins, cluster, submits_nothing=print_spec or plan)
    from dlapp.application.overrides import Overrides, read_env_options, read_set_options
    from dlapp.client import Client

    given = read_set_options(settings) | ({"application.hold": "true"} if hold else {})
    overrides = Overrides(given, read_env_options(variables, os.environ), program_args)
    client = Client(cluster=cluster, note=note)
    if given_origins:
        submit: Submit
        if trial is not None and sweep is not None:
            submit = partial(client.again_as_trial, sweep, trial)
        else:
            submit = partial(client.resume, resume, file) if resume else partial(client.again, again or "", file)
        return _submit_and_wait(client, submit, overrides, wait=wait, as_json=as_json)
    assert file is not None
    if plan:
        if wait or print_spec:
            raise UsageError("--plan submits nothing and prints more than the specification; give it alone")
        return _plan(client, file, overrides, as_json)
    return launch(client, file, overrides, wait=wait, print_spec=print_spec, as_json=as_json)


def _print_schema(*, alone: bool) -> int:
    from dlapp.launcher.schema import schema

    if not alone:
        raise UsageError("--schema is the same for every file; it takes no FILE and no other option")
    print_json(schema())
    return 0


def _check_resubmission(options: Sequence[str], cluster: str | None, *, submits_nothing: bool) -> None:
    option, *others = options
    if others:
        raise UsageError(f"{option} and {others[0]} exclude each other")
    if submits_nothing:
        raise UsageError(f"{option} is not possible together with --print-spec or --plan")
    if cluster is not None:
        raise UsageError(f"{option} submits to the engine of the application, so --cluster is not possible")


def _init(file: str, *, alone: bool) -> None:
    from dlapp.launcher.starter_file import write_starter_file

    if not alone:
        raise UsageError("--init only writes the file; it takes no other option")
    program = write_starter_file(file)
    say(f"{file} runs {program}" if program else f"{file} is written; it was not found which program it is to run")
    change = "" if program else f"change user_shell_script in {file}, then "
    say(f"next : {change}dlapp-launcher --wait {file}")


def _plan(client: Client, file: str, overrides: Overrides, as_json: bool) -> int:
    from dlapp.system import clock
    from dlapp.tools.display.plan import plan_lines

    plan = client.plan_json(file, overrides=overrides)
    for line in plan["notes"]:
        _remark(line)
    if as_json:
        print_json(plan)
    else:
        say(*plan_lines(plan, clock.now_ms()))
    return 0


def launch(
    client: Client, file: str | Snapshot, overrides: Overrides, *, wait: bool, print_spec: bool, as_json: bool
) -> int:
    """Submit a properties file and, if requested, wait; dlapp-run does the same with the shell's file.

    Args:
        client: the client.
        file: its path, or the file as saved when a shell was opened.
        overrides: values that override the file's.
        wait: follow the application until it ends.
        print_spec: print the specification and submit nothing.
        as_json: print JSON.

    Returns:
        The exit code.
    """
    if wait and print_spec:
        raise UsageError("--print-spec submits nothing, so --wait has nothing to wait for")
    if print_spec:
        from dlapp.launcher import submit

        print_json(submit.print_spec(file, client.config, client.engine, overrides))
        return 0
    return _submit_and_wait(client, partial(client.submit, file), overrides, wait=wait, as_json=as_json)


def _submit_and_wait(client: Client, submit: Submit, overrides: Overrides, *, wait: bool, as_json: bool) -> int:
    application_id = _submit(submit, overrides, as_json)
    if application_id is None:
        return EXIT_INTERRUPTED
    if wait:
        return _wait(client, application_id, as_json)
    if as_json:
        running, completed = client.dashboard_urls(application_id)
        urls = {"running": running, "completed": completed}
        print_json({"application_id": str(application_id), "dashboard": urls})
    return 0


def _remark(line: str) -> None:
    from dlapp.application.description import WARNING

    note(line if line.startswith(WARNING) else f"note: {line}")


def _submit(submit: Submit, overrides: Overrides, as_json: bool) -> ApplicationId | None:
    """Submit; return None if interrupted."""
    from dlapp.tools.display.progress import copying_bar

    submitted = ""

    def print_line(line: str) -> None:
        nonlocal submitted
        if line.startswith(ID_LINE):
            submitted = line.removeprefix(ID_LINE)
        (note if as_json else say)(line)

    try:
        with copying_bar("packing") as progress:
            return submit(overrides=overrides, say=print_line, note=_remark, progress=progress).application_id
    except KeyboardInterrupt:
        if submitted:
            print_return_commands(submitted)
        else:
            note("Interrupted while submitting (dlapp-list shows if the application is there)")
        return None


def _wait(client: Client, application_id: ApplicationId, as_json: bool) -> int:

    from dlapp.client.exit_status import exit_code
    from dlapp.system import clock
    from dlapp.tools.display.progress import waiting_display
    from dlapp.tools.display.status import answer_lines, read_best_trial, read_error_tail
    from dlapp.tools.display.view import derived
    from dlapp.values.serialization import to_json

    try:
        with waiting_display() as on_change:
            end = client.wait(application_id, lambda view: on_change(to_json(view)))
    except KeyboardInterrupt:
        print_return_commands(str(application_id))
        return EXIT_INTERRUPTED
    now_ms, view = clock.now_ms(), to_json(end)
    unstored = client.unstored(view)
    answer = answer_lines(view, now_ms, read_error_tail(client, view), unstored, read_best_trial(client, view))
    if as_json:
        for line in answer:
            note(line)
        print_json({**view, **derived(view, now_ms), "logs": client.log_urls(view), "unstored": unstored})
    else:
        say(*answer)
    return exit_code(end)


def print_return_commands(application_id: str) -> None:
    """Print the next commands after Ctrl-C: the application continues to run."""
    note(f"Detached: {application_id} continues without this command.")
    note(f"* dlapp-logs -f {application_id}   to follow it again")
    note(f"* dlapp-status {application_id}   to see where it is")
    note(f"* dlapp-softkill {application_id}   to end it and keep its output")
    note(f"* dlapp-kill {application_id}   to end it and discard its output")
