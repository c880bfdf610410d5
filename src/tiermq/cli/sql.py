"""`tiermq sql`."""

from __future__ import annotations

from typing import Any

import click

from tiermq.cli.pipeline.sql import query_arguments, query_options, show_result


@click.command()
@query_options
@click.option("--dry-run", is_flag=True, help="Print what would be read; read no message.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, with its rows, as one JSON object.")
def sql(
    query: str,
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    form: str,
    limit: int,
    explain: bool,
    dry_run: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Query history in DuckDB's SQL, in this process. Every topic is a table; `messages` is all of them.

    Starts at once, and needs neither Spark nor Java: for queries that read up to some gigabytes. A note states when a
    query reads more than one process should; `tiermq pipeline sql` runs it on Spark.

    A table's name is its topic, in double quotes where it is no plain identifier: "a-b". A name in lower case and
    with an underscore for other characters works while it is unambiguous: a_b, and _retry_group for %RETRY%group.
    Only columns that the query names are decoded. Its plain conditions on topic, brokerName, queueId, queueOffset,
    storeTimestamp, tags, uniqKey and keys ('…' in keys, list_contains, @>) prune before anything is read, as --topic,
    --since, --until, --offsets, --key and --tag do; DuckDB checks all others row by row.

    \b
    Columns:
      topic, brokerName, queueId, queueOffset, tags, keys, uniqKey, body,
      properties, bornTimestamp, storeTimestamp, msgId, storeSize, deliverTime,
      tier, …; and Kafka's names: key, value, partition, offset, timestamp,
      headers

    \b
    Examples:
      tiermq sql --tier s3://history \\
          "select topic, count(*) from messages group by topic"
      tiermq sql "select queueOffset, decode(body) from orders" \\
          --tier s3://history --key order-42
      tiermq sql "select max(storeTimestamp) from orders" \\
          --store ~/store --explain
      tiermq sql "select decode(body)->>'price' as price from orders" \\
          --tier s3://history --since 2h --format csv
    """
    from tiermq.embedded.optional_modules import pyarrow_or_hint, require

    pyarrow_or_hint()
    require("duckdb", "sql")
    from tiermq.embedded.duckdb_query import query_history
    from tiermq.embedded.locations import tier_url
    from tiermq.pipeline.scan.scan_spec import scan_spec

    arguments = query_arguments(keys, tags, **source)
    if "tier" in arguments:
        arguments["tier"] = tier_url(arguments["tier"])
    report = query_history(query, scan_spec(**arguments), limit=limit, explain=explain, dry_run=dry_run)
    show_result(report, form, dry_run=dry_run, as_json=as_json)
