"""``python -m inbackward``."""

import sys

from inbackward.cli import main

sys.exit(main())
