"""Settings of brokers: show, and change what can be changed while a broker runs."""

from __future__ import annotations

from tiermq.client.cluster_client import ClusterClient
from tiermq.console.catalogue import Parameter, Result, operation
from tiermq.console.sources import Visit, answering
from tiermq.errors import BadConfig, BadRequest, RemotingError
from tiermq.remoting.codes import RequestCode
from tiermq.settings import escaped_property, read_properties

BROKER = Parameter("broker", "Only this broker.")


@operation(
    "settings.show",
    "The settings that brokers run with, by RocketMQ's names.",
    BROKER,
    Parameter("search", "Only settings whose name contains this text."),
)
def show_settings(visit: Visit, *, broker: str | None, search: str | None) -> Result:
    part = (search or "").lower()

    async def asked(client: ClusterClient) -> dict[str, dict[str, str]]:
        found = {}
        for name, address in sorted((await answering(client, await client.masters())).items()):
            if broker in (None, name):
                body = bytes((await client.ask(address, RequestCode.GET_BROKER_CONFIG)).body)
                try:
                    properties = read_properties(body.decode())
                except (UnicodeError, BadConfig) as error:
                    raise RemotingError(f"{address}: its settings cannot be read: {error}") from error
                found[name] = {key: value for key, value in sorted(properties.items()) if part in key.lower()}
        return found

    brokers = visit.ask(asked)
    if not brokers:
        raise BadRequest(f"expected a broker {broker}, found none of that name at the name server")
    return {"brokers": brokers}


@operation(
    "settings.change",
    "Change a setting of a running broker; it is written into the file that the broker was started with.",
    Parameter("name", "RocketMQ's name of the setting.", is_required=True),
    Parameter("value", "The new value.", is_required=True),
    BROKER,
    changes=True,
)
def change_setting(visit: Visit, *, name: str, value: str, broker: str | None) -> Result:
    if not name.isidentifier():
        raise BadRequest(f"name: expected the name of a setting, found {name[:40]!r}")
    line = f"{name}={escaped_property(value)}\n".encode()

    async def changed(client: ClusterClient) -> dict[str, str | None]:
        masters = {each: address for each, address in (await client.masters()).items() if broker in (None, each)}
        if not masters:
            raise BadRequest(f"expected a broker {broker}, found none of that name at the name server")
        return {
            each: (await client.ask(address, RequestCode.UPDATE_BROKER_CONFIG, line)).remark
            for each, address in sorted(masters.items())
        }

    return {"name": name, "value": value, "brokers": visit.ask(changed)}
