"""``distlint confirm``: a finding of DL1 as two ranks, each a thread, that run the code around it with stand-ins.

Alone among the commands it executes code of the user's: the function around the finding and what that calls in the
same file. What is imported is never loaded: whatever the function gets from outside is a stand-in, which answers tests
by yes or no. All that follows from the rank is real; what ranks hold alike is answered alike; what comes from batches,
files or clocks may be answered differently. So a run shows what the ranks do for one way of answering, and a search
tries others.
"""
