"""Whether a schema that Spark hands over is one that the source can fill: names and types to the letter."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tiermq.errors import BadSchema
from tiermq.history.arrow_schema import arrow_schema, spark_schema_ddl
from tiermq.spark.options import SourceOptions


def columns_of_schema(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """The columns of a schema that a user gave, or that the source gave itself. Raises BadSchema, UnknownColumn."""
    names = tuple(schema.fieldNames())
    own = arrow_schema(names)
    given = to_arrow_schema(schema, timezone="UTC")
    for mine, field in zip(own, given, strict=True):
        if mine.type != field.type:
            expected = spark_schema_ddl([mine.name])
            raise BadSchema(
                f"column {mine.name}: expected {expected.partition(' ')[2]}, found "
                f"{schema[mine.name].dataType.simpleString().upper()}; declare it as {expected} and cast afterwards"
            )
        if not field.nullable:
            raise BadSchema(f"column {mine.name}: expected a column that may be null, found NOT NULL; leave that out")
    if options.columns and set(options.columns) != set(names):
        raise BadSchema(
            f"the schema has columns {', '.join(names)} and option columns names {', '.join(options.columns)}: "
            "give one of them"
        )
    return names
