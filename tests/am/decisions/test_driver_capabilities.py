"""Requested driver capabilities, on their way from the specification to the tasks."""

from __future__ import annotations

from dlapp.am.model import events
from dlapp.values.spec import RoleSpec
from tests.am.driving import Driver


def test_each_task_gets_the_driver_capabilities_of_its_role() -> None:
    roles = (RoleSpec(name="a"), RoleSpec(name="b", gpu_capabilities=("graphics",)))
    am = Driver(*roles, docker_image="i", gpu_capabilities=("video",))
    for number, request_id in ((2, 1), (3, 2)):
        am.granted(number, request_id=request_id)
        am.hello(number)
    capabilities = [action.assignment.gpu_capabilities for action in am.of(events.Assign, am.all)]
    assert capabilities == [("compute", "utility", "video"), ("compute", "graphics", "utility")]
