"""`tiermq demo`: the main job end to end on this machine, and the proof that it was done. Uses what users use."""
