"""RocketMQ's remoting: frames, headers, a server and a client."""
