"""What is wrong with actions, states and instructions of real converted files is found, and nothing else."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.index.statistics import robust_scores
from convert.run.command import main as convert
from convert.verify.command import verify_root
from stream.format.manifest import read_manifest
from stream.format.names import TABLE_KINDS, TableKind, table_file
from tests.fixtures.datasets.doctor_root import STEPS, Splits, diagnose, found, make_root, set_actions, sound_episode
from tests.fixtures.datasets.rlds_dataset import demo_features, serialise
from tests.fixtures.faults.conversion_damage import (
    become_a_folder,
    become_a_loose_link,
    become_a_pipe,
    edit_manifest,
    empty,
    flip,
    lengthen,
    remove,
    scramble,
    truncate,
    zero,
)


@pytest.fixture(scope="module")
def valid_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("doctor-sound"))


def test_a_sound_root_has_no_findings(valid_root: Path) -> None:
    diagnosis = diagnose(valid_root)
    assert found(diagnosis) == {}
    assert [(d.dataset, d.to_json()["episodes"], d.to_json()["pairs_looked_at"]) for d in diagnosis.datasets] == [
        ("demo", 8, 8 * (STEPS - 2))
    ]


def nan_action(splits: Splits) -> None:
    splits["train"][0][2]["steps"][5]["action"][0] = np.nan


def infinite_state(splits: Splits) -> None:
    splits["val"][0][1]["steps"][0]["observation"]["state"][2] = -np.inf


def constant_action(splits: Splits) -> None:
    set_actions(splits["train"][1][0], 0, 0.25)
    set_actions(splits["train"][1][0], 1, 1)


def dead_actions(splits: Splits) -> None:
    for shard in splits["train"]:
        for number, episode in enumerate(shard):
            set_actions(episode, 0, number)
            set_actions(episode, 1, number % 2)


def gripper_out_of_range(splits: Splits) -> None:
    splits["val"][0][0]["steps"][3]["action"][1] = 255


def gripper_that_stays(splits: Splits) -> None:
    for shard in splits["train"]:
        for episode in shard:
            set_actions(episode, 1, 1)


def gripper_that_hardly_opens(splits: Splits) -> None:
    # Fewer than 100 steps may use half of a gripper by chance.
    splits["train"][1] += [sound_episode(100 + number) for number in range(12)]
    for episode in (episode for shard in splits["train"] for episode in shard):
        for number, step in enumerate(episode["steps"]):
            step["action"][1] = 0.7 + 0.3 * (number % 2)


def no_instruction(splits: Splits) -> None:
    for step in splits["train"][0][1]["steps"]:
        step["language_instruction"] = " "


def no_instructions(splits: Splits) -> None:
    for episode in splits["val"][0]:
        for step in episode["steps"]:
            step["language_instruction"] = ""


def leak(splits: Splits) -> None:
    splits["val"][0][1] = splits["train"][0][3]


def duplicate(splits: Splits) -> None:
    splits["train"][1][1] = splits["train"][0][0]


def outlier_value(splits: Splits) -> None:
    # A median far below the tail takes more than 100 steps, or the tail is q99.
    splits["train"][1] += [sound_episode(100 + number) for number in range(16)]
    splits["train"][1][-1]["steps"][0]["action"][0] = 1e6


DEFECTS: list[tuple[Callable[[Splits], object], dict[tuple[str, str], int], str]] = [
    (nan_action, {("nonfinite_action", "train"): 1}, "demo-train.tfrecord-00000-of-00002 #2 step 5"),
    (infinite_state, {("nonfinite_state", "val"): 1}, "demo-val.tfrecord-00000-of-00001 #1 step 0"),
    (constant_action, {("constant_action", "train"): 1}, "demo-train.tfrecord-00001-of-00002 #0"),
    (gripper_out_of_range, {("gripper_range", "val"): 1}, "demo-val.tfrecord-00000-of-00001 #0 step 3"),
    (gripper_that_stays, {("gripper_still", "train"): 1}, "all"),
    (gripper_that_hardly_opens, {("gripper_one_sided", "train"): 1}, "all"),
    (no_instruction, {("instruction_empty", "train"): 1}, "demo-train.tfrecord-00000-of-00002 #1 step 0"),
    (no_instructions, {("instructions_missing", "val"): 2}, "demo-val.tfrecord-00000-of-00001 #0 step 0"),
    (leak, {("leakage", "val"): 1}, "demo-val.tfrecord-00000-of-00001 #1"),
    (duplicate, {("duplicate_episode", "train"): 1}, "demo-train.tfrecord-00001-of-00002 #1"),
]


@pytest.mark.parametrize(("edit", "expected", "location"), DEFECTS, ids=[edit.__name__ for edit, _, _ in DEFECTS])
def test_a_planted_defect_is_found_where_it_is_and_nothing_else(
    tmp_path: Path, edit: Callable[[Splits], object], expected: dict[tuple[str, str], int], location: str
) -> None:
    diagnosis = diagnose(make_root(tmp_path, edit))
    assert found(diagnosis) == expected
    (finding,) = diagnosis.findings
    assert finding.examples[0].location == location
    assert len(finding.examples) == min(3, finding.count)


def test_actions_that_never_change_are_one_error(tmp_path: Path) -> None:
    # The split has five episodes, so that this is no chance.
    assert ("actions_dead", "train") in found(diagnose(make_root(tmp_path, dead_actions)))


def test_a_value_far_beyond_all_others_is_found_twice(tmp_path: Path) -> None:
    diagnosis = diagnose(make_root(tmp_path, outlier_value))
    assert found(diagnosis) == {("outlier_episode", "train"): 1, ("extreme_values", "train"): 1}
    by_rule = {finding.rule.name: finding for finding in diagnosis.findings}
    example = by_rule["outlier_episode"].examples[0]
    assert (example.source_file, example.source_position) == ("demo-train.tfrecord-00001-of-00002", 17)


def test_the_same_actions_before_another_scene_are_no_duplicate(tmp_path: Path) -> None:
    def same_actions(splits: Splits) -> None:
        first, second = splits["train"][0][:2]
        for step, twin in zip(first["steps"], second["steps"], strict=True):
            twin["action"] = copy.copy(step["action"])

    assert found(diagnose(make_root(tmp_path, same_actions))) == {}


def test_a_duplicate_is_found_though_its_state_was_recorded_anew(tmp_path: Path) -> None:
    def copy_with_another_state(splits: Splits) -> None:
        splits["train"][1][1] = copy.deepcopy(splits["train"][0][0])
        splits["train"][1][1]["steps"][0]["observation"]["state"] += 1

    assert found(diagnose(make_root(tmp_path, copy_with_another_state))) == {("duplicate_episode", "train"): 1}


@pytest.mark.parametrize("instruction", [None, {"path": "language_instruction", "informative": False}])
def test_instructions_that_say_nothing_may_be_empty(tmp_path: Path, instruction: Any) -> None:
    root = make_root(tmp_path, no_instruction, instruction=instruction)
    assert found(diagnose(root)) == {}


def test_a_gripper_without_a_convention_may_be_anything(tmp_path: Path) -> None:
    action = [{"path": "action", "dims": 2, "quantity": "other", "kind": "absolute"}]
    assert found(diagnose(make_root(tmp_path, gripper_out_of_range, action=action))) == {}


def _change_mean(manifest: Any) -> None:
    manifest["statistics"]["train"]["action"]["mean"][0] += 0.1


def test_statistics_of_other_files_are_found(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    edit_manifest(root / "demo" / "1.0.0", _change_mean)
    diagnosis = diagnose(root)
    assert found(diagnosis) == {("statistics_differ", "train"): 1}
    assert "action: mean of x is" in diagnosis.findings[0].examples[0].text


def test_the_statistics_of_a_dimension_that_never_changes_are_right(tmp_path: Path) -> None:
    # 0.02 is no float32: the nearest is 0.0199999996, and the manifest has nine digits of the mean.
    def set_constant(splits: Splits) -> None:
        for shard in splits["train"]:
            for episode in shard:
                set_actions(episode, 0, 0.02)

    root = make_root(tmp_path, set_constant)
    assert read_manifest(root / "demo" / "1.0.0").statistics["train"]["action"].mean[0] == 0.0199999996
    assert found(diagnose(root)) == {("dimension_dead", "train"): 1}


def test_an_episode_without_a_declared_feature_is_damage_and_the_conversion_is_sound(tmp_path: Path) -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    def drop_the_action(splits: Splits) -> None:
        example = tf_example_pb2.Example.FromString(serialise(demo_features(), sound_episode(1)))
        del example.features.feature["steps/action"]
        splits["train"][0][1] = example.SerializeToString()

    root = make_root(tmp_path, drop_the_action)
    assert verify_root(root, deep=True, jobs=1).problems == []
    diagnosis = diagnose(root)
    assert found(diagnosis) == {("source_damaged", "train"): 1}
    assert diagnosis.findings[0].examples[0].text == "1 of 6 episodes were left out: 1 missing_feature"


def test_a_registry_entry_that_has_changed_since_is_a_hint_that_names_the_command(
    tmp_path: Path, converted: Path
) -> None:
    root = Path(shutil.copytree(converted / "rt1", tmp_path / "rt1")).parent
    assert "registry_changed" not in {rule for rule, _ in found(diagnose(root))}
    edit_manifest(root / "rt1" / "0.1.0", lambda manifest: manifest["spec"].update(control_frequency=99.0))
    (finding,) = (finding for finding in diagnose(root).findings if finding.rule.name == "registry_changed")
    assert (finding.rule.severity, finding.split, finding.count) == ("hint", None, 1)
    assert f"`pairstream reindex {root} --datasets rt1`" in finding.examples[0].text
    assert finding.to_lines("rt1")[0].startswith("hint: rt1: registry_changed, 1 dataset: ")
    assert finding.to_json()["unit"] == "dataset"


DAMAGES = [flip, truncate, zero, scramble, lengthen, empty, remove, become_a_folder, become_a_pipe, become_a_loose_link]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_damaged_table_is_one_error_and_the_other_splits_are_looked_at(
    valid_root: Path, tmp_path: Path, kind: TableKind, damage: Callable[[Path], None]
) -> None:
    root = Path(shutil.copytree(valid_root, tmp_path / "out"))
    edit_manifest(root / "demo" / "1.0.0", _change_mean)
    damage(root / "demo" / "1.0.0" / "val" / table_file(kind))
    diagnosis = diagnose(root)
    assert set(found(diagnosis)) == {("damaged", "val"), ("statistics_differ", "train")}
    assert diagnosis.findings[0].examples[0].file == str(root / "demo" / "1.0.0" / "val" / table_file(kind))


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage is not flip])
def test_a_damaged_shard_is_one_error_and_its_columns_are_looked_at(
    valid_root: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    root = Path(shutil.copytree(valid_root, tmp_path / "out"))
    edit_manifest(root / "demo" / "1.0.0", _change_mean)
    damage(root / "demo" / "1.0.0" / "train" / "train-00001-of-00002.arrayrecord")
    diagnosis = diagnose(root)
    assert ("statistics_differ", "train") in found(diagnosis)
    remaining = [finding for finding in diagnosis.findings if finding.rule.name != "statistics_differ"]
    assert [finding.examples[0].shard for finding in remaining] == ["train-00001-of-00002"]


def _forget_a_path(manifest: Any) -> None:
    del manifest["spec"]["action"][1]["path"]


def test_a_manifest_that_does_not_say_what_the_action_is_is_an_error(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    edit_manifest(root / "demo" / "1.0.0", _forget_a_path)
    diagnosis = diagnose(root)
    assert found(diagnosis) == {("incomplete", None): 1}
    assert diagnosis.findings[0].examples[0].text.startswith("field spec.action.1.path: Field required")


def test_real_episodes_that_are_in_both_splits_are_found(shared_data: Path, tmp_path: Path) -> None:
    """The 25 records of ``val`` of Octo's test fixture are those of ``train``, in another order."""
    arguments = ["--source", str(shared_data), "--output", str(tmp_path), "--image-size", "native"]
    convert(["--datasets", "bridge_dataset", *arguments, "--num-workers", "1"])
    diagnosis = diagnose(tmp_path)
    assert found(diagnosis) == {("leakage", "val"): 25}


def test_a_conversion_that_was_interrupted_is_an_error(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (root / "demo" / "1.0.0" / "dataset.json").unlink()
    assert found(diagnose(root)) == {("incomplete", None): 1}


def test_many_episodes_too_short_for_a_pair_are_a_hint(tmp_path: Path) -> None:
    def shorten(splits: Splits) -> None:
        splits["train"][0][0]["steps"] = splits["train"][0][0]["steps"][:2]
        splits["train"][0][1]["steps"] = splits["train"][0][1]["steps"][:1]

    assert found(diagnose(make_root(tmp_path, shorten))) == {("without_pairs", "train"): 2}


def test_robust_scores_do_not_depend_on_the_outlier() -> None:
    values = np.random.default_rng(0).normal(size=200)
    values[3] = 57
    scores = robust_scores(values)
    assert scores.argmax() == 3 and scores[3] > 40 and np.delete(scores, 3).max() < 5
    assert robust_scores(np.ones(5)).tolist() == [0] * 5
    assert robust_scores(np.array([np.nan, np.nan])).tolist() == [0, 0]
