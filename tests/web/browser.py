"""A real browser: the Chromium of the system. None is ever downloaded."""

import os
import shutil
import threading
from contextlib import contextmanager

import uvicorn

from stategraph.web._command import listening

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "there is no Chromium to try the page in: apt-get install chromium"


@contextmanager
def served(page):
    """Serve a page in a thread; yield its address."""
    with listening("127.0.0.1", 0) as socket:
        server = uvicorn.Server(uvicorn.Config(page, log_level="error", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(300)


@contextmanager
def launched():
    """Start the browser, and end it."""
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=[*options, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(browser, address, token, **options):
    """Yield a page with its own cookies and a session; errors and refused requests fail the test."""
    context = browser.new_context(**options)
    context.set_default_timeout(300_000)
    shown = context.new_page()
    problems = []
    shown.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.goto(f"{address}/?token={token}")
    try:
        yield shown
        assert [one for one in problems if "Failed to load resource" not in one] == []  # which a test may want
    finally:
        context.close()
