"""Plot distinct classes per batch against the window of pages, for a class-sorted dataset like ImageNet.

    python benchmarks/shuffle_windows.py docs/images/shuffle_windows.png

No file is read: samples are numbers, laid out as 110 KB images on pages of 8 MiB, 1,000 classes in sequence.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dataloading.sampling.page_order import PageLayout
from dataloading.sampling.shuffle_quality import expected_distinct, measure_windows
from train.charts import one_chart
from train.tables import markdown_table

NUM_SAMPLES, NUM_CLASSES, IMAGE_BYTES, PAGE_BYTES = 1_281_000, 1000, 110_000, 1 << 23
WINDOWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def main() -> None:
    labels = np.arange(NUM_SAMPLES) // (NUM_SAMPLES // NUM_CLASSES)
    layout = PageLayout.from_sorted_pointers(np.arange(NUM_SAMPLES, dtype=np.uint64) * IMAGE_BYTES, PAGE_BYTES)
    figure, axes = one_chart(7, 4)
    rows = []
    for batch_size, colour in ((16, "tab:blue"), (64, "tab:orange"), (256, "tab:green")):
        found = measure_windows(layout, labels, batch_size=batch_size, windows=WINDOWS, num_batches=400)
        best = expected_distinct(np.bincount(labels), batch_size)
        distinct = [each.quality.mean_distinct_classes or 0.0 for each in found]
        rows.append([str(batch_size), *(f"{value:.2f}" for value in (*distinct, best))])
        axes.plot(WINDOWS, np.array(distinct) / best, "o-", color=colour, label=f"batches of {batch_size}")
    axes.axhline(1, color="gray", linestyle="--", linewidth=1)
    axes.axvline(512, color="gray", linestyle=":", linewidth=1)
    axes.text(540, 0.05, "default", color="gray")
    axes.set_xscale("log", base=2)
    axes.set_xticks(WINDOWS, [str(window) for window in WINDOWS], rotation=45)
    axes.set_xlabel("window_pages (of 8 MiB)")
    axes.set_ylabel("distinct classes per batch,\nrelative to a true shuffle")
    axes.set_ylim(0, 1.05)
    axes.legend(loc="center right", frameon=False)
    figure.savefig(sys.argv[1], dpi=120)
    print(markdown_table(["batch", *map(str, WINDOWS), "true shuffle"], rows))


if __name__ == "__main__":
    main()
