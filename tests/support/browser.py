"""A browser without a window: what a page becomes in it, and how it looks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from PIL import Image

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def page_in_browser(page: Path, home: Path, *, fragment: str = "", words: tuple[str, ...] = ()) -> str:
    """Open a file without any network and return what the browser prints."""
    browser = find_browser()
    assert browser is not None, "no Chromium: apt-get install chromium"
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",  # root may not have one
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={home}",
        "--window-size=1280,2600",
        "--virtual-time-budget=5000",
        *words,
        f"{page.as_uri()}{fragment}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout


def screenshot(page: Path, home: Path, picture: Path, *, dark: bool) -> Image.Image:
    """Return the page as a reader with a dark or a light desktop sees it."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    page_in_browser(page, home, words=(scheme, "--hide-scrollbars", f"--screenshot={picture}"))
    with Image.open(picture) as image:
        return image.convert("RGB")
