"""The guard of a distributed job, and what it leaves behind."""
