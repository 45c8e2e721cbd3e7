"""A process in place of dlapp's own: the embedded engine's tests start it as ApplicationMaster, task and cleaner.

What an application does is in its own first argument word by word (``spec.args``), so every test says it itself:

    finish          register, be done
    sleep           register, wait to be killed
    die             register, be killed by SIGKILL
    raise           register, end with a traceback
    never           end before it registers
    never-again     register, be killed by SIGKILL; the next attempt ends before it registers
    quick           be done, without the classes whose import takes longest
    commit-die      register, claim the commit, be killed by SIGKILL
    wait FILE       register, be done when FILE is there
    pause SECONDS   be done after that time, without the classes whose import takes longest

A runner reads the operator's policy from ``node.yaml`` beside the state directory, if there is one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main(argv: list[str]) -> int:
    """Be what the first word says."""
    if argv[0] == "runner":
        from dlapp.cluster.local import queue_state
        from dlapp.cluster.local.runner import main as runner
        from dlapp.cluster.local.runner.process import main as run

        runner.STAY_S = 120.0  # a test that is stopped for a while still finds the process that was started ahead

        policy = os.path.join(os.path.dirname(argv[argv.index("--state") + 1]), "node.yaml")
        if os.path.exists(policy):
            queue_state.POLICY_FILE = policy
        return run(argv[1:])
    if argv[0] == "task":
        return task(argv)
    if argv[1] == "--spare-fd":
        from dlapp.cluster.local.runner.prefork import wait_for_assignment

        words = wait_for_assignment(int(argv[2]))
        return 0 if words is None else main(["am", *words])
    home = argv[argv.index("--home") + 1]
    attempt = int(argv[argv.index("--attempt") + 1])
    holds = argv[argv.index("--hold-fds") + 1]
    with open(os.path.join(home, "submission.json"), encoding="utf-8") as file:
        args = json.load(file)["spec"]["args"]
    witness(home, f"start {attempt}\n")
    if args[0] in ("quick", "pause"):
        time.sleep(float(args[1]) if args[0] == "pause" else 0.0)
        return quick(home)
    is_crash_settlement = "--aftermath" in argv
    if args[0] == "never" or (args[0] == "never-again" and attempt > 1 and not is_crash_settlement):
        raise SystemExit("no ApplicationMaster today")

    from dlapp.cluster.local.am_engine import LocalAmEngine
    from dlapp.values.report import Cause, FinalStatus

    alive = int(argv[argv.index("--alive-fd") + 1])
    fds = [int(fd) for fd in holds.split(",") if fd]
    engine = LocalAmEngine(home, attempt, alive, fds, lambda: None, is_crash_settlement=is_crash_settlement)
    if is_crash_settlement:
        if args[0] == "aftermath-dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.exists(os.path.join(home, "commit.json")):
            engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "the commit was finished after it")
        elif os.path.exists(os.path.join(home, "kill.json")):
            engine.finish(FinalStatus.KILLED, Cause.KILLED, "killed, no output kept")
        else:
            engine.finish(FinalStatus.FAILED, Cause.FAILED, engine.why_it_died())
        return 0
    engine.register("http://127.0.0.1:9")
    witness(home, "registered\n")
    view(home)
    if os.path.exists(os.path.join(home, "commit.json")):
        engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "the commit of the attempt before was finished")
        return 0
    match args[0]:
        case "sleep":
            time.sleep(600)
        case "die" | "aftermath-dies" | "never-again":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise RuntimeError("the roof is on fire")
        case "commit-die":
            with open(os.path.join(home, "commit.json"), "w", encoding="utf-8") as file:
                file.write("{}")
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            while not os.path.exists(args[1]):
                time.sleep(0.005)
    engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
    return 0


def quick(home: str) -> int:
    """Return what register and finish leave behind."""
    from dlapp.cluster.local.outcome import ended, write_outcome
    from dlapp.system.clock import now_ms

    with open(os.path.join(home, "am.json"), "w", encoding="utf-8") as file:
        file.write('{"control_url": "http://127.0.0.1:9"}')
    witness(home, "registered\n")
    write_outcome(home, ended("FINISHED", "SUCCEEDED", "succeeded", "", now_ms()))
    return 0


def view(home: str) -> None:
    """A view as an ApplicationMaster writes it, with a container that runs."""
    name = os.path.basename(home)
    container = {
        "container_id": f"container_{name.removeprefix('application_')}_01_000002",
        "role": "worker",
        "role_index": 0,
        "index": 0,
        "phase": "running",
    }
    value = {"application_id": name, "attempt": 1, "state": "RUNNING", "phase": "running", "containers": [container]}
    temporary = os.path.join(home, f".view.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(temporary, os.path.join(home, "view.json"))


def witness(home: str, line: str) -> None:
    """Leave a trace that only grows, for who counts starts."""
    fd = os.open(os.path.join(home, "witness"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{time.time_ns()} {line}".encode())
    os.close(fd)


def task(argv: list[str]) -> int:
    """A task that does what ``do.json`` in the application's directory says."""
    home = argv[argv.index("--home") + 1]
    with open(os.path.join(home, "launch.json"), encoding="utf-8") as file:
        launch = json.load(file)
    keep = [int(fd) for fd in argv[argv.index("--keep-fds") + 1].split(",")]
    what = launch["env"]["DO"]
    witness(home, f"task {os.getpid()} {keep}\n")
    while what == "load" and not os.path.exists(os.path.join(home, "loaded")):
        time.sleep(0.005)
    os.close(int(argv[argv.index("--starting-fd") + 1]))
    match what:
        case "exit":
            return int(launch["env"].get("CODE", "0"))
        case "wait" | "load":
            time.sleep(600)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        case "leave":
            # A process that outlives its task, with the task's locks, for half a second.
            if os.fork() == 0:
                time.sleep(0.5)
                witness(home, "left\n")
                os._exit(0)
            return 0
        case "stay":
            # One that outlives it with the locks for ever, as where task and guardians were killed in one moment.
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)
                os._exit(0)
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
