"""Wrong options, names and configurations: one message, exit code 2, and nothing is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from convert.errors import EXIT_USAGE
from convert.run.command import main
from tests.fixtures.command import Result
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Two splits with five episodes of six steps, and one without any."""
    splits = {
        "train": [[demo_episode(6, seed=i) for i in range(3)]],
        "val": [[demo_episode(6, seed=i + 5) for i in range(2)]],
    }
    return write_dataset(tmp_path_factory.mktemp("source"), splits={**splits, "test": [[]]})


@pytest.fixture
def refused(dataset: RldsDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command with further arguments; returns the error after checking that nothing else came of it."""

    def run(*arguments: str, datasets: str = "demo", source: Path = dataset.root, **fields: object) -> str:
        output = tmp_path / "out"
        config = dataset.registry(**fields)
        common = ["--datasets", datasets, "--source", str(source), "--output", str(output), "--config", str(config)]
        code = main([*common, "--num-workers", "1", *arguments])
        error = Result(code, *capsys.readouterr()).error()
        assert code == EXIT_USAGE
        assert not output.exists()
        return error

    return run


def test_unknown_dataset_lists_the_closest_names(refused: Refused) -> None:
    assert refused(datasets="brigde_datset") == (
        "error: unknown dataset or mixture 'brigde_datset'; did you mean 'bridge_dataset'?"
    )


def test_unknown_dataset_in_a_list_lists_the_closest_names(refused: Refused) -> None:
    assert refused(datasets="demo,rt2") == "error: unknown dataset 'rt2'; did you mean 'rt1'?"


def test_unknown_mixture_lists_the_closest_names(refused: Refused) -> None:
    assert refused(datasets="oxe_29") == "error: unknown dataset or mixture 'oxe_29'; did you mean 'oxe29'?"


def test_datasets_file_that_does_not_exist_is_named(refused: Refused) -> None:
    assert refused(datasets="mine.yaml") == "error: mine.yaml: cannot be read: No such file or directory"


def test_config_that_does_not_exist_is_named(refused: Refused) -> None:
    assert "nowhere.yaml: cannot be read" in refused("--config", "nowhere.yaml")


def test_wrong_image_key_lists_the_closest_feature(refused: Refused) -> None:
    camera = {"path": "observation/imge", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]}
    error = refused(cameras={"image": camera})
    assert "camera 'observation/imge' is not in" in error
    assert "did you mean 'observation/image'?" in error


def test_wrong_instruction_path_lists_the_closest_feature(refused: Refused) -> None:
    error = refused(instruction={"path": "observation/language_instruction"})
    assert "instruction 'observation/language_instruction' is not in" in error
    assert "did you mean 'language_instruction'?" in error


def test_wrong_number_of_action_values_says_both(refused: Refused) -> None:
    error = refused(action=[{"path": "action", "dims": 7, "quantity": "joint_position", "kind": "absolute"}])
    assert error == "error: demo: action has 2 values (2,); the registry takes all 7"


def test_typo_in_a_registry_key_lists_the_closest_key(refused: Refused) -> None:
    error = refused(instruktion={"path": "language_instruction"})
    assert "unknown key 'instruktion'; did you mean 'instruction'?" in error


def test_unknown_camera_lists_those_there_are(refused: Refused) -> None:
    assert refused("--camera", "wrist") == "error: demo has no camera 'wrist'; it has image (primary)"


def test_unknown_split_lists_the_closest_name(refused: Refused) -> None:
    assert refused("--splits", "trian").endswith("no split 'trian'; did you mean 'train'?")


def test_split_without_episodes_is_refused(refused: Refused) -> None:
    assert refused("--splits", "test").endswith("split 'test' has no episodes")


def test_episodes_that_leave_nothing_are_refused_with_the_number_there_is(refused: Refused) -> None:
    error = refused("--episodes", "train[3:]")
    assert "episodes 'train[3:]' leaves nothing of" in error
    assert "train: 3 episodes" in error


def test_episodes_of_an_unknown_split_name_those_there_are(refused: Refused) -> None:
    assert "train: 3 episodes, val: 2 episodes" in refused("--episodes", "trian[:1]")


def test_unknown_runner_is_named(refused: Refused) -> None:
    assert "no Beam runner 'FlinkyRunner'" in refused("--runner", "FlinkyRunner")


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--num-worker=2", "--num-workers"), ("--ovewrite", "--overwrite"), ("--projct=x", "--project")],
)
def test_unknown_option_suggests_the_closest(refused: Refused, option: str, meant: str) -> None:
    assert refused(option) == (f"error: unknown option {option}, neither ours nor Beam's; did you mean {meant}?")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--image-size", "256x"), "--image-size '256x' is none of: 256, HxW (180x320), native"),
        (("--image-size", "0"), "--image-size '0': sides go from 1 to 8192"),
        (("--image-size", "64x9000"), "--image-size '64x9000': sides go from 1 to 8192"),
        (("--quality", "0"), "--quality 0: expected 1 to 100"),
        (("--quality", "101"), "--quality 101: expected 1 to 100"),
        (("--num-workers", "0"), "--num-workers 0: expected 1 or more"),
        (("--task-index", "3", "--task-count", "3"), "the index goes from 0 to count - 1"),
        (("--task-index", "-1", "--task-count", "3"), "the index goes from 0 to count - 1"),
        (("--task-count", "0"), "the index goes from 0 to count - 1"),
        (("--overwrite", "--task-count", "2"), "run it once without --task-count"),
        (("--finalize", "--overwrite"), "--finalize cannot be combined with --overwrite"),
        (("--finalize", "--dry-run"), "--finalize cannot be combined with --overwrite, --dry-run"),
        (
            ("--finalize", "--task-count", "2"),
            "--finalize cannot be combined with --overwrite, --dry-run or --task-count",
        ),
        (("--redo", "train-00000-of-00001", "--overwrite"), "--redo cannot be combined with --overwrite or --finalize"),
        (("--redo", "train-00000-of-00001", "--finalize"), "--redo cannot be combined with --overwrite or --finalize"),
        (("--redo", "train-00001-of-00001"), "no such shard; did you mean 'train-00000-of-00001'"),
        (("--splits", "train", "--episodes", "val"), "--splits and --episodes exclude each other"),
        (("--splits", ","), "--splits ',' names no split"),
        (("--offset", "0"), "0"),
        (("--offset", "-1"), "-1"),
        (("--offset", "soon"), "soon"),
        (("--offset", "0s"), "0s"),
        (("--frames", "some"), "some"),
        (("--frames", "stride:0"), "stride:0"),
        (("--frames", "fixed:1"), "fixed:1"),
        (("--episodes", "train["), "train["),
    ],
)
def test_value_out_of_range_is_refused(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)


def test_offset_in_seconds_needs_a_control_frequency(refused: Refused) -> None:
    error = refused("--offset", "0.6s", control_frequency=None)
    assert error == (
        "error: --offset 0.6s is in seconds, but these have no fixed rate: demo; give --offset in steps, or convert "
        "them apart (--datasets demo --offset STEPS) and the others by their names"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--quality", "high"), "--quality"),
        (("--resize", "zoom"), "--resize"),
        (("--on-error", "ignore"), "--on-error"),
        (("--task-index", "one"), "--task-index"),
    ],
)
def test_value_of_another_kind_is_refused_with_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--datasets", "demo", "--source", str(tmp_path), "--output", str(tmp_path / "out"), *arguments])
    assert stopped.value.code == EXIT_USAGE
    assert f"error: argument {message}" in capsys.readouterr().err
