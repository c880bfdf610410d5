"""Tables that history is exported to: Parquet directories, Delta and Iceberg; bodies as columns. No Spark in here.

Parallel names: `table_parquet`, `table_delta` and `table_iceberg` commit; `body_json`, `body_avro` and `body_protobuf`
decode.
"""
