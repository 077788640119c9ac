"""Tests of the names that are suggested for an unknown one."""

from stream.base.errors import closest


def test_names_are_suggested_whatever_their_case() -> None:
    assert closest("BRIGDE", ["Bridge", "kuka"], noun="datasets") == "did you mean 'Bridge'?"


def test_without_a_near_name_all_are_listed_unless_there_are_very_many() -> None:
    assert closest("xyz", ["kuka", "bridge"], noun="datasets") == "datasets there: bridge, kuka"
    assert closest("xyz", [], noun="datasets") == "datasets there: none"
    assert closest("xyz", map(str, range(100, 200)), noun="datasets").endswith(", 139 ...")


def test_a_name_may_be_anything_that_yaml_can_hold() -> None:
    assert closest(3.5, ["3.5.0"], noun="versions") == "did you mean '3.5.0'?"
    assert closest("x" * 10**6, ["bridge"], noun="datasets") == "datasets there: bridge"
