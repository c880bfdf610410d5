"""A client of the protocol by grpcio, without a library of RocketMQ: one call at a time, as the test says."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import queue
from collections.abc import Iterator
from typing import Any, Self

import grpc

from tiermq.grpc.messages import SERVICE, Message, TelemetryCommand, answer_class, request_class

DATE = "20261118T000000Z"
STREAMS = ("ReceiveMessage", "PullMessage")
_numbers = itertools.count(1)


class GrpcPeer:
    """See the module."""

    def __init__(
        self, port: int, *, client_id: str = "", account: tuple[str, str] | None = None, tls: str = ""
    ) -> None:
        """`account`: its key and secret. `tls`: the certificate to trust."""
        place = f"127.0.0.1:{port}"
        if tls:
            named = [("grpc.ssl_target_name_override", "server")]
            self.channel = grpc.secure_channel(place, grpc.ssl_channel_credentials(tls.encode()), named)
        else:
            self.channel = grpc.insecure_channel(place)
        self.client_id = client_id or f"client-{next(_numbers)}"
        self.account = account
        self._commands: queue.Queue[Any] = queue.Queue()
        self._streams = [self._commands]
        self.telemetry: Any = None

    @property
    def metadata(self) -> list[tuple[str, str]]:
        found = [("x-mq-client-id", self.client_id), ("x-mq-date-time", DATE), ("x-mq-language", "PYTHON")]
        if self.account is not None:
            key, secret = self.account
            signature = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()
            words = f"MQv2-HMAC-SHA1 Credential={key}/region, SignedHeaders=x-mq-date-time, Signature={signature}"
            found.append(("authorization", words))
        return found

    def call(self, method: str, request: Any = None, *, timeout_s: float = 60.0, **fields: Any) -> Any:
        """The answer, or the list of answers of a call with several."""
        made = request_class(method)(**fields) if request is None else request
        kind = self.channel.unary_stream if method in STREAMS else self.channel.unary_unary
        stub = kind(SERVICE + method, type(made).SerializeToString, answer_class(method).FromString)
        found = stub(made, metadata=self.metadata, timeout=timeout_s)
        return list(found) if method in STREAMS else found

    # What most tests do.

    def message(self, topic: str, body: bytes = b"hello", **system: Any) -> Any:
        made = Message(topic={"name": topic}, body=body)
        made.system_properties.message_id = f"ID-{next(_numbers)}"
        for name, value in system.items():
            if name == "delivery_s":
                made.system_properties.delivery_timestamp.seconds = value
            elif name == "born_s":
                made.system_properties.born_timestamp.seconds = value
            elif name == "keys":
                made.system_properties.keys.extend(value)
            else:
                setattr(made.system_properties, name, value)
        return made

    def send(self, *messages: Any) -> Any:
        return self.call("SendMessage", messages=messages)

    def receive(self, topic: str, group: str = "G", *, seconds: int = 60, poll_s: int = 5, **fields: Any) -> list[Any]:
        """What a simple consumer gets: messages. Of a push consumer, with `auto_renew=True`."""
        made = request_class("ReceiveMessage")(
            group={"name": group}, message_queue={"topic": {"name": topic}, "id": -1}, batch_size=32, **fields
        )
        made.long_polling_timeout.seconds = poll_s
        if not made.auto_renew:
            made.invisible_duration.seconds = seconds
        answers = self.call("ReceiveMessage", made)
        assert answers[-1].HasField("delivery_timestamp")
        return [each.message for each in answers if each.HasField("message")]

    def acknowledge(self, topic: str, *messages: Any, group: str = "G") -> Any:
        entries = [
            {"message_id": each.system_properties.message_id, "receipt_handle": each.system_properties.receipt_handle}
            for each in messages
        ]
        return self.call("AckMessage", group={"name": group}, topic={"name": topic}, entries=entries)

    # Telemetry.

    def settle(self, **settings: Any) -> Any:
        """Open the stream, send settings, and return what the broker made of them."""
        self._commands = queue.Queue()  # An earlier stream goes on waiting for its own commands.
        self._streams.append(self._commands)
        self._commands.put(TelemetryCommand(settings=settings))
        stub = self.channel.stream_stream(
            SERVICE + "Telemetry", TelemetryCommand.SerializeToString, TelemetryCommand.FromString
        )
        self.telemetry = stub(self._sent(self._commands), metadata=self.metadata)
        return next(self.telemetry)

    @staticmethod
    def _sent(commands: Any) -> Iterator[Any]:
        while (command := commands.get()) is not None:
            yield command

    def tell(self, command: Any) -> None:
        self._commands.put(command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for commands in self._streams:
            commands.put(None)
        if self.telemetry is not None:
            self.telemetry.cancel()
        self.channel.close()
