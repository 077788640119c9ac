import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.errors import SourceError, UsageError
from convert.plan import Conversion, ConvertConfig
from convert.registry.registry import load_registry
from convert.run.planning import check_rates
from convert.shard.images import FramePolicy
from tests.fixtures.datasets.rlds_dataset import DEMO_FIELDS, RldsDataset, demo_episode, demo_features, write_dataset

MORE: dict[str, Any] = {
    "depth": tfds.features.Tensor(shape=(4, 4), dtype=np.float32),
    "codes": tfds.features.Tensor(shape=(8,), dtype=np.int32),
    "raw": tfds.features.Tensor(shape=(4, 4, 3), dtype=np.uint8),
    "float_image": tfds.features.Image(shape=(4, 4, 1), dtype=np.float32),
    "masks": tfds.features.Sequence(tfds.features.Tensor(shape=(2,), dtype=np.float32)),
    "robot": tfds.features.Text(),
    "step": np.int32,
}
CAMERAS = DEMO_FIELDS["cameras"]
ACTION = DEMO_FIELDS["action"][0]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Two splits of plain episodes under a tree of many features; only metadata and sizes are looked at."""
    record = b"not read"
    return write_dataset(
        tmp_path_factory.mktemp("source"),
        features=demo_features(**MORE),
        splits={"train": [[record] * 4, [record] * 6], "val": [[record] * 3]},
    )


def plan(dataset: RldsDataset, options: ConvertConfig | None = None, **fields: Any) -> Conversion:
    return dataset.conversion(Path("out"), options, **fields)


def test_a_plan_has_a_job_for_each_shard_of_each_split(dataset: RldsDataset) -> None:
    conversion = plan(dataset)
    assert [(job.stem, job.spans, job.episodes) for job in conversion.jobs] == [
        ("train-00000-of-00002", ((0, 4),), 4),
        ("train-00001-of-00002", ((0, 6),), 6),
        ("val-00000-of-00001", ((0, 3),), 3),
    ]
    assert conversion.splits == ["train", "val"]
    assert conversion.plan.output == "out/demo/1.0.0"


def test_only_the_splits_that_were_named_are_converted(dataset: RldsDataset) -> None:
    assert plan(dataset, ConvertConfig(splits=("val",))).splits == ["val"]


def test_only_the_shards_of_the_chosen_episodes_are_converted(dataset: RldsDataset) -> None:
    (job,) = plan(dataset, ConvertConfig(episodes="train[5:7]")).jobs
    assert (job.stem, job.spans, job.episodes) == ("train-00001-of-00002", ((1, 3),), 2)
    assert job.size == job.shard.bytes * 2 // 6


def test_numbers_and_texts_go_into_the_index_and_images_do_not(dataset: RldsDataset) -> None:
    assert [feature.path for feature in plan(dataset).plan.features] == [
        "episode_metadata/file_path",
        "steps/action",
        "steps/codes",
        "steps/depth",
        "steps/is_last",
        "steps/language_instruction",
        "steps/masks",
        "steps/observation/state",
        "steps/raw",
        "steps/robot",
        "steps/step",
    ]


def test_features_are_left_out_by_the_registrys_patterns(dataset: RldsDataset) -> None:
    names = columns(plan(dataset, leave_out=["dep*", "/episode_metadata/*"]))
    assert {"depth", "/episode_metadata/file_path"}.isdisjoint(names)


def test_patterns_of_the_user_replace_those_of_the_registry(dataset: RldsDataset) -> None:
    names = columns(plan(dataset, ConvertConfig(leave_out=("raw",)), leave_out=["depth"]))
    assert "depth" in names
    assert "raw" not in names
    assert "depth" in columns(plan(dataset, ConvertConfig(leave_out=()), leave_out=["depth"]))


def test_embeddings_of_sentences_are_left_out_unless_the_registry_or_the_user_says_what_is(tmp_path: Path) -> None:
    vector = tfds.features.Tensor(shape=(512,), dtype=np.float32)
    all_names = {"language_embedding", "natural_language_embedding"}
    features = demo_features(**dict.fromkeys(all_names, vector))
    written = write_dataset(tmp_path, features=features, splits={"train": [[demo_episode(0)]]})
    assert all_names.isdisjoint(columns(plan(written)))
    assert all_names <= set(columns(plan(written, leave_out=["depth"])))
    assert all_names <= set(columns(plan(written, ConvertConfig(leave_out=()))))


def columns(conversion: Conversion) -> list[str]:
    return list(conversion.parameters["columns"])


def test_what_is_part_of_the_action_cannot_be_left_out(dataset: RldsDataset) -> None:
    with pytest.raises(
        UsageError, match=r"demo: action is part of action or state, so it cannot be left out \(act\*\)"
    ):
        plan(dataset, ConvertConfig(leave_out=("act*",)))


def test_the_camera_is_the_primary_one_unless_another_is_named(dataset: RldsDataset) -> None:
    cameras = {
        **CAMERAS,
        "raw": {"path": "raw", "role": "wrist", "storage": "raw", "shape": [4, 4, 3], "channels": "bgr"},
    }
    assert plan(dataset, cameras=cameras).plan.cameras[0].feature.path == "steps/observation/image"
    for name in ("raw", "wrist"):
        (chosen,) = plan(dataset, ConvertConfig(cameras=(name,)), cameras=cameras).plan.cameras
        assert (chosen.feature.path, chosen.channels) == ("steps/raw", "bgr")


def test_the_pixels_of_a_raw_camera_are_no_column(dataset: RldsDataset) -> None:
    cameras = {**CAMERAS, "raw": {"path": "raw", "role": "wrist", "storage": "raw", "shape": [4, 4, 3]}}
    assert "raw" not in columns(plan(dataset, cameras=cameras))


@pytest.mark.parametrize(
    ("path", "actual_feature"),
    [
        ("depth", r"float32 \(4, 4\)"),
        ("float_image", r"float32 \(4, 4, 1\)"),
        ("robot", r"string \(\)"),
        ("action", "float32"),
    ],
)
def test_a_camera_that_is_no_picture_is_refused_with_those_that_are(
    dataset: RldsDataset, path: str, actual_feature: str
) -> None:
    cameras = {path: {**CAMERAS["image"], "path": path}}
    with pytest.raises(
        UsageError, match=rf"camera {path} is {actual_feature}.*, not a picture; pictures are observation/image"
    ):
        plan(dataset, cameras=cameras)


WRONG_PATHS: list[tuple[dict[str, Any], str]] = [
    (
        {"cameras": {"imgae": {**CAMERAS["image"], "path": "observation/imgae"}}},
        r"camera 'observation/imgae' .*did you mean 'observation/image'\?",
    ),
    (
        {"cameras": {"image": {**CAMERAS["image"], "path": "image"}}},
        r"camera 'image' .*did you mean 'observation/image'\?",
    ),
    (
        {"instruction": {"path": "languge_instruction"}},
        r"instruction 'languge_instruction' .*did you mean 'language_instruction'\?",
    ),
    (
        {"instruction": {"path": "language_instruction", "alternatives": ["/file_path"]}},
        r"instruction '/file_path' .*did you mean '/episode_metadata/file_path'\?",
    ),
    ({"action": [{**ACTION, "path": "acton"}]}, r"action or state 'acton' .*did you mean 'action'\?"),
    ({"robot_path": "/robot"}, r"robot_path '/robot' .*did you mean 'robot'\?"),
    ({"success_path": "zzz"}, r"success_path 'zzz' .*features there: /episode_metadata/file_path, action"),
    ({"action_text": "words"}, r"action_text 'words' is not in .*/demo/1\.0\.0/features\.json"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_PATHS)
def test_a_path_that_is_not_there_suggests_the_closest(
    dataset: RldsDataset, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=f"demo: {message}"):
        plan(dataset, **fields)


WRONG_PARTS: list[tuple[dict[str, Any], str]] = [
    ({"dims": 3}, r"demo: action has 2 values \(2,\); the registry takes all 3"),
    ({"dims": 2, "select": [0, 2]}, r"demo: action has 2 values \(2,\); the registry takes values \[0, 2\]"),
    ({"path": "robot", "dims": 1}, r"demo: robot is string \(\), not a vector of numbers"),
    ({"path": "masks"}, r"demo: masks is float32 \(2,\), not a vector of numbers"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_PARTS)
def test_a_part_of_the_vector_that_does_not_fit_its_feature_is_refused(
    dataset: RldsDataset, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan(dataset, action=[{**ACTION, **changes}])


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ({"path": "codes"}, r"instruction codes is int32 \(8,\), which encoding text does not read"),
        ({"path": "robot", "encoding": "utf8_codes"}, "which encoding utf8_codes does not read"),
        ({"path": "depth", "encoding": "utf8_codes"}, r"float32 \(4, 4\), which encoding utf8_codes does not read"),
    ],
)
def test_an_instruction_that_is_not_stored_as_the_registry_says_is_refused(
    dataset: RldsDataset, instruction: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan(dataset, instruction=instruction)


def test_coded_instructions_become_language_and_no_column_of_their_own(dataset: RldsDataset) -> None:
    conversion = plan(dataset, instruction={"path": "codes", "encoding": "utf8_codes"})
    assert [feature.path for feature in conversion.plan.language] == ["steps/codes"]
    assert conversion.plan.language_encoding == "utf8_codes"
    assert "codes" not in columns(conversion)


def test_a_dataset_without_an_instruction_has_no_language(dataset: RldsDataset) -> None:
    assert plan(dataset, instruction=None).plan.language == ()


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_feature_without_values_is_no_column(tmp_path: Path, shape: tuple[int, ...]) -> None:
    empty = tfds.features.Tensor(shape=shape, dtype=np.float32, encoding="zlib")
    source = write_dataset(tmp_path, features=demo_features(empty=empty), splits={"train": [[b"not read"]]})
    assert "empty" not in columns(plan(source))


@pytest.mark.parametrize("shape", [(None,), (None, None)])
def test_a_column_of_no_fixed_size_has_to_be_left_out(tmp_path: Path, shape: tuple[int | None, ...]) -> None:
    odd = tfds.features.Tensor(shape=shape, dtype=np.float32, encoding="zlib")
    odd_set = write_dataset(tmp_path, features=demo_features(odd=odd), splits={"train": [[b"not read"]]})
    with pytest.raises(UsageError, match=r"demo: odd has the shape .*; columns need a fixed size.*Leave it out"):
        plan(odd_set)
    assert "odd" not in columns(plan(odd_set, ConvertConfig(leave_out=("odd",))))


@pytest.fixture(scope="module")
def with_depth(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    features = demo_features(
        depth=tfds.features.Tensor(shape=(32, 33), dtype=np.float32),
        map=tfds.features.Tensor(shape=(32, 32), dtype=np.float32),
    )
    root = tmp_path_factory.mktemp("depth")
    return write_dataset(root, features=features, splits={"train": [[b"not read"]]})


def test_a_wide_column_needs_a_word(with_depth: RldsDataset) -> None:
    with pytest.raises(UsageError) as caught:
        plan(with_depth)
    said = str(caught.value)
    assert "demo: depth is float32 (32, 33): the index would have 1,056 numbers of it a step" in said
    assert "`leave_out: [depth]`" in said
    assert "`wide: [depth]`" in said
    assert "--leave-out none" in said


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (ConvertConfig(), {"wide": ["dep*"]}),
        (ConvertConfig(leave_out=()), {}),
        (ConvertConfig(), {"action": [{"path": "depth", "select": [0, 1], "dims": 2}], "spaces": None}),
    ],
    ids=["the registry says so", "all are kept", "a part of the action"],
)
def test_a_wide_column_is_kept_with_a_word(
    with_depth: RldsDataset, options: ConvertConfig, fields: dict[str, Any]
) -> None:
    assert {"depth", "map"} <= set(columns(plan(with_depth, options, **fields)))


def test_a_wide_column_that_is_left_out_needs_no_other_word(with_depth: RldsDataset) -> None:
    assert "depth" not in columns(plan(with_depth, leave_out=["depth"]))
    with pytest.raises(UsageError, match="depth is float32"):
        plan(with_depth, ConvertConfig(leave_out=("map",)))


def test_a_camera_whose_colours_nobody_knows_is_kept_as_it_is_with_a_warning(dataset: RldsDataset) -> None:
    unsure = {"image": {**CAMERAS["image"], "channels": "unknown"}}
    conversion = plan(dataset, cameras=unsure)
    (warning,) = conversion.warnings
    assert "red and blue of image may be swapped" in warning
    assert conversion.plan.cameras[0].channels == "rgb"
    assert plan(dataset, ConvertConfig(layout="frames"), cameras=unsure).warnings == [warning]
    second = {**unsure, "raw": {"path": "raw", "role": "wrist"}}
    assert plan(dataset, ConvertConfig(cameras=("raw",)), cameras=second).warnings == []


def test_a_camera_needs_a_path_and_a_role_and_a_part_its_path_and_size(dataset: RldsDataset) -> None:
    conversion = plan(
        dataset,
        cameras={"image": {"path": "observation/image", "role": "primary"}},
        action=[{"path": "action", "dims": 2}],
        spaces=None,
    )
    (part,) = conversion.spec.action
    assert (part.quantity, part.kind) == ("other", "absolute")


@pytest.mark.parametrize("path", ["masks", "depth"])
def test_a_success_that_is_not_one_value_is_refused(dataset: RldsDataset, path: str) -> None:
    with pytest.raises(UsageError, match=f"success_path {path} is .*, neither one number nor one text"):
        plan(dataset, success_path=path)


def test_the_offset_of_the_user_is_before_that_of_the_registry(dataset: RldsDataset) -> None:
    assert plan(dataset).plan.offset == 2
    assert plan(dataset, ConvertConfig(offset="0.6s")).plan.offset == 3
    assert plan(dataset, offset="1.0s").plan.offset == 5


def test_seconds_without_a_rate_are_refused(dataset: RldsDataset) -> None:
    with pytest.raises(UsageError, match="demo: offset '1s' is in seconds, but this dataset has no fixed rate"):
        plan(dataset, ConvertConfig(offset="1s"), control_frequency=None)


def test_seconds_for_all_name_every_dataset_without_a_rate_and_the_way_out() -> None:
    selection = load_registry().resolve("oxe29")
    without = [selected.spec.name for selected in selection if selected.spec.control_frequency is None]
    assert len(without) == 2
    with pytest.raises(UsageError) as caught:
        check_rates(selection, "0.6s")
    names = ",".join(without)
    assert f"these have no fixed rate: {names}; give --offset in steps" in str(caught.value)
    assert f"--datasets {names} --offset STEPS" in str(caught.value)
    check_rates(selection, "3")
    check_rates(selection, None)


def test_frames_that_a_record_stores_twice_are_told(dataset: RldsDataset) -> None:
    assert plan(dataset, ConvertConfig(frames="fixed:8", offset="5")).warnings == [
        "--frames fixed:8 at offset 5 stores some frames of a record twice: 8 frames of 6 steps"
    ]
    assert plan(dataset, ConvertConfig(frames="fixed:6", offset="5")).warnings == []


def test_an_offset_as_long_as_most_episodes_is_told_before_the_conversion(dataset: RldsDataset) -> None:
    assert plan(dataset, ConvertConfig(offset="8"), steps_per_episode=8.5).warnings == []
    assert plan(dataset, ConvertConfig(offset="9", layout="frames"), steps_per_episode=8.5).warnings == []
    assert plan(dataset, ConvertConfig(offset="9"), steps_per_episode=8.5).warnings == [
        "offset 9 is long: episodes have 8.5 steps on average, a pair takes 10; where none has so many, the conversion "
        "fails at its end"
    ]


CHANGES: dict[str, tuple[ConvertConfig, dict[str, Any]]] = {
    "image_size": (ConvertConfig(policy=FramePolicy(size=(8, 16))), {}),
    "resize": (ConvertConfig(policy=FramePolicy(resize="pad")), {}),
    "quality": (ConvertConfig(policy=FramePolicy(quality=90)), {}),
    "offset": (ConvertConfig(offset="3"), {}),
    "frames": (ConvertConfig(frames="all"), {}),
    "episodes": (ConvertConfig(episodes="train[:1]"), {}),
    "columns": (ConvertConfig(leave_out=("depth",)), {}),
    "language": (ConvertConfig(), {"instruction": {"path": "robot"}}),
    "robot": (ConvertConfig(), {"robot": "xarm"}),
    "channels": (ConvertConfig(), {"cameras": {"image": {**CAMERAS["image"], "channels": "bgr"}}}),
    "camera": (ConvertConfig(), {"cameras": {"raw": {**CAMERAS["image"], "path": "raw"}}}),
}


@pytest.mark.parametrize("parameter", CHANGES)
def test_what_changes_the_output_changes_its_parameter(dataset: RldsDataset, parameter: str) -> None:
    options, fields = CHANGES[parameter]
    before, after = plan(dataset).parameters, plan(dataset, options, **fields).parameters
    followers = {"columns", "frame_offsets"}
    assert {key for key in before if before[key] != after[key]} - followers == {parameter} - followers
    assert before[parameter] != after[parameter]


def test_what_does_not_change_the_output_is_no_parameter(dataset: RldsDataset) -> None:
    same = plan(dataset, ConvertConfig(on_error="fail", splits=("val",)), quirks=["odd"])
    assert same.parameters == plan(dataset).parameters


def test_jobs_and_plan_can_be_sent_to_workers(dataset: RldsDataset) -> None:
    conversion = plan(dataset)
    jobs, sent = pickle.loads(pickle.dumps((conversion.jobs, conversion.plan)))
    assert (jobs, sent) == (conversion.jobs, conversion.plan)
    assert len(pickle.dumps(conversion.plan)) < 10_000


def cuts(tmp_path: Path, sizes: Sequence[int]) -> list[int]:
    """Return the pieces of shards with some episodes of 5 steps each."""
    shards = [[demo_episode(5, seed=number) for number in range(size)] for size in sizes]
    conversion = write_dataset(tmp_path / "source", splits={"train": shards}).conversion(tmp_path / "out")
    return [len(job.cut) for job in conversion.jobs]


def test_a_shard_is_cut_into_pieces_of_the_least_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convert.jobs._LEAST_BYTES", 1 << 40)
    assert cuts(tmp_path / "a", (8,)) == [0]
    folder = write_dataset(tmp_path / "b", splits={"train": [[demo_episode(5, seed=number) for number in range(8)]]})
    monkeypatch.setattr("convert.jobs._LEAST_BYTES", folder.shard().stat().st_size // 3)
    assert len(folder.conversion(tmp_path / "out").jobs[0].cut) == 3


def test_shards_of_a_dataset_that_has_enough_of_them_are_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.jobs._LEAST_BYTES", 1)
    monkeypatch.setattr("convert.jobs._PIECES", 4)
    assert cuts(tmp_path, (2, 2, 2, 2, 2)) == [0] * 5
    assert cuts(tmp_path / "uneven", (1, 1, 7)) == [0, 0, 3]
