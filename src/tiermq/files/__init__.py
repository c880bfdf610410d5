"""Files: the file-access interface, mapped files, queues of mapped files, pre-allocation, the transient pool.

May import `tiermq.kernel` and the top-level modules. Must not depend on messages: here a file is a range of bytes with
positions; the packages above define its content.
"""
