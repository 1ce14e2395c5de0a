"""`python -m patches`: see patches/README.md."""

from __future__ import annotations

import sys

from patches.cli import main

sys.exit(main())
