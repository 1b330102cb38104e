"""The pictures of README and docs, from a finished `make demo`: `python docs/pictures.py` (needs Chromium)."""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

from manyviews.cli.views import draw_views

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1180, 975
"""Of the page, and of either half of the picture."""


def report() -> Image.Image:
    """What the report says first, and its map with neighbours, side by side."""
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
            second = next(title for title in titles if title.text.startswith("Map")).location["y"] - 20
    both = Image.new("RGB", (2 * WIDTH, HEIGHT), "white")
    for number, first in enumerate((0, second)):
        both.paste(page.crop((0, first, WIDTH, first + HEIGHT)), (number * WIDTH, 0))
    return both.resize((WIDTH * 4 // 3, HEIGHT * 2 // 3), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    report().save(ROOT / "docs/images/report.png", optimize=True)
    draw_views(instances=4, output=ROOT / "docs/images/views.png")
