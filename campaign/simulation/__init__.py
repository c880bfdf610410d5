"""A broker's whole store, tier and all, in a world that is nothing but a seed.

power        one place that everything outside goes through, and that can end a life at any call
machine      the simulated disk, metadata and pool: what a process leaves behind when it dies
bucket       an object store in memory, request by request
back_end     the tier's drivers, and the faults that a step's own seed puts before, after and inside of their calls
steps        what a life consists of, drawn from the root seed before it begins
model        what should be there
lives        the world: one store after the other on it, each step carried out
looking      the store as readers see it, compared with the model after every step
shrinking    fewer steps that fail in the same way
part         rounds for the campaign

One thread, one clock, one source of chance. Each step carries a seed of its own, so a step that is left out changes
nothing about the others; that is what makes shrinking quick.
"""
