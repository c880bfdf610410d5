"""Tables that history is exported to: Parquet directories, Delta and Iceberg; bodies as columns. No Spark in here.

Parallel names: `table_files` (Parquet), `table_delta` and `table_iceberg` commit; `body_format` (JSON), `body_avro` and
`body_protobuf` decode.
"""
