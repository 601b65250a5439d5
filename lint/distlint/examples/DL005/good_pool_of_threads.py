from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool


def fetch(urls, get):
    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(lambda url: get(url), urls))
    with ThreadPool(8) as pool:
        return first + pool.map(lambda url: get(url), urls)
