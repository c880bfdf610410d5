"""What a table's schema becomes when an export has other columns, or the reasons why it cannot.

    the export has          the table has           then
    a column of bodies      no such column          the table gets it; rows before it have null
    no such column          a column of bodies      new rows have null there
    a narrower type         a wider one             values are cast: always
    a wider type            a narrower one          the table's column is widened, where the format can
    anything else                                   nothing is written, and every difference is named

Wider: more bits of a whole or a floating number, more digits of a decimal with the same scale. Columns of messages do
not change, and neither do fields inside a struct.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tiermq.errors import BadSchema
from tiermq.history.arrow_schema import COLUMNS
from tiermq.tables.table_contract import plain_type

HINT = "Export the same columns as before, change the table, or export into a new one"


def fitting_schema(
    found: pa.Schema, wanted: pa.Schema, where: str, *, merge: bool, refusals: Mapping[str, str]
) -> pa.Schema:
    """The schema to write: the table's columns, then new ones. Raises BadSchema with every difference.

    Without `merge` the table must have just the columns that are wanted; narrower values are cast.
    """
    ours = {field.name: field for field in wanted}
    fields, problems = [], []
    for field in found:
        mine = ours.get(field.name)
        if mine is None:
            fields.append(field)
            if not merge or field.name in COLUMNS or not field.nullable:
                problems.append(f"column {field.name}: only the table has it")
        elif plain_type(field.type) == plain_type(mine.type):
            fields.append(mine.with_nullable(field.nullable))
        elif is_wider(field.type, mine.type):
            fields.append(field)
        elif merge and is_wider(mine.type, field.type) and field.name not in COLUMNS:
            fields.append(mine.with_nullable(field.nullable))
            if "widen" in refusals:
                problems.append(_differs(field, mine) + f", and {refusals['widen']}")
        else:
            problems.append(_differs(field, mine))
    theirs = set(found.names)
    for name, mine in ours.items():
        if name in theirs:
            continue
        fields.append(mine)
        if not merge or name in COLUMNS:
            problems.append(f"column {name}: only the export has it")
        elif not mine.nullable:
            problems.append(f"column {name}: only the export has it, and rows before it would have no key")
        elif "columns" in refusals:
            problems.append(f"column {name}: only the export has it, and {refusals['columns']}")
    if problems:
        hint = HINT if merge else f"{HINT}; --merge-schema adds columns of bodies to the table"
        raise BadSchema(
            f"{where}: the table's schema does not fit what would be exported: {'; '.join(sorted(problems))}. {hint}"
        )
    return pa.schema(fields)


def is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of the narrow type is one of the wide type."""
    if pa.types.is_signed_integer(wide) and pa.types.is_signed_integer(narrow):
        return bool(wide.bit_width > narrow.bit_width)
    if pa.types.is_floating(wide) and pa.types.is_floating(narrow):
        return bool(wide.bit_width > narrow.bit_width)
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision > narrow.precision)
    return False


def differ(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a column is new, or has another type."""
    types = {field.name: plain_type(field.type) for field in found}
    return any(types.get(field.name) != plain_type(field.type) for field in wanted)


def _differs(theirs: pa.Field, mine: pa.Field) -> str:
    return f"column {theirs.name}: the table has {plain_type(theirs.type)}, the export {plain_type(mine.type)}"
