"""How each law is judged on one case: functions of a trial that raise ``LawBroken`` or nothing.

A check compares runs with runs, so that one fault breaks the law that it is about and not all of
them: the law of the empty rank compares a world with an empty rank to the same world without it,
not to the single process.
"""
