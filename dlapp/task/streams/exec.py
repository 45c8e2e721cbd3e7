"""Streams of the kind ``exec``: a command beside the payload; the head is an `ExecRequest`.

In Docker this process copies the bytes. Beside a plain payload, the guardian has forked a keeper, which takes over the
stream, so the command ends with the payload and no process of the task copies the bytes.
"""

from __future__ import annotations

import contextlib

from dlapp.net.dockerd import Dockerd, DockerError, DockerRefused
from dlapp.net.exec_frames import TRIAL, ExecEnd, ExecRequest, FrameStream, StreamClosed, trial_body
from dlapp.net.streams import NOT_RUNNING, StreamRefused
from dlapp.runtime.payload import PayloadPlace
from dlapp.task.streams.stream import Stream
from dlapp.values.serialization import from_json, to_json

_DOCKER_S = 30.0


def serve(stream: Stream) -> None:
    """Run the command until it or the stream ends.

    Raises:
        StreamRefused: the payload has ended, or Docker refuses.
    """
    request = from_json(ExecRequest, stream.head)
    if stream.place.container:
        _serve_in_docker(stream, request)
        return
    from dlapp.runtime.exec.keeper import send_request

    if stream.keeper is None:
        raise StreamRefused("no command can be run there: a single program does not run in the container", NOT_RUNNING)
    with stream.keeper as keeper, stream.accept() as connection:
        try:
            _send_trial(stream, FrameStream(connection))
            send_request(keeper, to_json(request), connection)
        except (OSError, StreamClosed):
            return  # ended with the payload; the command sees the end of the stream


def _serve_in_docker(stream: Stream, request: ExecRequest) -> None:
    from dlapp.runtime.exec.in_docker import NO_ANSWER, DockerTarget
    from dlapp.runtime.exec.session import ExecSession, send_end
    from dlapp.runtime.payload import lifelines_of

    place = stream.place
    try:
        target = DockerTarget(
            Dockerd(place.docker_host, _DOCKER_S), place.container, lifelines_of(place.directory), request
        )
    except DockerRefused as error:
        is_over = error.status in (404, 409)
        raise StreamRefused(
            "the container does not run any more" if is_over else _start_error(place, error),
            NOT_RUNNING if is_over else "",
        ) from error
    except (DockerError, OSError) as error:
        raise StreamRefused(_start_error(place, error)) from error
    try:
        connection = FrameStream(stream.accept())  # while Docker starts the command
    except BaseException:
        target.end()
        raise
    try:
        _send_trial(stream, connection)
        early = target.begin()
    except StreamClosed:
        target.end()
        connection.close()
        return
    except DockerError as error:
        with contextlib.closing(connection), contextlib.suppress(StreamClosed):
            send_end(connection, ExecEnd(NO_ANSWER, _start_error(place, error)))
        return
    ExecSession(connection, target).run(early)


def _send_trial(stream: Stream, connection: FrameStream) -> None:
    """Tell the client for which trial of a sweep its command runs. Raises StreamClosed."""
    if stream.trial is not None:
        connection.send(TRIAL, trial_body(stream.trial, stream.try_number))


def _start_error(place: PayloadPlace, error: Exception) -> str:
    """Return why Docker has not started a command."""
    if isinstance(error, DockerRefused):
        return f"Docker refused the command: {error}"
    return f"Docker at {place.docker_host} did not start the command: {error}"
