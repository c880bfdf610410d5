"""The OpenAPI document of the HTTP API, made from the catalogue: so it has every operation, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiermq import __version__
from tiermq.console.catalogue import Kind, Operation, Parameter

_ERRORS = {
    "400": {"description": "A parameter is missing or wrong; `error` is the reason."},
    "401": {"description": "Accounts are in use: send Authorization: Basic accessKey:secretKey."},
    "403": {"description": "Not allowed for this account, or the console only reads."},
    "405": {"description": "The other method: reads are GET, changes and what costs much are POST."},
    "421": {"description": "A Host header that is none of the console's names."},
    "429": {"description": "Too many log-ins that failed, or too many queries at a time."},
    "502": {"description": "A broker or the tier does not answer."},
}


def openapi(operations: Mapping[str, Operation]) -> dict[str, Any]:
    """The document. Reads are GET with parameters in the query, changes are POST with a JSON object."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TierMQ console",
            "version": __version__,
            "description": "The operations of the console; the pages and the `tiermq` command use the same.",
        },
        "paths": {f"/api/{name}": _path(each) for name, each in sorted(operations.items())},
        "components": {"securitySchemes": {"account": {"type": "http", "scheme": "basic"}}},
        "security": [{}, {"account": []}],
    }


def _path(operation: Operation) -> dict[str, Any]:
    group, _, _ = operation.name.partition(".")
    common = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [group],
        "responses": {
            "200": {"description": "The result.", "content": {"application/json": {"schema": {"type": "object"}}}},
            **_ERRORS,
        },
    }
    if operation.posts:
        properties = {each.name: {**_schema(each), "description": each.help} for each in operation.parameters}
        required = [each.name for each in operation.parameters if each.is_required]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {"post": {**common, "requestBody": body}}
    parameters = [
        {
            "name": each.name,
            "in": "query",
            "required": each.is_required,
            "description": each.help,
            "schema": _schema(each),
        }
        for each in operation.parameters
    ]
    return {"get": {**common, "parameters": parameters}}


def _schema(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string" if parameter.kind is Kind.MOMENT else parameter.kind.value}
    if parameter.kind is Kind.MOMENT:
        schema["description"] = "milliseconds since 1970, ISO 8601 (UTC unless it has a zone), or an age such as 1h"
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.kind is Kind.WHOLE:
        schema |= {"minimum": parameter.low, "maximum": parameter.high}
    if parameter.default is not None:
        schema["default"] = parameter.default
    return schema
