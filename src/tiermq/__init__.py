"""TierMQ: a message store that keeps RocketMQ's bytes."""

__version__ = "0.1.0"
