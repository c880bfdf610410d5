"""The entry point of an executor's container on Kubernetes: becomes the executor's JVM.

    python -m tiermq.spark.executor_pod executor

Spark's scheduler makes executor pods with the one argument `executor`, and passes everything else by variables. The
image's entry point makes a command of them; the pip package of PySpark has none. So a pod template gives this one
(`deploy/spark/executor.yaml`), for any image with `tiermq[spark]` and a Java:

    SPARK_DRIVER_URL, SPARK_EXECUTOR_ID, SPARK_APPLICATION_ID,       whose executor it is
    SPARK_EXECUTOR_POD_IP, SPARK_EXECUTOR_POD_NAME
    SPARK_EXECUTOR_CORES, SPARK_EXECUTOR_MEMORY, SPARK_RESOURCE_PROFILE_ID
    SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …                            options of the JVM, in the order of their numbers
    SPARK_CONF_DIR, SPARK_CLASSPATH                                  before Spark's own jars, where they are set

The Java is found as the driver's is (`tiermq.spark.java`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tiermq.errors import BadConfig, TierMQError

ARGUMENT = "executor"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
MEMORY = "SPARK_EXECUTOR_MEMORY"
OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def executor_command(java: Path, spark: Path, environment: Mapping[str, str]) -> list[str]:
    """The JVM of an executor. `spark`: the directory with Spark's jars. Raises BadConfig for missing variables."""
    missing = [name for name in (*OPTIONS.values(), MEMORY) if not environment.get(name)]
    if missing:
        raise BadConfig(
            f"expected the variables that Spark's scheduler gives an executor pod, found no {', '.join(missing)}. "
            "Pods of executors are made by Spark: start a job with --master k8s://…, and see deploy/spark"
        )
    found = {match: value for name, value in environment.items() if (match := _JAVA_OPTION.fullmatch(name))}
    options = [value for _, value in sorted((int(match[1]), value) for match, value in found.items())]
    before = [environment.get(name, "") for name in ("SPARK_CONF_DIR", "SPARK_CLASSPATH")]
    memory = environment[MEMORY]
    return [
        str(java),
        *options,
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        os.pathsep.join([*filter(None, before), str(spark / "*")]),
        BACKEND,
        *(word for option, name in OPTIONS.items() for word in (option, environment[name])),
    ]


def main(arguments: list[str]) -> None:
    """Does not return. Exits with a message where an executor cannot be started."""
    if arguments != [ARGUMENT]:
        sys.exit(f"expected the argument {ARGUMENT!r}, which Spark gives to executor pods, found {arguments}")
    import pyspark

    from tiermq.spark.java import find_java, quiet_home

    try:
        java = quiet_home(find_java()) / "bin" / "java"
        command = executor_command(java, Path(pyspark.__file__).parent / "jars", os.environ)
    except TierMQError as error:
        sys.exit(f"no executor was started: {error}")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
