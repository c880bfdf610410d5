"""Far timers: messages due so late that they wait in the tier and not on the broker's disk.

Objects by day, hour, minute and second beside the broker's queues, one manifest that says which of them count.
May import the tier, the store and the seam of the timer wheel. Must never know the network, the broker or Spark.
"""
