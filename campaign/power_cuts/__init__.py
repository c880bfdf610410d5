"""Power cuts on a real file system: the image of a mounted ext4 is copied under load, and the copy is recovered.

machine     an image, mounted; copies of it as the disk is at one moment
victims     processes on it that say what they send and what was acknowledged, stopped for the moment of a copy
life        the program of those that tests/crash has not got: a store with a tier, a store with timers
part        rounds: lives and cuts by a seed, and what must be true of every copy
"""
