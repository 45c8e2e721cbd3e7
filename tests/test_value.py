"""Classes with named fields."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import typing

import pytest

import dlapp
from dlapp.value import NamedTuple, Record, Value, field, fields, replace


class Point(Value):
    x: int
    y: int = 0
    label: str = field(default="", compare=False)


class Secret(Value, kw_only=True):
    name: str
    token: str = field(repr=False)
    tags: list[str] = field(default_factory=list)


class Even(Value):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Nothing(Value):
    pass


class Labelled(Point):
    width: int = 1


class Counter(Record):
    count: int = 0


def test_fields_are_set_by_position_name_or_default() -> None:
    assert (Point(1).x, Point(1).y) == (1, 0)
    assert Point(1, y=2) == Point(y=2, x=1) == Point(1, 2)
    assert Secret(name="a", token="b").tags == []


def test_a_default_that_is_made_belongs_to_one_instance() -> None:
    first, second = Secret(name="a", token=""), Secret(name="a", token="")
    first.tags.append("x")
    assert second.tags == []


@pytest.mark.parametrize(
    "call",
    [
        "Point()",
        "Point(1, 2, '', 4)",
        "Point(1, x=2)",
        "Point(1, z=2)",
        "Point(z=3)",
        "Secret('a', 'b')",
        "Secret(name='a')",
        "Secret(name='a', token='b', more=1)",
        "replace(Point(1), z=3)",
    ],
)
def test_a_field_too_many_or_too_few_is_a_type_error(call: str) -> None:
    with pytest.raises(TypeError, match=r"Point|Secret"):
        eval(call)


def test_a_value_cannot_be_changed_and_a_record_can() -> None:
    point, counter = Point(1), Counter()
    with pytest.raises(AttributeError, match="x"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="x"):
        del point.x
    with pytest.raises(AttributeError):
        point.other = 2
    counter.count += 1
    assert counter.count == 1
    with pytest.raises(AttributeError):
        counter.other = 2  # type: ignore[attr-defined]


def test_values_are_equal_by_class_and_fields() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(1, 3)
    assert Point(2) != Even(2)
    assert Point(1, label="a") == Point(1, label="b")
    assert Nothing() == Nothing()
    assert len({Point(1), Point(1), Point(2), Nothing(), Nothing()}) == 3
    assert Counter() != Counter()


def test_a_subclass_has_the_fields_of_its_base_and_its_own() -> None:
    assert replace(Labelled(1, 2, width=3), y=5) == Labelled(1, 5, "", 3)
    assert Labelled(1) != Point(1)


def test_programs_change_a_spec_by_the_public_name() -> None:
    assert dlapp.replace(dlapp.Resources(memory_mib=1, vcores=1, gcores=0), vcores=2).vcores == 2


def test_the_check_of_a_class_also_holds_for_a_changed_copy() -> None:
    assert replace(Even(2), number=4) == Even(4)
    with pytest.raises(ValueError, match="3 is odd"):
        replace(Even(2), number=3)


def test_the_text_form_shows_no_secret() -> None:
    assert repr(Secret(name="a", token="b")) == "Secret(name='a', tags=[])"


def test_a_value_survives_pickle_and_copy() -> None:
    value = Secret(name="a", token="b", tags=["c"])
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == copy.deepcopy(value) == value


def test_a_class_lists_its_fields_and_matches_by_them() -> None:
    assert [name for name, one in fields(Secret).items() if one.required] == ["name", "token"]
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_no_process_of_a_run_loads_dataclasses_or_inspect() -> None:
    modules = (
        "dlapp.launcher.submit",
        "dlapp.cluster.local.client",
        "dlapp.cluster.local.runner",
        "dlapp.am.decisions.master, dlapp.am.application_dir.local, dlapp.cluster.local.am_engine",
        "dlapp.runtime.guardian, dlapp.task.steps",
        "dlapp.cluster.yarn.task_container",
    )
    for module in modules:
        code = f"import sys, {module}; print(*sys.modules.keys() & {{'dataclasses', 'inspect', 'ast', 'tokenize'}})"
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "\n", module


class Place(NamedTuple):
    """A place."""

    name: str
    at: tuple[int, int] = (0, 0)

    @property
    def text(self) -> str:
        return f"{self.name} {self.at}"


def test_a_named_tuple_is_that_of_python() -> None:
    """Fields, defaults, methods and the docstring; it can be copied, pickled and compared, and cannot be changed."""
    one = Place("a")
    assert one == Place(name="a", at=(0, 0)) == ("a", (0, 0))
    assert (one.text, one._replace(at=(1, 2)).text, Place.__doc__) == ("a (0, 0)", "a (1, 2)", "A place.")
    assert repr(one) == "Place(name='a', at=(0, 0))"
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one
    assert Place._fields == ("name", "at")
    assert typing.get_type_hints(Place) == {"name": str, "at": tuple[int, int]}
    with pytest.raises(TypeError):
        Place()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        one.name = "b"  # type: ignore[misc]
