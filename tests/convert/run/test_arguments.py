from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from convert.errors import EXIT_USAGE, UsageError
from convert.plan import ConvertConfig
from convert.run.config import check_request, parse_size
from convert.run.inherited import inherit_options, stored_codecs
from convert.run.request import parse_request
from convert.shard.images import FramePolicy

REQUIRED = ["--datasets", "oxe29", "--source", "/mirror", "--output", "out"]


def options(*arguments: str) -> ConvertConfig:
    return check_request(inherit_options(parse_request([*REQUIRED, *arguments])))


def test_without_options_everything_is_as_documented() -> None:
    policy = FramePolicy(size=(256, 256), resize="stretch", quality=95)
    assert options() == ConvertConfig(policy=policy, offset=None, frames="endpoints", on_error="quarantine")
    request = parse_request(REQUIRED)
    assert (request.num_workers, request.task_index, request.task_count) == (None, 0, 1)


def test_every_option_of_the_conversion_arrives() -> None:
    given = (
        "--cameras wrist --image-size 180x320 --resize crop --quality 90 --offset 12s --frames fixed:3 --on-error fail"
    )
    assert options(*given.split(), "--episodes", "train + val+train", "--leave-out", "depth*") == ConvertConfig(
        splits=("train", "val"),
        cameras=("wrist",),
        policy=FramePolicy(size=(180, 320), resize="crop", quality=90),
        offset="12s",
        frames="fixed:3",
        leave_out=("depth*",),
        on_error="fail",
    )


def test_sources_and_configs_may_be_repeated() -> None:
    request = parse_request([*REQUIRED, "--source", "gs://b", "--config", "a.yaml", "--config", "b.yaml"])
    assert request.source == ("/mirror", "gs://b")
    assert request.config == ("a.yaml", "b.yaml")


@pytest.mark.parametrize(
    ("value", "splits", "ranges"),
    [
        ("train", ("train",), None),
        ("val+train", ("val", "train"), None),
        ("all", None, None),
        ("train+all", None, None),
        ("train[:5%]", None, "train[:5%]"),
        ("train+val[:1]", None, "train+val[:1]"),
        ("lists.json", None, None),
        ("/a/b+c/lists, of[1]: mine.json", None, None),
        ("train:lists.json", ("train",), None),
        ("train+val:/a/lists.json", ("train", "val"), None),
    ],
)
def test_episodes_are_complete_splits_or_ranges_or_a_list(
    value: str, splits: tuple[str, ...] | None, ranges: str | None
) -> None:
    config = options("--episodes", value)
    assert (config.splits, config.episodes) == (splits, ranges)


OLD_OPTIONS = {
    "--camera wrist": "--camera is now --cameras, in both layouts; write --cameras wrist",
    "--camera=wrist --layout pairs": "--camera is now --cameras, in both layouts; write --cameras wrist",
    "--splits train,val": "--splits is now a part of --episodes; write --episodes train+val",
    "--splits=train --episodes a.json": "--splits is now a part of --episodes; write --episodes train:a.json",
    "--finalize": "--finalize is now a subcommand; write pairstream convert finalize --datasets ... --output ...",
    "--remove --dry-run": "--remove is now a subcommand; write pairstream convert remove --datasets ... --output ...",
}


@pytest.mark.parametrize("arguments", OLD_OPTIONS)
def test_an_option_of_earlier_versions_is_refused_with_the_form_to_write(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_request([*REQUIRED, *arguments.split()])
    assert caught.value.code == EXIT_USAGE
    assert capsys.readouterr().err == f"error: {OLD_OPTIONS[arguments]}; see pairstream convert --help\n"


@pytest.mark.parametrize(
    ("command", "option", "message"),
    [
        *[
            ("finalize", option, f"{option} is an option of pairstream convert, not of pairstream convert finalize")
            for option in ("--overwrite", "--dry-run", "--task-count=2", "--redo")
        ],
        *[
            ("remove", option, f"{option} is an option of pairstream convert, not of pairstream convert remove")
            for option in ("--overwrite", "--redo", "--task-count=2", "--cameras", "--num-workers=1")
        ],
        ("remove", "--runner=DaskRunner", "unknown option --runner=DaskRunner"),
        ("remove", "--camera=wrist", "--camera is now --cameras"),
        ("finalise", "--overwrite", "no subcommand 'finalise'; did you mean 'finalize'?"),
        ("bridge", "--overwrite", "no subcommand 'bridge'; subcommands there: finalize, remove; without one, datasets"),
    ],
)
def test_a_subcommand_refuses_the_options_that_it_lacks(
    command: str, option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_request([command, *REQUIRED, option])
    assert caught.value.code == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_finalize_takes_the_options_of_its_conversion_and_of_beam() -> None:
    frames = ("--layout", "frames", "--cameras", "all", "--episodes", "train")
    given = (*frames, "--on-error", "fail", "--num-workers", "2", "--runner", "DaskRunner")
    finalize, convert = parse_request(["finalize", *REQUIRED, *given]), parse_request([*REQUIRED, *given])
    assert (finalize.command, convert.command) == ("finalize", "convert")
    assert replace(finalize, command="convert") == convert


@pytest.mark.parametrize("beam_arguments", [("--runner", "DaskRunner", "--project=p"), ("--qual", "5")])
def test_other_options_and_beginnings_of_ours_are_left_to_beam(beam_arguments: tuple[str, ...]) -> None:
    assert parse_request([*REQUIRED, *beam_arguments]).beam_arguments == beam_arguments


@pytest.mark.parametrize(("patterns", "expected"), [(["none"], ()), (["a", "b"], ("a", "b")), (["none", "a"], ("a",))])
def test_none_keeps_all_features(patterns: list[str], expected: tuple[str, ...]) -> None:
    assert options(*(word for pattern in patterns for word in ("--leave-out", pattern))).leave_out == expected


WRONG = {
    "--episodes train,val": "--episodes 'train,val': a plus joins splits, as in TFDS; write train+val",
    "--episodes train[:5%]:a.json": "--episodes train[:5%]:a.json: a list is of complete splits, SPLIT+SPLIT:FILE.json",
    "--episodes=": "--episodes is empty; is a variable of the shell not set?",
    "--cameras=": "--cameras is empty; is a variable of the shell not set?",
    "--cameras wrist,primary": "--cameras wrist,primary: a pair is of one camera; name one, or add --layout frames",
    "--cameras all": "--cameras all: a pair is of one camera",
    "--quality 0": "--quality 0: expected 1 to 100",
    "--quality 101": "--quality 101: expected 1 to 100",
    "--num-workers 0": "--num-workers 0: expected 1 or more",
    "--task-index 3 --task-count 3": "--task-index 3 --task-count 3: the index goes from 0 to count - 1",
    "--task-index -1": "the index goes from 0 to count - 1",
    "--task-count 0": "the index goes from 0 to count - 1",
    "--overwrite --task-count 2": "--overwrite would remove the work of the other tasks",
    "--redo train-00000-of-00001 --overwrite": "--redo cannot be combined with --overwrite: it converts single shards",
    "--staging /nowhere/at/all": "--staging /nowhere/at/all: no such folder",
    "--offset soon": "--offset 'soon' is neither a number of steps (5) nor seconds (0.6s)",
    "--frames stride:0": "stride:0",
    "--frames fixed:1": "fixed:1",
    "--frames some": "frames 'some' is none of: endpoints, all, stride:S",
    "--image-size large": "--image-size 'large' is none of: 256, HxW (180x320), native",
    "--image-size 0": "--image-size '0': sides go from 1 to 8192",
    "--codec h265": "--codec 'h265': did you mean 'h264'?",
    "--codec h264": "--codec h264 works with --layout frames; the two frames of a pair are not consecutive",
    "--layout frames --cameras all --codec h264 --quality 90": "--quality is for --codec jpeg; h264 has --crf",
    "--codec raw --subsampling 444": "--subsampling is for --codec jpeg; raw is exact",
    "--gop 8": "--gop is for --codec h264 and av1; JPEG has --quality",
    "--layout frames --codec raw --crf 20": "--crf is for --codec h264 and av1",
    "--layout frames --codec h264 --gop 65": "--gop 65: expected 1 to 64",
    "--layout frames --codec h264 --gop 0": "--gop 0: expected 1 to 64",
    "--layout frames --codec h264 --crf 52": "--crf 52: expected 0 to 51",
    "--layout frames --codec av1 --crf 64": "--crf 64: expected 0 to 63",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_value_that_cannot_be_is_refused_with_what_can(arguments: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(*arguments.split())
    assert WRONG[arguments] in str(caught.value)


@pytest.mark.parametrize("arguments", [["--resize", "squash"], ["--on-error", "ignore"], ["--quality", "high"]])
def test_a_word_that_is_no_choice_ends_with_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options(*arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "x", "256x", "x256", "-1", "2.5", "256X256", "1x2x3", "²", "9" * 5000, "9000", "0x5"]
)
def test_a_size_in_no_known_form_or_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--image-size"):
        parse_size(text)


def stored(codec: str = "jpeg", *, gop: int = 8, crf: int = 18, layout: str = "frames") -> Any:
    """A manifest of a dataset with one camera."""
    parameters: dict[str, Any] = {"cameras": ["image"]}
    if codec != "jpeg":
        parameters["codec"] = {"image": codec}
    if codec in ("h264", "av1"):
        parameters |= {"gop": {"image": gop}, "crf": {"image": crf}}
    return SimpleNamespace(layout=layout, parameters=parameters)


def found(*manifests: Any, **options: Any) -> dict[str, Any]:
    return stored_codecs(manifests, replace(parse_request(REQUIRED), **options))


def test_what_is_stored_stays() -> None:
    assert found(stored(), stored()) == {"codec": "jpeg"}
    assert found(stored("h264", gop=5)) == {"codec": "jpeg,image:h264", "gop": 5}
    assert found(stored("h264", gop=5, crf=23)) == {"codec": "jpeg,image:h264", "gop": 5, "crf": 23}
    assert found(stored("h264"), codec="raw") == {}


@pytest.mark.parametrize(
    ("manifests", "options_given", "message"),
    [
        ((stored("h264"), stored()), {}, "camera image is h264 and jpeg; give --codec"),
        ((stored("h264", gop=5), stored("h264", gop=7)), {}, "their video has --gop 5 and 7; give one"),
        ((stored("h264", crf=20), stored("h264")), {}, "their video has --crf 18 and 20; give one"),
        (
            (stored("h264"),),
            {"crf": 40},
            "--crf 40: chunks of the same codec and --gop pass through as they are, of crf 18",
        ),
        ((stored("h264"),), {"crf": 40, "gop": 8}, "--crf 40: chunks of the same codec"),
    ],
)
def test_datasets_that_differ_or_would_pass_through_are_refused(
    manifests: tuple[Any, ...], options_given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        found(*manifests, **options_given)


def test_another_gop_lets_a_crf_be_given() -> None:
    assert found(stored("h264"), crf=40, gop=4)["codec"] == "jpeg,image:h264"
