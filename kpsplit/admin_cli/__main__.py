"""``python -m kpsplit.admin_cli`` is ``kpsplit``."""

from kpsplit.admin_cli.main import main

raise SystemExit(main())
