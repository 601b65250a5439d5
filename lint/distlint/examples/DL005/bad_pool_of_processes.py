from multiprocessing import Pool


def features(paths, extract, rate):
    with Pool(8) as pool:
        return pool.map(lambda path: extract(path, rate), paths)  # expect: DL005 process
