"""Wrong options, names and configurations: one message, exit code 2, and nothing is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ("brigde_datset", "error: unknown dataset or mixture 'brigde_datset'; did you mean 'bridge_dataset'?"),
        ("demo,rt2", "error: unknown dataset 'rt2'; did you mean 'rt1'?"),
        ("oxe_29", "error: unknown dataset or mixture 'oxe_29'; did you mean 'oxe29'?"),
        ("mine.yaml", "error: mine.yaml: cannot be read: No such file or directory"),
    ],
)
def test_unknown_name_of_datasets_lists_the_closest(refused: Refused, datasets: str, message: str) -> None:
    assert refused(datasets=datasets) == message


WRONG_ENTRIES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "cameras": {
                "image": {"path": "observation/imge", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]}
            }
        },
        ["camera 'observation/imge' is not in", "did you mean 'observation/image'?"],
    ),
    (
        {"instruction": {"path": "observation/language_instruction"}},
        ["instruction 'observation/language_instruction' is not in", "did you mean 'language_instruction'?"],
    ),
    (
        {"action": [{"path": "action", "dims": 7, "quantity": "joint_position", "kind": "absolute"}]},
        ["error: demo: action has 2 values (2,); the registry takes all 7"],
    ),
    ({"instruktion": {"path": "x"}}, ["unknown key 'instruktion'; did you mean 'instruction'?"]),
]


@pytest.mark.parametrize(("fields", "messages"), WRONG_ENTRIES)
def test_entry_that_does_not_fit_the_source_says_what_would(
    refused: Refused, fields: dict[str, Any], messages: list[str]
) -> None:
    error = refused(**fields)
    assert all(message in error for message in messages)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("--cameras", "wrist"), "error: demo has no camera 'wrist'; it has image (primary)"),
        (("--episodes", "trian"), "no split 'trian'; did you mean 'train'?"),
        (("--episodes", "test"), "split 'test' has no episodes"),
        (("--episodes", "train[3:]"), "leaves nothing of"),
        (("--episodes", "train[3:]"), "train: 3 episodes"),
        (("--episodes", "trian[:1]"), "train: 3 episodes, val: 2 episodes"),
        (("--episodes", "train["), "train["),
        (("--runner", "FlinkyRunner"), "no Beam runner 'FlinkyRunner'"),
        (("--redo", "train-00001-of-00001"), "no such shard; did you mean 'train-00000-of-00001'"),
        (("--offset", "0s"), "0s"),
        (("--quality", "0"), "--quality 0: expected 1 to 100"),
        (("--num-worker=2",), "unknown option --num-worker=2, neither ours nor Beam's; did you mean --num-workers?"),
        (("--ovewrite",), "unknown option --ovewrite, neither ours nor Beam's; did you mean --overwrite?"),
        (("--projct=x",), "unknown option --projct=x, neither ours nor Beam's; did you mean --project?"),
    ],
)
def test_value_that_cannot_be_is_refused(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)


def test_offset_in_seconds_needs_a_control_frequency(refused: Refused) -> None:
    error = refused("--offset", "0.6s", control_frequency=None)
    assert error == (
        "error: --offset 0.6s is in seconds, but these have no fixed rate: demo; give --offset in steps, or convert "
        "them apart (--datasets demo --offset STEPS) and the others by their names"
    )
