"""The pictures of README and docs, from a finished `make demo`: `python docs/pictures.py` (needs Chromium)."""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

import manyviews as mv
from manyviews.cli.preview_command import preview_command

ROOT = Path(__file__).parents[1]
WIDTH = 1100
"""Of the page."""


def report() -> Image.Image:
    """What the report says first, and its map, side by side."""
    options = webdriver.ChromeOptions()
    for flag in ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", f"window-size={WIDTH},4000"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with tempfile.TemporaryDirectory() as folder:
        options.add_argument(f"--user-data-dir={folder}")
        with webdriver.Chrome(options, service) as driver:
            driver.get((ROOT / "runs/demo/report.html").as_uri())
            page = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            titles = driver.find_elements(By.CSS_SELECTOR, "h2, h3")
            places = {title.text.split()[0]: title.location["y"] - 20 for title in titles}
    halves = [page.crop((0, 0, WIDTH, places["Singular"])), page.crop((0, places["Map"], WIDTH, places["Nearest"]))]
    both = Image.new("RGB", (2 * WIDTH, max(half.height for half in halves)), page.getpixel((0, 0)))
    for number, half in enumerate(halves):
        both.paste(half, (number * WIDTH, 0))
    return both.resize((both.width * 2 // 3, both.height * 2 // 3), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    report().save(ROOT / "docs/images/report.png", optimize=True)
    preview_command(mv.Config(), instances=4, output=ROOT / "docs/images/views.png")
