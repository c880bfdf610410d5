"""Files: the file-access seam, mapped files, queues of mapped files, pre-allocation, the transient pool.

May import `tiermq.kernel` and the modules that stand alone. Must never know messages: here a file is a run of
bytes with positions, and who writes what into it is the business of the rooms above.
"""
