import asyncio
from functools import reduce


async def main(tasks, client):
    await asyncio.gather(*tasks)
    client.gather(tasks)
    reduce(client.join, tasks)
