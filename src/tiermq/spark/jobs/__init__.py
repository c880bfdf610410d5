"""The jobs: each plans on the driver, works in pure tasks, and commits once."""
