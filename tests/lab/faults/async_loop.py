"""The main thread waits for a coroutine in another thread, which looks for a file now and then."""

import asyncio
import threading

import steps


async def look_for_file():
    for _ in range(4):
        await asyncio.sleep(3)


steps.count_to(5)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(look_for_file(), loop).result()
