"""Generated datasets, read back by TFDS."""

import contextlib
import fcntl
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.example_serializer import ExampleSerializer
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import ConflictError, UsageError
from convert.features import Feature
from convert.registry import load_registry
from convert.sample import main, make_sample
from convert.sample_episode import make_episode, prepare_source, read_feature_tree
from convert.sample_record import encode_example
from convert.sprites import RED
from convert.tfrecord import TFRecordFile

EPISODES, STEPS = 2, 3
REPOSITORY = Path(__file__).parents[2]
FACTS = REPOSITORY.parent / "shared" / "oxe" / "datasets.json"

REGISTRY = load_registry()
NAMES = [selected.spec.name for selected in REGISTRY.resolve("oxe29")] + ["bridge_dataset"]
SWAPPED = [
    (name, camera.path)
    for name in NAMES
    for camera in REGISTRY.dataset(name).cameras.values()
    if camera.channels == "bgr"
]

Sample = Callable[[str], Path]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The directory of a dataset's sample by name, made when it is first asked for; workers of xdist share them."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "sample"
    root.mkdir(exist_ok=True)

    @functools.cache
    def directory(name: str) -> Path:
        spec = REGISTRY.dataset(name)
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            make_sample(root, [spec], episodes=EPISODES, steps=STEPS, jobs=1)
        return root / spec.tfds_name / spec.version

    return directory


def records(directory: Path, split: str) -> Iterator[bytes]:
    for path in sorted(directory.glob(f"*-{split}.tfrecord-*")):
        with path.open("rb") as file:
            for record in TFRecordFile(file, name=path.name, size=path.stat().st_size):
                assert isinstance(record, bytes)
                yield record


def parsed(directory: Path, split: str = "train") -> list[dict[str, Any]]:
    """The values of each feature of each record, as stored."""
    found = []
    for record in records(directory, split):
        features = tf_example_pb2.Example.FromString(record).features.feature
        found.append({key: list(getattr(f, f.WhichOneof("kind")).value) for key, f in features.items()})
    return found


def digest(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def read_by_tfds(directory: Path, split: str) -> list[dict[str, Any]]:
    """Every episode as TFDS decodes it: a list of steps under ``steps``, all values in numpy."""
    builder = tfds.builder_from_directory(str(directory))
    episodes = []
    for episode in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)):
        episodes.append({**episode, "steps": list(episode["steps"])})
    return episodes


def leaf(tree: Any, path: str) -> Any:
    """The value at a flattened name in nested dictionaries whose keys may contain slashes."""
    if not path:
        return tree
    key = next(key for key in tree if path == key or path.startswith(f"{key}/"))
    return leaf(tree[key], path[len(key) + 1 :])


def pixels(stored: bytes, *, depth: bool = False) -> Any:
    """An encoded image as OpenCV decodes it, channels in their stored order."""
    image: Any = cv2.imdecode(np.frombuffer(stored, np.uint8), cv2.IMREAD_UNCHANGED)
    if image.ndim == 2:
        return image[:, :, None]
    if depth:
        return cv2.cvtColor(image, cv2.COLOR_BGRA2RGBA).view(np.float32)
    return image[:, :, ::-1]


@pytest.mark.parametrize("name", NAMES)
def test_tfds_reads_back_exactly_what_was_put_in(sample: Sample, name: str) -> None:
    source = prepare_source(REGISTRY.dataset(name))
    for split in source.spec.splits:
        read = read_by_tfds(sample(name), split)
        assert [len(episode["steps"]) for episode in read] == [STEPS] * (EPISODES if split == "train" else 1)
        # The others are of the same making; their scenes take most of the time.
        number, episode = len(read) - 1, read[-1]
        columns = make_episode(source, split=split, episode=number, steps=STEPS, seed=0)
        for feature in source.features:
            stored = columns[feature.path]
            found = values_of(episode, feature)
            if feature.dtype == "string":
                assert flattened(found) == list(stored.values), feature.path
            elif feature.kind == "image":
                for picture, image in zip(found, stored.values, strict=True):
                    tolerance = 2.0 if image.startswith(b"\xff\xd8") else 0.0
                    wanted = pixels(image, depth=picture.dtype == np.float32)
                    assert np.abs(picture.astype(np.float64) - wanted).mean() <= tolerance, feature.path
            elif feature.encoding == "zlib":
                assert [row.tobytes() for row in found] == [zlib.decompress(row) for row in stored.values]
            else:
                assert {np.asarray(flat(row)).dtype for row in found} == {np.dtype(feature.dtype)}, feature.path
                numbers = np.concatenate([np.ravel(flat(row)) for row in found])
                assert np.array_equal(numbers, np.ravel(stored.values)), feature.path


def values_of(episode: dict[str, Any], feature: Feature) -> list[Any]:
    """What TFDS read of a feature, one value a step, or one in all."""
    if feature.level == "episode":
        return [leaf(episode, feature.path)]
    return [leaf(step, feature.name) for step in episode["steps"]]


def flat(value: Any) -> Any:
    """The values of a ragged tensor, in one array; anything else as it is."""
    value = getattr(value, "flat_values", value)
    return value.numpy() if hasattr(value, "numpy") else value


def flattened(values: Any) -> list[bytes]:
    """All byte strings in values, arrays and ragged tensors; numpy would cut NULs off their ends."""
    if isinstance(values, bytes):
        return [values]
    return [text for value in flat(values) for text in flattened(value)]


@pytest.mark.parametrize("name", NAMES)
def test_the_feature_tree_is_the_declared_one(sample: Sample, name: str) -> None:
    spec = REGISTRY.dataset(name)
    declared = resources.files("configs").joinpath("features", f"{spec.tfds_name}.json").read_text(encoding="utf-8")
    assert json.loads((sample(name) / "features.json").read_text()) == json.loads(declared)


@pytest.mark.parametrize("name", ["tidybot", "droid", "vima_converted_externally_to_rlds"])
def test_a_record_is_what_tfds_itself_would_write(name: str) -> None:
    source = prepare_source(REGISTRY.dataset(name))
    columns = make_episode(source, split="train", episode=1, steps=2, seed=0)
    tree = read_feature_tree(source.spec.tfds_name)
    nested: dict[str, Any] = {"steps": [{}, {}]}
    for feature in source.features:
        column = columns[feature.path]
        rows = list(column.values)
        for lengths in reversed(column.row_lengths or ()):
            items = iter(rows)
            rows = [[next(items) for _ in range(length)] for length in lengths]
        if feature.level == "step":
            for step, row in zip(nested["steps"], rows, strict=True):
                place(tree["steps"].feature, step, feature.path.removeprefix("steps/"), row)
        else:
            place(tree, nested, feature.path, rows if feature.sequences else rows[0])
    nested["steps"] = tfds.core.features.sequence_feature.stack_nested(nested["steps"])
    written = ExampleSerializer(tree.get_serialized_info()).get_tf_example(nested)
    assert tf_example_pb2.Example.FromString(encode_example(columns)) == written


def place(tree: Any, nested: dict[str, Any], path: str, value: Any) -> None:
    key = next(key for key in tree if path == key or path.startswith(f"{key}/"))
    if path == key:
        nested[key] = value
    else:
        child = tree[key]
        place(getattr(child, "feature", child), nested.setdefault(key, {}), path[len(key) + 1 :], value)


def test_files_do_not_depend_on_jobs_or_on_the_other_datasets(tmp_path: Path, sample: Sample) -> None:
    names = ["tidybot", "bc_z", "viola", "kuka"]
    make_sample(tmp_path, [REGISTRY.dataset(name) for name in names], episodes=EPISODES, steps=STEPS, jobs=2)
    for name in names:
        alone = sample(name)
        assert digest(tmp_path / alone.relative_to(alone.parents[1])) == digest(alone)


def test_seeds_differ(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("utaustin_mutex")
    for seed in (0, 1):
        make_sample(tmp_path / str(seed), [spec], episodes=1, steps=2, seed=seed, jobs=1)
    first, second = (next(records(tmp_path / seed / spec.tfds_name / spec.version, "train")) for seed in "01")
    assert first != second


def test_episodes_of_one_dataset_differ(sample: Sample) -> None:
    first, second = parsed(sample("viola"))
    assert first["steps/observation/agentview_rgb"] != second["steps/observation/agentview_rgb"]
    assert first["steps/action/world_vector"] != second["steps/action/world_vector"]


@pytest.mark.parametrize(("name", "path"), SWAPPED)
def test_red_and_blue_are_swapped_where_the_registry_says_so(sample: Sample, name: str, path: str) -> None:
    picture = stored_picture(sample(name), path)
    surplus = picture[:, :, 2].astype(int) - picture[:, :, 0]
    assert (surplus > RED).sum() > 10 * (surplus < -RED).sum() + 10


def test_seven_cameras_have_red_and_blue_swapped() -> None:
    assert len(SWAPPED) == 7


@pytest.mark.parametrize("name", NAMES)
def test_red_and_blue_are_in_place_elsewhere(sample: Sample, name: str) -> None:
    for camera in REGISTRY.dataset(name).cameras.values():
        if camera.channels == "rgb" and (name, camera.path) != ("bridge_dataset", "observation/image_3"):
            picture = stored_picture(sample(name), camera.path)
            surplus = picture[:, :, 0].astype(int) - picture[:, :, 2]
            assert (surplus > RED).sum() > 10 * (surplus < -RED).sum() + 10, camera.path


def stored_picture(directory: Path, path: str) -> np.ndarray:
    """The first frame of a camera as stored, channels in their stored order."""
    values = parsed(directory)[0][f"steps/{path}"]
    if isinstance(values[0], bytes):
        return pixels(values[0])
    camera = next(c for c in REGISTRY.dataset(directory.parent.name).cameras.values() if c.path == path)
    return np.array(values[: np.prod(camera.shape)], np.uint8).reshape(camera.shape)


@pytest.mark.parametrize("name", NAMES)
def test_images_are_stored_as_declared_and_undeclared_ones_as_png(sample: Sample, name: str) -> None:
    source = prepare_source(REGISTRY.dataset(name))
    episode = parsed(sample(name))[0]
    for path, image_format in source.formats.items():
        magic = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}[image_format]
        assert all(value.startswith(magic) for value in episode[path]), path


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_the_published_ones_in_up_to_two_shards(sample: Sample, name: str) -> None:
    spec, info = REGISTRY.dataset(name), tfds.builder_from_directory(str(sample(name))).info
    assert {split: info.splits[split].shard_lengths for split in info.splits} == {
        split: [1, 1] if split == "train" else [1] for split in spec.splits
    }


def test_language_table_instructions_are_padded_bytes_and_not_all_ascii(sample: Sample) -> None:
    texts = []
    for episode in parsed(sample("language_table")):
        codes = np.array(episode["steps/observation/instruction"]).reshape(STEPS, 512)
        assert (codes[:, -100:] == 0).all()
        texts.append(bytes(codes[0].astype(np.uint8)).rstrip(b"\0").decode())
    assert texts[0].isascii() and not texts[1].isascii()


@pytest.mark.parametrize(
    "name", ["jaco_play", "taco_play", "ucsd_kitchen_dataset_converted_externally_to_rlds", "utaustin_mutex"]
)
def test_some_instructions_end_in_nul(sample: Sample, name: str) -> None:
    instruction = REGISTRY.dataset(name).instruction
    assert instruction is not None
    texts = [episode[f"steps/{instruction.path}"][0] for episode in parsed(sample(name))]
    assert {text.endswith(b"\0") for text in texts} == {True, False}


def test_robonet_says_the_same_in_every_episode(sample: Sample) -> None:
    assert len({text for episode in parsed(sample("robonet")) for text in episode["steps/language_instruction"]}) == 1


def test_droid_instructions_are_empty_in_some_episodes_and_then_sometimes_given_second() -> None:
    source = prepare_source(REGISTRY.dataset("droid"))
    texts = []
    for number in range(3):
        episode = make_episode(source, split="train", episode=number, steps=1, seed=0)
        texts.append([bool(episode[f"steps/language_instruction{end}"].values[0]) for end in ("", "_2", "_3")])
    assert texts == [[True, True, True], [False, True, False], [False, False, False]]


@pytest.mark.parametrize("flag", ["is_last", "is_terminal", "reward"])
def test_spoc_never_sets(sample: Sample, flag: str) -> None:
    assert not any(any(episode[f"steps/{flag}"]) for episode in parsed(sample("spoc")))


def test_bridge_first_action_is_all_zero(sample: Sample) -> None:
    for episode in parsed(sample("bridge")):
        for part in ("world_vector", "rotation_delta"):
            action = np.array(episode[f"steps/action/{part}"]).reshape(STEPS, 3)
            assert not action[0].any() and action[1:].all()


def test_kuka_has_failed_episodes(sample: Sample) -> None:
    assert [episode["success"] for episode in parsed(sample("kuka"))] == [[1], [0]]


def test_kuka_state_is_compressed_by_zlib(sample: Sample) -> None:
    episode = parsed(sample("kuka"))[0]
    assert all(value[0] == 0x78 for value in episode["steps/observation/clip_function_input/base_pose_tool_reached"])


def test_tidybot_action_is_text_and_receptacles_are_ragged(sample: Sample) -> None:
    episode = parsed(sample("tidybot"))[0]
    assert len(set(episode["steps/action"])) == STEPS
    lengths = episode["steps/observation/receptacles/ragged_row_lengths_0"]
    assert len(set(lengths)) > 1
    assert len(episode["steps/observation/receptacles/ragged_flat_values"]) == sum(lengths)


def test_vima_stores_raw_pixels_and_prompts_of_several_lengths(sample: Sample) -> None:
    episodes = parsed(sample("vima_converted_externally_to_rlds"))
    assert len(episodes[0]["steps/observation/image"]) == STEPS * 128 * 256 * 3
    lengths = [episode["steps/multimodal_instruction_assets/image/ragged_row_lengths_0"] for episode in episodes]
    assert lengths == [[2] * STEPS, [1] * STEPS]
    assert episodes[0]["episode_metadata/end-effector type"] == [b"suction"]


def test_d3field_state_is_a_pose_matrix(sample: Sample) -> None:
    poses = np.array(parsed(sample("uiuc_d3field"))[0]["steps/observation/state"]).reshape(STEPS, 4, 4)
    assert np.allclose(poses[:, :3, :3] @ poses[:, :3, :3].transpose(0, 2, 1), np.eye(3), atol=1e-5)
    assert (poses[:, 3] == [0, 0, 0, 1]).all()


def test_bridge_dataset_has_a_constant_placeholder_camera(sample: Sample) -> None:
    assert len(set(parsed(sample("bridge_dataset"))[0]["steps/observation/image_3"])) == 1


@pytest.mark.parametrize(
    ("name", "action", "state"),
    [
        ("robonet", "action", "observation/state"),
        ("rt1", "action/world_vector", "observation/base_pose_tool_reached"),
        ("stanford_hydra_dataset_converted_externally_to_rlds", "action", "observation/state"),
    ],
)
def test_the_action_is_the_change_of_the_state(sample: Sample, name: str, action: str, state: str) -> None:
    episode = parsed(sample(name))[0]
    actions, states = (np.array(episode[f"steps/{path}"]).reshape(STEPS, -1)[:, :3] for path in (action, state))
    assert np.allclose(actions[:-1], np.diff(states, axis=0), atol=1e-6)


def test_varied_steps_include_an_empty_and_a_short_episode(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("bc_z")
    make_sample(tmp_path, [spec], episodes=6, steps=9, vary_steps=True, jobs=1)
    lengths = [len(episode["steps"]) for episode in read_by_tfds(tmp_path / "bc_z" / "0.1.0", "train")]
    assert len(lengths) == 6
    assert lengths[1] == 0 and 1 <= lengths[2] < 5
    assert all(1 <= length <= 9 for length in (lengths[0], *lengths[2:]))
    assert len(set(lengths)) > 3


def test_an_equal_sample_is_left_alone(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("tidybot")
    first = make_sample(tmp_path, [spec], episodes=1, steps=1, jobs=1)
    before = [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))]
    second = make_sample(tmp_path, [spec], episodes=1, steps=1, jobs=1)
    assert [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))] == before
    assert (first[0].status, second[0].status) == ("written", "up to date")
    assert first[0].splits == second[0].splits


def test_another_sample_is_only_replaced_when_asked(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("tidybot")
    make_sample(tmp_path, [spec], episodes=1, steps=1, jobs=1)
    with pytest.raises(ConflictError, match=r"steps 1 \(asked for: 2\); --overwrite replaces it"):
        make_sample(tmp_path, [spec], episodes=1, steps=2, jobs=1)
    make_sample(tmp_path, [spec], episodes=1, steps=2, jobs=1, overwrite=True)
    assert len(parsed(tmp_path / "tidybot" / "0.0.1")[0]["steps/reward"]) == 2


def test_what_is_no_sample_is_never_replaced(tmp_path: Path) -> None:
    real = tmp_path / "tidybot" / "0.0.1"
    real.mkdir(parents=True)
    (real / "dataset_info.json").write_text("{}")
    with pytest.raises(ConflictError, match="is not a sample"):
        make_sample(tmp_path, [REGISTRY.dataset("tidybot")], overwrite=True)
    assert digest(real) == {"dataset_info.json": b"{}"}


def test_nothing_is_left_beside_the_dataset(sample: Sample) -> None:
    assert os.listdir(sample("tidybot").parent) == ["0.0.1"]


def test_a_killed_run_leaves_no_dataset_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "convert.sample", "--datasets", "toto", "--output", str(tmp_path)]
    process = subprocess.Popen([*command, "--steps", "5000", "--jobs", "1"], cwd=REPOSITORY)
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.tfrecord-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = os.listdir(tmp_path / "toto")
    assert len(left) == 1 and left[0].endswith(".partial")
    make_sample(tmp_path, [REGISTRY.dataset("toto")], episodes=1, steps=1, jobs=1)
    assert os.listdir(tmp_path / "toto") == ["0.1.0"]


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    arguments = ["--datasets", "tidybot,bc_z", "--output", str(tmp_path), "--episodes", "2", "--steps", "1"]
    code, out, err = run(*arguments, "--jobs", "1")
    assert (code, err) == (0, "")
    rows = [line.split()[:5] for line in out.splitlines()]
    assert rows[1][:3] == ["tidybot", "train", "2"]
    assert rows[2][:5] == ["bc_z", "train", "val", "3", "3"]


def test_the_command_prints_json(tmp_path: Path) -> None:
    code, out, _ = run("--datasets", "tidybot", "--output", str(tmp_path), "--steps", "1", "--jobs", "1", "--json")
    report = json.loads(out)[0]
    assert code == 0
    assert (report["dataset"], report["status"]) == ("tidybot", "written")
    assert {key: report["splits"]["train"][key] for key in ("episodes", "steps")} == {"episodes": 4, "steps": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "tidybto"], "did you mean 'tidybot'?"),
        (["--datasets", "tidybot", "--episodes", "0"], "expected a whole number of at least 1"),
        (["--datasets", "tidybot", "--steps", "-3"], "expected a whole number of at least 1"),
        (["--datasets", "tidybot", "--shards", "two"], "expected a whole number of at least 1"),
        (["--datasets", "tidybot", "--seed", "-1"], "expected a whole number of at least 0"),
        (["--datasets", "tidybot", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_arguments_end_in_one_message_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, out, err = run("--output", str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_a_file_ends_in_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("--datasets", "tidybot", "--output", str(tmp_path / "file"), "--jobs", "1")
    assert code == 2
    assert "cannot be written to" in err and "Traceback" not in err


def test_a_dataset_without_known_features_is_refused(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("tidybot").model_copy(update={"tfds_name": "my_robot"})
    with pytest.raises(UsageError, match="my_robot: no feature tree"):
        make_sample(tmp_path, [spec])


@pytest.mark.skipif(not FACTS.exists(), reason="the facts about the datasets are not beside the repository")
def test_the_feature_trees_are_those_of_the_facts() -> None:
    for facts in json.loads(FACTS.read_text())["datasets"]:
        tree = read_feature_tree(facts["tfds_name"])
        assert described(tree) == expected(facts["features"]), facts["tfds_name"]


def described(node: Any) -> Any:
    kind = type(node).__name__
    if kind == "FeaturesDict":
        return {key: described(child) for key, child in node.items()}
    if kind in ("Dataset", "Sequence"):
        return kind, described(node.feature)
    dtype = np.dtype(node.np_dtype)
    encoding = node.encoding_format if kind == "Image" else node._encoding.value
    return kind, tuple(node.shape), "string" if dtype.kind in "OSU" else dtype.name, encoding


def expected(node: dict[str, Any]) -> Any:
    kind = node["kind"]
    children = {key: expected(child) for key, child in node.get("features", {}).items()}
    if kind == "FeaturesDict":
        return children
    if kind in ("Dataset", "Sequence"):
        return kind, children or expected(node["feature"])
    encoding = node["encoding_format"] if kind == "Image" else node.get("tensor_encoding", "none")
    return kind, tuple(node["shape"]), node["dtype"], encoding
