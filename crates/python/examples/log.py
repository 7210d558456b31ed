"""A log with many concurrent appenders, durable in batches: what `crates/quire/examples/log.rs` does, through asyncio.

    python log.py [APPENDERS] [RECORDS]

Each of APPENDERS (1000) tasks appends RECORDS (20) records and waits for the durability of each before it appends the next.
"""

import asyncio
import os
import sys
import tempfile
import time

import quire


async def append(log: quire.File, appender: int, records: int) -> None:
    for record in range(records):
        log.append(b"%d %d\n" % (appender, record))
        await log.fdatasync_async()


async def all_of(log: quire.File, appenders: int, records: int) -> None:
    await asyncio.gather(*(append(log, appender, records) for appender in range(appenders)))


def main(appenders: int = 1000, records: int = 20) -> None:
    with tempfile.TemporaryDirectory() as directory:
        image = os.path.join(directory, "log.img")
        quire.mkfs(image, size=256 << 20)
        with quire.Volume(image) as volume:
            volume.mkdir("db")
            log = volume.open("db/log", "ab", 0)
            began = time.perf_counter()
            asyncio.run(all_of(log, appenders, records))
            seconds = time.perf_counter() - began
            flushes = volume.metrics()["device_flushes_total"]
            print(f"{appenders * records} durable records in {seconds:.2f} s with {flushes} flushes")
            log.close()
        # Opened again: every session's records are there, each once and in its own order.
        with quire.Volume(image) as volume, volume.open("db/log") as file:
            found = [0] * appenders
            for line in file:
                appender, record = map(int, line.split())
                assert found[appender] == record
                found[appender] += 1
            assert found == [records] * appenders
            print("all of them are there")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
