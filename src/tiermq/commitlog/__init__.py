"""The commit log: append and roll, flush and commit services, the recovery walk.

May import `files`, `kernel` and `message`. Must never know what a topic means, nor consume queues, index or network.
"""
