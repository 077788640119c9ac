"""Checks of the job server of a portable runner (Flink, Spark, any by --job_endpoint) before it is needed.

Beam starts the Java job server of its Flink and Spark runners itself, from a jar that it downloads from Maven unless
one is named. Without a network it waits for the network's timeout, and then names no option that would help.
"""

from __future__ import annotations

import os
import shutil
import socket
import urllib.request
from urllib.parse import urlparse

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)
from apache_beam.utils.subprocess_server import JavaJarServer

from convert.errors import UsageError

PORTABLE_RUNNERS = ("FlinkRunner", "PortableRunner", "SparkRunner")
_JARS = {
    "FlinkRunner": (FlinkRunnerOptions, "flink_job_server_jar"),
    "SparkRunner": (SparkRunnerOptions, "spark_job_server_jar"),
}
_PATIENCE = 20.0


def check_jar(runner: str, options: PipelineOptions) -> None:
    """Raise UsageError if the named jar is neither a file nor an address."""
    jar_path = _named_jar(runner, options)
    if jar_path and not os.path.isfile(jar_path) and not urlparse(jar_path).scheme:
        raise UsageError(f"--{_JARS[runner][1]} {jar_path}: no such file")


def reach_job_server(runner: str, options: PipelineOptions) -> None:
    """Raise UsageError unless the job server answers, or can be started here: Java, and the jar or a way to it."""
    if endpoint := options.view_as(PortableOptions).job_endpoint:
        _reach_endpoint(endpoint)
        return
    if runner not in _JARS:
        raise UsageError(f"the {runner} needs --job_endpoint HOST:PORT, or --runner FlinkRunner or SparkRunner")
    servers = options.view_as(JobServerOptions)
    flink, spark = options.view_as(FlinkRunnerOptions), options.view_as(SparkRunnerOptions)
    # With an uber jar, Beam's Python sends the jar to the cluster, and no Java runs here.
    starts_java = not (flink.flink_submit_uber_jar or spark.spark_submit_uber_jar)
    if starts_java and not shutil.which(servers.job_server_java_launcher):
        raise UsageError(
            f"the {runner} starts a Java job server, but there is no {servers.job_server_java_launcher!r}; install "
            "Java 11 or newer, name it with --job_server_java_launcher, or a running server with --job_endpoint"
        )
    _reach_jar(runner, options, servers.jar_cache_dir or JavaJarServer.JAR_CACHE)


def _named_jar(runner: str, options: PipelineOptions) -> str | None:
    view, option_name = _JARS.get(runner, (FlinkRunnerOptions, ""))
    return getattr(options.view_as(view), option_name, None)


def _reach_endpoint(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise UsageError(f"--job_endpoint {endpoint}: nothing answers there ({error.strerror or error})") from None


def _reach_jar(runner: str, options: PipelineOptions, cache_folder: str) -> None:
    jar_path = _named_jar(runner, options)
    if not jar_path:
        flink_name = f"flink:{options.view_as(FlinkRunnerOptions).flink_version}"
        cluster_name = flink_name if runner == "FlinkRunner" else "spark:3"
        jar_path = str(JavaJarServer.path_to_beam_jar(f":runners:{cluster_name}:job-server:shadowJar"))
    address = urlparse(jar_path)
    cached_jar = os.path.join(cache_folder, os.path.basename(jar_path))
    if os.path.isfile(jar_path) or os.path.isfile(cached_jar) or address.scheme not in ("http", "https"):
        return
    try:
        urllib.request.urlopen(urllib.request.Request(jar_path, method="HEAD"), timeout=_PATIENCE).close()
    except OSError as error:
        raise UsageError(
            f"the jar of Beam's job server is not available from {jar_path} ({getattr(error, 'reason', error)}); copy "
            f"it here and name it with --{_JARS[runner][1]} PATH, or put it at {cached_jar}"
        ) from None
