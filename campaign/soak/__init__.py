"""An hour of mixed load: nothing lost, memory and file handles flat, every object of the bucket accounted for."""
