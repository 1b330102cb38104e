"""Draw the pictures of README and docs from a finished `make demo`: `python docs/pictures.py` (needs Chromium)."""

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
PAGE_WIDTH = 1100


def draw_report() -> Image.Image:
    """The top of the report and its map, side by side."""
    options = webdriver.ChromeOptions()
    for flag in ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", f"window-size={PAGE_WIDTH},4000"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with tempfile.TemporaryDirectory() as folder:
        options.add_argument(f"--user-data-dir={folder}")
        with webdriver.Chrome(options, service) as driver:
            driver.get((ROOT / "runs/demo/report.html").as_uri())
            page = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            titles = driver.find_elements(By.CSS_SELECTOR, "h2, h3")
            tops = {title.text.split()[0]: title.location["y"] - 20 for title in titles}
    halves = [
        page.crop((0, 0, PAGE_WIDTH, tops["Singular"])),
        page.crop((0, tops["Embedding"], PAGE_WIDTH, tops["Nearest"])),
    ]
    picture = Image.new("RGB", (2 * PAGE_WIDTH, max(half.height for half in halves)), page.getpixel((0, 0)))
    for i, half in enumerate(halves):
        picture.paste(half, (i * PAGE_WIDTH, 0))
    return picture.resize((picture.width * 2 // 3, picture.height * 2 // 3), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    draw_report().save(ROOT / "docs/images/report.png", optimize=True)
    preview_command(mv.Config(), instances=4, output=ROOT / "docs/images/views.png")
