"""Events that the ApplicationMaster tells the user of; the outbox sees to it that each is sent once."""

from __future__ import annotations

from dlapp.am.model.events import Notify
from dlapp.values.messages import Fault, PayloadStatus, Phase
from dlapp.values.spec import Gang, RoleSpec
from tests.am.driving import APPLICATION, START_MS, Driver, result


def notifications(am: Driver) -> list[tuple[str, str]]:
    return [(event.event, event.key) for event in am.of(Notify, am.all)]


def test_the_start_of_the_program_is_notified_once() -> None:
    am = Driver(RoleSpec(instances=2))
    assert notifications(am) == []
    am.running(2, 3)
    am.wait(5)
    assert notifications(am) == [("running", "")]


def test_a_next_attempt_and_a_restart_of_a_gang_have_keys_of_their_own() -> None:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL)
    am.running_gang(2, 3)
    am.report(2, Phase.RUNNING, failure=result(Fault.USER, 1))
    am.wait(40)
    assert notifications(am) == [("running", ""), ("restarted", "worker-1")]
    why = "container 0 (worker 0): exit code 1"
    assert am.of(Notify, am.all)[-1].text == f"the programs of a gang start again (role worker, restart 1): {why}"
    after = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL, attempt=2, former=am.journal())
    after.wait(5)
    assert ("restarted", "attempt-2") in notifications(after)


def test_a_long_wait_for_containers_is_notified_once_per_wait() -> None:
    am = Driver(RoleSpec(instances=2, retries=3))
    am.state.notices.waiting_after_ms = 60_000
    am.running(2)
    am.wait(55)
    assert notifications(am) == [("running", "")]
    am.wait(60)
    assert notifications(am) == [("running", ""), ("waiting", "queue")]
    am.running(3)
    am.wait(60)
    am.ended(3, 1)  # another one is wanted
    am.wait(300)
    (_, _, (event, key)) = notifications(am)
    assert event == "waiting"
    assert int(key) > START_MS + 60_000


def test_waiting_is_not_notified_without_a_threshold() -> None:
    am = Driver()
    am.wait(600)
    assert notifications(am) == []


def test_a_hang_notification_names_the_container() -> None:
    am = Driver(hang_timeout_s=60.0)
    am.running(2)
    am.report(2, Phase.RUNNING, payload=PayloadStatus(step=1, lines=1))
    for _ in range(7):
        am.wait(10)
        am.report(2, Phase.RUNNING, payload=PayloadStatus(step=1, lines=1))
    assert notifications(am) == [("running", ""), ("hang", str(am.id(2)))]
    assert str(APPLICATION)[len("application") :] in notifications(am)[1][1]
