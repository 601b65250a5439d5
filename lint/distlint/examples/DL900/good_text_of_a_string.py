HELP = "write # distlint: ignore[DL101] and the reason"


def show():
    print(HELP)
