"""The runner of a command line, and its options."""

from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from beam_jobs.options import RunnerChoice, choose_runner, open_runner
from convert.errors import UsageError


def choose(*arguments: str, num_workers: int = 2) -> RunnerChoice:
    return choose_runner(arguments, num_workers=num_workers, program_flags=["--num-workers", "--overwrite"])


def test_default_is_the_in_process_runner_and_downloads_nothing(tmp_path: Path) -> None:
    with open_runner(choose(), tmp_path) as (runner, _):
        assert isinstance(runner, FnApiRunner)


def test_direct_runner_means_the_in_process_runner_too(tmp_path: Path) -> None:
    with open_runner(choose("--runner", "DirectRunner"), tmp_path) as (runner, _):
        assert isinstance(runner, FnApiRunner)


@pytest.mark.parametrize(
    ("runner_name", "meant"),
    [
        ("direct", "DirectRunner"),
        ("directrunner", "DirectRunner"),
        ("Dask", "DaskRunner"),
        ("dataflow", "DataflowRunner"),
    ],
)
def test_runner_may_be_named_in_any_case_and_without_its_ending(runner_name: str, meant: str) -> None:
    assert choose(f"--runner={runner_name}").name == meant


def test_unknown_runner_lists_the_closest() -> None:
    with pytest.raises(UsageError, match=r"^no Beam runner 'DasckRunner'; did you mean 'DaskRunner'"):
        choose("--runner", "DasckRunner")


def test_unknown_runner_that_is_like_none_lists_all() -> None:
    with pytest.raises(UsageError, match=r"runners there: DaskRunner, DataflowRunner, DirectRunner, .*PortableRunner$"):
        choose("--runner", "my.module.Thing")


@pytest.mark.parametrize(
    ("option", "meant"), [("--num-worker", "--num-workers"), ("--worker_machine_typ", "--worker_machine_type")]
)
def test_unknown_option_suggests_ours_or_beams(option: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"^unknown option {option}, neither ours nor Beam's; did you mean {meant}"):
        choose(option, "1")


def test_unknown_option_that_is_like_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"^unknown option --xyzzy=1, neither ours nor Beam's$"):
        choose("--xyzzy=1")


def test_argument_that_is_no_option_is_named() -> None:
    with pytest.raises(UsageError, match=r"^unknown option stray"):
        choose("stray")


def test_option_of_beam_with_a_wrong_value_is_named() -> None:
    with pytest.raises(UsageError, match="argument --direct_num_workers: invalid int value: 'many'"):
        choose("--direct_num_workers", "many")


def test_options_of_beam_reach_the_pipeline(tmp_path: Path) -> None:
    choice = choose("--requirements_file", "more.txt", "--machine_type=n2-standard-4")
    with open_runner(choice, tmp_path) as (_, options):
        assert options.view_as(SetupOptions).requirements_file == "more.txt"
        assert options.view_as(WorkerOptions).machine_type == "n2-standard-4"


def dask_options(scratch: Path, *arguments: str) -> dict[str, Any]:
    """The options of Dask that the pipeline gets; with an address no cluster is started."""
    pytest.importorskip("dask.distributed")
    choice = choose("--runner=DaskRunner", "--dask_client_address=tcp://host:1", *arguments)
    with open_runner(choice, scratch) as (_, options):
        everything: dict[str, Any] = PipelineOptions.get_all_options(options)
        return everything


def test_dask_gets_one_shard_a_partition(tmp_path: Path) -> None:
    assert dask_options(tmp_path)["partition_size"] == 1


def test_partitions_of_dask_may_be_chosen(tmp_path: Path) -> None:
    chosen = dask_options(tmp_path, "--dask_npartitions=7")
    assert (chosen["npartitions"], chosen["partition_size"]) == (7, None)


def test_cluster_of_dask_that_runs_elsewhere_is_used(tmp_path: Path) -> None:
    assert dask_options(tmp_path)["address"] == "tcp://host:1"
