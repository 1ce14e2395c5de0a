from smoke.cli import main

raise SystemExit(main())
