"""The packaged mixtures have the members, weights, offsets and splits of their sources."""

import pytest

from convert.registry.registry import load_registry

REGISTRY = load_registry()
NAMES = sorted(REGISTRY.datasets)


def test_oxe29_has_all_datasets_but_bridge_dataset_with_equal_weights() -> None:
    members = REGISTRY.mixtures["oxe29"].members
    expected = dict.fromkeys(set(NAMES) - {"bridge_dataset"}, 0.03)
    assert {name: member.weight for name, member in members.items()} == expected


def test_oxe29_has_the_offsets_of_the_source_project() -> None:
    offsets = {name: member.offset for name, member in REGISTRY.mixtures["oxe29"].members.items()}
    others = {"language_table": 10, "rt1": 3, "robonet": 10}
    assert offsets == dict.fromkeys(offsets, 5) | others
    assert all(member.offset == member.spec.offset for member in REGISTRY.resolve("oxe29"))


def test_oxe29_validates_on_the_last_tenth() -> None:
    splits = [member.splits for member in REGISTRY.mixtures["oxe29"].members.values()]
    assert splits == [{"train": "train[:90%]", "val": "train[90%:]"}] * 29


@pytest.mark.parametrize(("mixture", "count"), [("openvla_magic_soup", 16), ("octo_magic_soup", 17)])
def test_published_mixtures_have_the_members_that_are_known(mixture: str, count: int) -> None:
    assert len(REGISTRY.resolve(mixture)) == count
