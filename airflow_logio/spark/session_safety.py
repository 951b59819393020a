"""Settings that are always on in sessions which evaluate chains. Tasks launch drivers with them, and need no Arrow for it."""

from __future__ import annotations

from collections.abc import Mapping

WRITER_SAFETY: Mapping[str, str] = {
    # Hadoop's committer: its version 1 moves what tasks have written when all have committed, version 2 task by task.
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    # Times as every reader understands them, and dates as they are.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Columns that Spark makes of what variants have in common are Spark's alone.
    "spark.sql.variant.writeShredding.enabled": "false",
}
"""Settings of the session that decide what is written, and how it is committed: no option of one write does. A function
that is called for another event may change the session meanwhile: a seal finds out what its files have become."""

SHUFFLE_SAFETY: Mapping[str, str] = {
    # A task that runs again after its output was lost may make other records, which others have half of already (ADR-81).
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    # Those others may have ended within the same query: what is broadcast is the result of a job of its own.
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "true",
}
"""Since Spark 4.2. An earlier one takes any property that it does not know, and ignores it."""

ONE_ATTEMPT: Mapping[str, str] = {
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",
}
"""A job fails if what was shuffled is lost, and runs again as a whole: for chains, and wherever Spark may not know
`SHUFFLE_SAFETY` (ADR-81, ADR-199). Properties of an application: they are set when it is launched."""

GUARDED_SINCE = (4, 2)
"""The first version of Spark that knows `SHUFFLE_SAFETY`."""
FRAMES_SINCE = (4, 0)
"""The first version that can evaluate chains."""

FRAMES_SAFETY: Mapping[str, str] = {**WRITER_SAFETY, **SHUFFLE_SAFETY}
"""Settings that are always on in drivers that evaluate chains."""
