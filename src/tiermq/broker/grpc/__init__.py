"""The broker's side of gRPC: calls of RocketMQ 5's clients, answered by the broker's processors."""
