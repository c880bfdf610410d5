"""Which processors a broker has, in the order of their names.

Each takes the broker's parts, and declares the request codes that it serves."""

from __future__ import annotations

from collections.abc import Callable

from tiermq.broker.admin_groups import GroupAdminProcessor
from tiermq.broker.admin_offsets import OffsetAdminProcessor
from tiermq.broker.admin_topics import TopicAdminProcessor
from tiermq.broker.assignments import AssignmentProcessor
from tiermq.broker.broker_settings import SettingsProcessor
from tiermq.broker.client_relays import RelayProcessor
from tiermq.broker.client_requests import ClientProcessor
from tiermq.broker.cold_flow import ColdFlowProcessor
from tiermq.broker.delivering import DeliveryProcessor
from tiermq.broker.offset_requests import OffsetProcessor
from tiermq.broker.ordering import LockProcessor
from tiermq.broker.parts import BrokerParts
from tiermq.broker.popping import PopProcessor
from tiermq.broker.pulling import PullProcessor
from tiermq.broker.querying import QueryProcessor
from tiermq.broker.recalling import RecallProcessor
from tiermq.broker.replying import ReplyProcessor
from tiermq.broker.retrying import RetryProcessor
from tiermq.broker.runtime_info import RuntimeProcessor
from tiermq.broker.sending import SendProcessor
from tiermq.broker.transacting import TransactionProcessor
from tiermq.broker.unserved_requests import UnservedProcessor

PROCESSORS: tuple[Callable[[BrokerParts], object], ...] = (
    AssignmentProcessor,
    ClientProcessor,
    ColdFlowProcessor,
    DeliveryProcessor,
    GroupAdminProcessor,
    LockProcessor,
    OffsetAdminProcessor,
    OffsetProcessor,
    PopProcessor,
    PullProcessor,
    QueryProcessor,
    RecallProcessor,
    RelayProcessor,
    ReplyProcessor,
    RetryProcessor,
    RuntimeProcessor,
    SendProcessor,
    SettingsProcessor,
    TopicAdminProcessor,
    TransactionProcessor,
    UnservedProcessor,
)
