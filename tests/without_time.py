"""What identical runs have in common: their pages without seconds and environment."""

import re


def bare(page):
    page = re.sub(r'<(\w+)[^>]*class="[^"]*seconds"[^>]*>.*?</\1>', "", page, flags=re.DOTALL)
    return re.sub(r'<dl class="environment">.*?</dl>', "", page, flags=re.DOTALL)
