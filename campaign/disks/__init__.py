"""Disk trouble: damage in every kind of file, files that vanish, no room, errors, file systems that go read-only.

damage      bits, sectors and whole files that go bad; rounds over grounds: detected, reported, repaired, never served
ground      what a ground is: files by kind, what they hold, and what can be read of them after damage
stores      the ground of a local store
tiers       the ground of a store with a tier, local files and the tier's
brokers     the ground of a broker: settings, offsets, delayed messages
timers      the ground of timers: wheel, log, checkpoint
far_timers  the ground of timers that wait in a tier
troubles    a real broker on a real file system that fills up, fails or goes read-only under load
preload     a shared object that lets chosen system calls of a process fail
part        the parts of the campaign
"""
