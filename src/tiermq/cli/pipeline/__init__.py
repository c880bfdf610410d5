"""`tiermq pipeline`: a command for each job. Nothing here imports Spark before a job runs on it."""
